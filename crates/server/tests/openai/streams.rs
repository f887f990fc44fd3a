//! Replies as streams: the order of chunks, and that they say what the whole reply says.

use crate::chat::{CHAT, add_tool, ask, with};
use crate::common::{Setup, TestServer, json_events};
use serde_json::{Value, json};
use std::time::Duration;

/// Joins a field of the deltas of a choice.
fn joined(chunks: &[Value], field: &str) -> String {
    let text = |chunk: &Value| chunk["choices"][0]["delta"][field].as_str().map(str::to_owned);
    chunks.iter().filter_map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_come_in_order_and_join_to_the_reply() {
    let server = TestServer::start(Setup::default());
    let whole = server.ok(CHAT, &ask("12 + 30 = ?")).await;
    let more = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true});
    let events = server.events(CHAT, &with(ask("12 + 30 = ?"), &more)).await;
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let chunks = json_events(&events);
    let first = &chunks[0];
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    for chunk in &chunks {
        for field in ["id", "created", "model", "object"] {
            assert_eq!(chunk[field], first[field]);
        }
    }
    assert!(chunks[1..].iter().all(|c| c["choices"][0]["delta"].get("role").is_none()));
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        joined(&chunks, "reasoning_content"),
        message["reasoning_content"].as_str().unwrap()
    );
    assert_eq!(joined(&chunks, "content"), message["content"].as_str().unwrap());
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert!(usage["timings"]["decode_seconds"].as_f64().unwrap() > 0.0);
    let (finish, chunks) = chunks.split_last().unwrap();
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert!(
        chunks.iter().all(|c| c["choices"][0]["finish_reason"].is_null() && c["usage"].is_null())
    );
    let tokens = chunks.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array());
    let text: String = tokens.flatten().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(message["content"], text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_streams_its_name_then_its_arguments() {
    let server = TestServer::start(Setup::default());
    let more = json!({
        "stream": true, "tools": [add_tool()], "tool_choice": "required", "enable_thinking": false,
        "parallel_tool_calls": false, "max_tokens": 200,
    });
    let events = server.events(CHAT, &with(ask("Add 3 and 4."), &more)).await;
    let chunks = json_events(&events);
    let deltas: Vec<&Value> = chunks
        .iter()
        .map(|c| &c["choices"][0]["delta"]["tool_calls"][0])
        .filter(|d| !d.is_null())
        .collect();
    assert_eq!(deltas[0]["index"], 0);
    assert_eq!(deltas[0]["type"], "function");
    assert_eq!(deltas[0]["function"], json!({"name": "add", "arguments": ""}));
    assert!(deltas[0]["id"].is_string());
    let pieces = deltas[1..].iter().map(|delta| {
        assert!(delta.get("id").is_none() && delta["function"].get("name").is_none());
        delta["function"]["arguments"].as_str().unwrap()
    });
    let arguments: Value = serde_json::from_str(&pieces.collect::<String>()).unwrap();
    assert!(arguments["a"].is_i64() && arguments["b"].is_i64());
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    assert!(last["timings"].is_object(), "without include_usage the last chunk has the timings");
    server.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cut_does_not_read_as_whole() {
    let server = TestServer::start(Setup::default());
    let mut with_arguments = 0;
    for max_tokens in 1..30 {
        let more = json!({
            "stream": true, "tools": [add_tool()], "tool_choice": "required", "enable_thinking": false,
            "max_tokens": max_tokens,
        });
        let chunks = json_events(&server.events(CHAT, &with(ask("Add 3 and 4."), &more)).await);
        assert_eq!(joined(&chunks, "content"), "");
        let reason = &chunks.last().unwrap()["choices"][0]["finish_reason"];
        if reason == "tool_calls" {
            continue;
        }
        assert_eq!(reason, "length");
        let piece = |chunk: &Value| {
            let call = &chunk["choices"][0]["delta"]["tool_calls"][0];
            call["function"]["arguments"].as_str().map(str::to_owned)
        };
        let arguments: String = chunks.iter().filter_map(piece).collect();
        match serde_json::from_str::<Value>(&arguments) {
            // Only what stands behind its arguments is missing.
            Ok(whole) => assert!(whole["a"].is_i64() && whole["b"].is_i64(), "{arguments}"),
            Err(_) => with_arguments += usize::from(!arguments.is_empty()),
        }
    }
    assert!(with_arguments > 3, "some were cut inside of their arguments: {with_arguments}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prefill_says_how_far_it_is() {
    let server = TestServer::start(Setup::default());
    let words: String = (0..700).map(|i| format!("Number {i} follows. ")).collect();
    let more = json!({"stream": true, "max_tokens": 4});
    let events = server.events(CHAT, &with(ask(&words), &more)).await;
    let progress: Vec<&str> =
        events.iter().filter(|(name, _)| name == ":").map(|(_, text)| text.as_str()).collect();
    assert!(
        progress.iter().filter(|text| text.starts_with("prefill ")).count() > 3,
        "{progress:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_work() {
    let server = TestServer::start(Setup::default());
    let endless = json!({"stream": true, "ignore_eos": true, "max_tokens": 6000});
    let client = server.client.clone();
    let request = client.post(server.url.clone() + CHAT).json(&with(ask("12 + 30 = ?"), &endless));
    let mut response = request.send().await.unwrap();
    assert!(response.chunk().await.unwrap().is_some());
    let (_, health) = server.get("/health").await;
    assert_eq!(health["running"], 1);
    drop(response);
    server.idle().await;
    // A client that waits for a whole reply, and gives up.
    let endless = json!({"ignore_eos": true, "max_tokens": 6000});
    let request = client.post(server.url.clone() + CHAT).json(&with(ask("12 + 30 = ?"), &endless));
    let gone = request.timeout(Duration::from_millis(300)).send().await;
    assert!(gone.is_err());
    server.idle().await;
    let words: String = (0..700).map(|i| format!("Number {i} follows. ")).collect();
    let long = client.post(server.url.clone() + CHAT).json(&with(ask(&words), &endless));
    assert!(long.timeout(Duration::from_millis(200)).send().await.is_err());
    server.idle().await;
}
