//! Requests, and what answers mean.

use crate::common::{Setup, TestServer, config, json_events};
use calla_server::Server;
use serde_json::{Value, json};
use std::sync::mpsc::{Sender, channel};
use tokio_util::sync::CancellationToken;

pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const COUNT: &str = "/v1/messages/count_tokens";

/// The message that answers a request.
pub(crate) async fn reply(server: &TestServer, request: &Value) -> Value {
    server.ok("/v1/messages?beta=true", request).await
}

/// The events of a request's stream. Each has a name, which is its type.
pub(crate) async fn events(server: &TestServer, request: &Value) -> Vec<Value> {
    let mut request = request.clone();
    request["stream"] = json!(true);
    let events = server.events(MESSAGES, &request).await;
    let json = json_events(&events);
    let names = events.iter().filter(|(name, _)| name != ":").map(|(name, _)| name.as_str());
    assert!(names.eq(json.iter().map(|event| event["type"].as_str().unwrap())));
    json
}

pub(crate) async fn count(server: &TestServer, request: &Value) -> u64 {
    server.ok(COUNT, request).await["input_tokens"].as_u64().unwrap()
}

/// A server whose model is not loaded before it is told to by the sender, and its address.
pub(crate) async fn unloaded(setup: Setup) -> (String, Sender<()>) {
    let (loads, may_load) = channel();
    let mut config = config(&setup);
    let mut load = config.loader;
    config.loader = Box::new(move |notify| {
        let _ = may_load.recv();
        load(notify)
    });
    let server = Server::start(config).await.unwrap();
    let url = format!("http://{}", server.address());
    // It ends with the test's runtime.
    tokio::spawn(server.run(CancellationToken::new()));
    (url, loads)
}

/// A request with a user message, and other fields over it.
pub(crate) fn ask(question: &str, fields: &Value) -> Value {
    let mut request = json!({
        "model": "claude-opus-4-6",
        "max_tokens": 300,
        "temperature": 0,
        "messages": [{"role": "user", "content": question}],
    });
    for (name, value) in fields.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

/// A tool that the demo was trained on the like of.
pub(crate) fn weather_tool() -> Value {
    json!({
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    })
}

/// The message that a stream's events make, put together as the SDKs do it.
pub(crate) fn assemble(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut partial = String::new();
    let append = |to: &mut Value, more: &Value| {
        *to = json!(format!("{}{}", to.as_str().unwrap(), more.as_str().unwrap()));
    };
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index, "blocks are counted through");
                content.push(event["content_block"].clone());
                partial.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &event["delta"]);
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append(&mut block["text"], &delta["text"]),
                    "thinking_delta" => append(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => partial += delta["partial_json"].as_str().unwrap(),
                    other => panic!("a delta of type {other}"),
                }
            }
            "content_block_stop" => {
                let block = &mut message["content"][index];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&partial).unwrap();
                }
            }
            "message_delta" => {
                for (name, value) in event["delta"].as_object().unwrap() {
                    message[name] = value.clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "ping" | "message_stop" => {}
            other => panic!("an event of type {other}"),
        }
    }
    message
}
