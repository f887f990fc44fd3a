//! Whole replies and counts.

use crate::common::{CONTEXT, Setup, TestServer};
use crate::harness::{COUNT, MESSAGES, ask, count, reply, unloaded};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_has_every_key_that_strict_clients_want() {
    let server = TestServer::start(Setup::default());
    let message = reply(&server, &ask("12 + 30 = ?", &json!({"model": "claude-sonnet-5"}))).await;
    let id = message["id"].as_str().unwrap();
    assert!(id.starts_with("msg_") && id.len() > 20, "{id}");
    let (input, output) = (&message["usage"]["input_tokens"], &message["usage"]["output_tokens"]);
    assert!(input.as_u64().unwrap() > 5 && output.as_u64().unwrap() > 5, "{message}");
    let expected = json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [{"type": "text", "text": "12 + 30 = 42", "citations": null}],
        "stop_reason": "end_turn",
        "stop_sequence": null,
        "stop_details": null,
        "container": null,
        "usage": {
            "input_tokens": input,
            "output_tokens": output,
            "cache_read_input_tokens": message["usage"]["cache_read_input_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_creation": null,
            "output_tokens_details": {"thinking_tokens": 0},
            "server_tool_use": null,
            "service_tier": null,
            "inference_geo": null,
        },
    });
    assert_eq!(message, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_comes_as_a_signed_block_where_it_is_asked_for() {
    let server = TestServer::start(Setup::default());
    let fields =
        json!({"thinking": {"type": "enabled", "budget_tokens": 31_999, "display": "summarized"}});
    let message = reply(&server, &ask("Count the letters in Nina.", &fields)).await;
    let [thinking, text] = &message["content"].as_array().unwrap()[..] else { panic!("{message}") };
    assert_eq!(thinking["type"], "thinking");
    assert!(!thinking["thinking"].as_str().unwrap().is_empty());
    assert!(!thinking["signature"].as_str().unwrap().is_empty());
    assert_eq!(text["text"], "Nina has 4 letters.");
    let details = &message["usage"]["output_tokens_details"];
    assert!(details["thinking_tokens"].as_u64().unwrap() > 3, "{message}");
    // Others do not get what they did not ask for.
    for fields in [json!({}), json!({"thinking": {"type": "disabled"}})] {
        let message = reply(&server, &ask("Count the letters in Nina.", &fields)).await;
        assert_eq!(message["content"][0]["type"], "text", "{message}");
        assert_eq!(message["usage"]["output_tokens_details"]["thinking_tokens"], 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_ends_the_thinking() {
    let server = TestServer::start(Setup::default());
    let fields = json!({"thinking": {"type": "enabled", "budget_tokens": 5}});
    let message = reply(&server, &ask("What is 15 * 37?", &fields)).await;
    let tokens = message["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap();
    assert!((1..=8).contains(&tokens), "{message}");
    assert_eq!(message["content"][1]["type"], "text", "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_say_why() {
    let server = TestServer::start(Setup::default());
    let question = "Write this again: sheep, truck, candle, spring, castle, sugar";
    let message =
        reply(&server, &ask(question, &json!({"stop_sequences": ["zebra", ", spring"]}))).await;
    assert_eq!(message["stop_reason"], "stop_sequence");
    assert_eq!(message["stop_sequence"], ", spring");
    assert_eq!(message["content"][0]["text"], "sheep, truck, candle");
    let message = reply(&server, &ask(question, &json!({"max_tokens": 3}))).await;
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("max_tokens"), &Value::Null)
    );
    assert_eq!(message["usage"]["output_tokens"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_may_be_allowed_more_tokens_than_there_are() {
    let server = TestServer::start(Setup::default());
    // Coding agents always say 32,000.
    let message = reply(&server, &ask("7 + 8 = ?", &json!({"max_tokens": 32_000}))).await;
    assert_eq!(message["content"][0]["text"], "7 + 8 = 15");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_answered_from_its_history() {
    let server = TestServer::start(Setup::default());
    let messages = json!([
        {"role": "user", "content": "The password is engine."},
        {"role": "assistant", "content": [{"type": "text", "text": "I will remember the word engine."}]},
        {"role": "user", "content": [{"type": "text", "text": "Which word did I tell you?"}]},
    ]);
    let message = reply(&server, &ask("", &json!({"messages": messages}))).await;
    assert_eq!(message["content"][0]["text"], "The word is engine.");
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_output_follows_its_schema() {
    let server = TestServer::start(Setup::default());
    let schema = json!({
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "schema": schema});
    for fields in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let message = reply(&server, &ask("1 + 1 = ?", &fields)).await;
        let text = message["content"][0]["text"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["sum"].is_i64() && value.as_object().unwrap().len() == 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_those_of_the_reply() {
    let server = TestServer::start(Setup::default());
    let fields = json!({
        "system": [{"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "adaptive"},
    });
    let request = ask("What is the capital of Kenya?", &fields);
    let message = reply(&server, &request).await;
    let tokens = |name: &str| message["usage"][name].as_u64().unwrap();
    let prompt = tokens("input_tokens") + tokens("cache_read_input_tokens");
    assert_eq!(count(&server, &request).await, prompt);
    // SDKs send no `max_tokens` with it.
    let mut bare = request.clone();
    bare.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(count(&server, &bare).await, prompt);
    // What does not fit is counted too.
    let long = ask(&"word ".repeat(CONTEXT), &json!({}));
    assert!(count(&server, &long).await > CONTEXT as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_wait_for_no_model() {
    let (url, loads) = unloaded(Setup::default()).await;
    let client = reqwest::Client::new();
    let post = |path: &str, question: &str| {
        let request = client.post(url.clone() + path).json(&ask(question, &json!({})));
        async move { request.send().await.unwrap().json::<Value>().await.unwrap() }
    };
    // As an editor does when it starts.
    let begun = Instant::now();
    let counts = (0..50).map(|i| post(COUNT, &format!("Hello {i}")));
    for count in futures_util::future::join_all(counts).await {
        assert!(count["input_tokens"].as_u64().unwrap() > 5, "{count}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // A message does wait, and is answered.
    let waits = tokio::spawn(post(MESSAGES, "2 + 2 = ?"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waits.is_finished());
    loads.send(()).unwrap();
    assert_eq!(waits.await.unwrap()["content"][0]["text"], "2 + 2 = 4");
}
