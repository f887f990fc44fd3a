//! Which events a reply's happenings become.

use super::*;
use crate::generate::End;
use calla_engine::{Reuse, Usage as EngineUsage};
use serde_json::{Value, json};
use std::future::pending;

fn delta(delta: Delta) -> Happening {
    Happening::Delta { choice: 0, delta }
}

fn reasoning(text: &str) -> Happening {
    delta(Delta::Reasoning(text.into()))
}

fn content(text: &str) -> Happening {
    delta(Delta::Content(text.into(), vec![]))
}

fn call(index: usize, name: &str, pieces: &[&str]) -> Vec<Happening> {
    let id = format!("call_{index}");
    let mut happenings = vec![delta(Delta::CallStart { index, id, name: name.into() })];
    for piece in pieces {
        happenings.push(delta(Delta::CallArguments { index, json: (*piece).into() }));
    }
    happenings
}

fn call_end(index: usize) -> Happening {
    delta(Delta::CallEnd { index, complete: true })
}

fn ended(end: End) -> Happening {
    let reuse = Reuse { reused: 30, ..Reuse::default() };
    let usage = EngineUsage {
        prompt_tokens: 50,
        reuse,
        completion_tokens: 9,
        drafted_tokens: 0,
        accepted_tokens: 0,
    };
    let ended = Ended {
        end,
        reply: calla_text::Reply::default(),
        call_ids: vec![],
        logprobs: None,
        usage,
        reasoning_tokens: 4,
    };
    Happening::Ended { choice: 0, ended: Box::new(ended) }
}

fn json_of(item: &Item) -> Value {
    match item {
        Item::Event(event) => {
            let json = serde_json::to_value(event).unwrap();
            assert_eq!(json["type"], event.name());
            json
        }
        Item::Error(error) => json!({"error": error.message}),
    }
}

/// All events of a reply, each as a line.
async fn lines(happenings: Vec<Happening>) -> Vec<String> {
    let message = Message::begun("claude-x".into(), 50);
    let stream = events(message, stream::iter(happenings), Duration::from_secs(5));
    let items: Vec<Item> = stream.collect().await;
    items.iter().map(|item| line(&json_of(item))).collect()
}

fn line(event: &Value) -> String {
    let index = &event["index"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    match event["type"].as_str() {
        Some("content_block_start") => match &event["content_block"] {
            block if block["type"] == "tool_use" => {
                assert_eq!(
                    (&block["input"], &block["caller"]),
                    (&json!({}), &json!({"type": "direct"}))
                );
                format!("{index} tool_use {} {}", text(&block["name"]), text(&block["id"]))
            }
            block => {
                let kind = text(&block["type"]);
                assert_eq!(block[&kind], "", "a block begins empty");
                format!("{index} {kind}")
            }
        },
        Some("content_block_delta") => {
            let delta = event["delta"].as_object().unwrap();
            let (_, said) = delta.iter().find(|(key, _)| *key != "type").unwrap();
            format!("{index} {} {said}", text(&delta["type"]))
        }
        Some("content_block_stop") => format!("{index} stop"),
        Some("message_delta") => {
            let delta = &event["delta"];
            format!("message_delta {} {}", text(&delta["stop_reason"]), delta["stop_sequence"])
        }
        Some(other) => other.to_owned(),
        None => format!("error {}", text(&event["error"])),
    }
}

#[tokio::test]
async fn blocks_follow_each_other_in_order() {
    let mut happenings = vec![
        Happening::Prefill { done: 40, total: 50 },
        reasoning("Let"),
        reasoning(" me"),
        content("I"),
        content(" add."),
    ];
    happenings.extend(call(0, "add", &["{\"a\":", "1}"]));
    happenings.push(call_end(0));
    happenings.extend(call(1, "sub", &["{}"]));
    happenings.extend([call_end(1), ended(End::ToolCalls)]);
    assert_eq!(
        lines(happenings).await,
        [
            "message_start",
            "ping",
            "0 thinking",
            r#"0 thinking_delta "Let""#,
            r#"0 thinking_delta " me""#,
            r#"0 signature_delta "Y2FsbGE=""#,
            "0 stop",
            "1 text",
            r#"1 text_delta "I""#,
            r#"1 text_delta " add.""#,
            "1 stop",
            "2 tool_use add toolu_0",
            r#"2 input_json_delta "{\"a\":""#,
            r#"2 input_json_delta "1}""#,
            "2 stop",
            "3 tool_use sub toolu_1",
            r#"3 input_json_delta "{}""#,
            "3 stop",
            "message_delta tool_use null",
            "message_stop",
        ]
    );
}

#[tokio::test]
async fn a_call_inside_thinking_is_a_block_between_two() {
    let mut happenings = vec![reasoning("a")];
    happenings.extend(call(0, "add", &["{}"]));
    happenings.extend([call_end(0), reasoning("b"), ended(End::ToolCalls)]);
    let lines = lines(happenings).await;
    let kinds: Vec<&str> = lines
        .iter()
        .map(String::as_str)
        .filter(|line| line.ends_with("thinking") || line.contains("tool_use add"))
        .collect();
    assert_eq!(kinds, ["0 thinking", "1 tool_use add toolu_0", "2 thinking"]);
}

#[tokio::test]
async fn there_are_no_empty_blocks() {
    let happenings = vec![reasoning(""), content(""), ended(End::Stop)];
    assert_eq!(
        lines(happenings).await,
        ["message_start", "ping", "message_delta end_turn null", "message_stop"]
    );
}

#[tokio::test]
async fn ends_have_their_reasons() {
    for (end, expected) in [
        (End::Stop, "message_delta end_turn null"),
        (End::Length, "message_delta max_tokens null"),
        (End::ToolCalls, "message_delta tool_use null"),
        (End::StopString("###".into()), r####"message_delta stop_sequence "###""####),
    ] {
        let lines = lines(vec![content("x"), ended(end)]).await;
        assert_eq!(lines[lines.len() - 3..], ["0 stop", expected, "message_stop"]);
    }
}

#[tokio::test]
async fn a_call_that_was_cut_is_closed_without_the_end_of_its_input() {
    let mut happenings = call(0, "add", &["{\"a\":", "\"x", "\"}"]);
    let cut = Delta::CallEnd { index: 0, complete: false };
    happenings.extend([delta(cut), ended(End::Length)]);
    assert_eq!(
        lines(happenings).await[2..],
        [
            "0 tool_use add toolu_0",
            r#"0 input_json_delta "{\"a\":""#,
            r#"0 input_json_delta "\"x""#,
            "0 stop",
            "message_delta max_tokens null",
            "message_stop",
        ]
    );
}

#[tokio::test]
async fn an_error_ends_the_stream() {
    let failed = Happening::Failed(ApiError::new(ErrorKind::Server, "the device failed"));
    let lines = lines(vec![content("x"), failed, content("y")]).await;
    assert_eq!(lines[3..], [r#"0 text_delta "x""#, "error the device failed"]);
    // So does an end that nobody announced.
    let broken = self::lines(vec![content("x")]).await;
    assert!(broken.last().unwrap().starts_with("error the reply broke off"), "{broken:?}");
}

#[tokio::test]
async fn counts_are_those_of_the_engine() {
    let message = Message::begun("claude-x".into(), 50);
    let happenings = stream::iter([content("x"), ended(End::Stop)]);
    let items: Vec<Item> = events(message, happenings, Duration::from_secs(5)).collect().await;
    let events: Vec<Value> = items.iter().map(json_of).collect();
    let start = &events[0]["message"];
    assert_eq!(start["usage"]["input_tokens"], 50);
    assert_eq!(start["usage"]["output_tokens"], 0);
    assert_eq!((&start["model"], &start["stop_reason"]), (&json!("claude-x"), &Value::Null));
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!(
        *usage,
        json!({
            "input_tokens": 20,
            "output_tokens": 9,
            "cache_read_input_tokens": 30,
            "cache_creation_input_tokens": 0,
            "cache_creation": null,
            "output_tokens_details": {"thinking_tokens": 4},
            "server_tool_use": null,
            "service_tier": null,
            "inference_geo": null,
        })
    );
}

#[tokio::test(start_paused = true)]
async fn silence_is_filled_with_pings() {
    let message = Message::begun("claude-x".into(), 50);
    // Prompt work that is told of is no news to the client: it hears of it by pings alone.
    let late = stream::iter([content("x")]).chain(stream::once(async {
        tokio::time::sleep(Duration::from_secs(12)).await;
        ended(End::Stop)
    }));
    let items: Vec<Item> = events(message, late, Duration::from_secs(5)).collect().await;
    let lines: Vec<String> = items.iter().map(|item| line(&json_of(item))).collect();
    assert_eq!(
        lines,
        [
            "message_start",
            "ping",
            "0 text",
            r#"0 text_delta "x""#,
            "ping",
            "ping",
            "0 stop",
            "message_delta end_turn null",
            "message_stop"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn progress_of_a_long_prompt_does_not_put_off_the_pings() {
    let message = Message::begun("claude-x".into(), 50);
    let prefill = stream::unfold(0, |done| async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Some((Happening::Prefill { done, total: 50 }, done + 1))
    });
    let stream = events(message, prefill.chain(stream::once(pending())), Duration::from_secs(5));
    let mut stream = std::pin::pin!(stream);
    for _ in 0..2 {
        stream.next().await.unwrap();
    }
    let begun = tokio::time::Instant::now();
    let ping = stream.next().await.unwrap();
    assert_eq!(line(&json_of(&ping)), "ping");
    assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
}
