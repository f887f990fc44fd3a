//! Streamed replies.

use crate::common::{Setup, TestServer, json_events, read_events};
use crate::harness::{MESSAGES, ask, assemble, events, reply, unloaded, weather_tool};
use serde_json::{Value, json};
use std::time::Duration;

fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_the_whole_reply_in_pieces() {
    let server = TestServer::start(Setup::default());
    let thinks = json!({"thinking": {"type": "enabled", "budget_tokens": 1000}});
    let tools = json!({"tools": [weather_tool()], "thinking": {"type": "adaptive"}});
    let stops = json!({"stop_sequences": [", spring"]});
    for request in [
        ask("20 + 21 = ?", &json!({})),
        ask("Count the letters in Olga.", &thinks),
        ask("What is the weather in Paris?", &tools),
        ask("Write this again: sheep, truck, candle, spring, castle", &stops),
        ask("Reverse: red, green, blue", &json!({"max_tokens": 2})),
    ] {
        let mut whole = reply(&server, &request).await;
        let mut streamed = assemble(&events(&server, &request).await);
        for message in [&mut whole, &mut streamed] {
            message["id"] = Value::Null;
            // The second one reuses the first one's prompt.
            let usage = &mut message["usage"];
            let tokens = |name: &str| usage[name].as_u64().unwrap();
            usage["input_tokens"] =
                json!(tokens("input_tokens") + tokens("cache_read_input_tokens"));
            usage["cache_read_input_tokens"] = Value::Null;
            for block in message["content"].as_array_mut().unwrap() {
                if block["type"] == "tool_use" {
                    block["id"] = Value::Null;
                }
            }
        }
        assert_eq!(whole, streamed, "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order() {
    let server = TestServer::start(Setup::default());
    let fields = json!({"thinking": {"type": "enabled", "budget_tokens": 1000}});
    let events = events(&server, &ask("31 + 11 = ?", &fields)).await;
    assert_eq!(
        types(&events),
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert!(start["usage"]["input_tokens"].as_u64().unwrap() > 5);
    let deltas: Vec<&str> =
        events.iter().filter_map(|event| event["delta"]["type"].as_str()).collect();
    let signature = deltas.iter().position(|kind| *kind == "signature_delta").unwrap();
    assert!(deltas[..signature].iter().all(|kind| *kind == "thinking_delta") && signature > 0);
    assert!(deltas[signature + 1..].iter().all(|kind| *kind == "text_delta"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_start_and_pings_wait_for_no_token() {
    let setup = Setup { keep_alive: Duration::from_millis(50), ..Setup::default() };
    let (url, loads) = unloaded(setup).await;
    let request = ask("3 + 4 = ?", &json!({"stream": true}));
    let request = reqwest::Client::new().post(url + MESSAGES).json(&request);
    let streams = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(600)).await;
    loads.send(()).unwrap();
    let events = json_events(&read_events(&streams.await.unwrap()));
    assert_eq!(types(&events)[..2], ["message_start", "ping"]);
    assert_eq!(assemble(&events)["content"][0]["text"], "3 + 4 = 7");
}
