//! Tools: calls, results, and what forces or forbids them.

use crate::common::{Setup, TestServer};
use crate::harness::{MESSAGES, ask, events, reply, weather_tool};
use serde_json::{Value, json};

fn only_call(message: &Value) -> &Value {
    let content = message["content"].as_array().unwrap();
    let mut calls = content.iter().filter(|block| block["type"] == "tool_use");
    let call = calls.next().unwrap_or_else(|| panic!("no call: {message}"));
    assert_eq!(calls.count(), 0, "{message}");
    assert_eq!(message["stop_reason"], "tool_use");
    call
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_loop() {
    let server = TestServer::start(Setup::default());
    let fields =
        json!({"tools": [weather_tool(), {"type": "web_search_20250305", "name": "web_search"}]});
    let mut request = ask("What is the weather in Rome?", &fields);
    let message = reply(&server, &request).await;
    let call = only_call(&message);
    assert_eq!((&call["name"], &call["input"]), (&json!("get_weather"), &json!({"city": "Rome"})));
    assert_eq!(call["caller"], json!({"type": "direct"}));
    let id = call["id"].as_str().unwrap();
    assert!(id.starts_with("toolu_") && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));

    let result = json!([{
        "type": "tool_result",
        "tool_use_id": id,
        "content": [{"type": "text", "text": "{\"temperature\": 21, \"condition\": \"sunny\"}"}],
    }]);
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": message["content"]}));
    messages.push(json!({"role": "user", "content": result}));
    let answer = reply(&server, &request).await;
    assert_eq!(answer["stop_reason"], "end_turn");
    let text = answer["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("21"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_kept() {
    let server = TestServer::start(Setup::default());
    let with = async |choice: Value| {
        let fields = json!({"tools": [weather_tool()], "tool_choice": choice, "max_tokens": 100});
        reply(&server, &ask("What is the weather in Oslo?", &fields)).await
    };
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "get_weather", "disable_parallel_tool_use": true}),
    ] {
        let message = with(choice).await;
        assert!(only_call(&message)["input"]["city"].is_string(), "{message}");
    }
    let message = with(json!({"type": "none"})).await;
    let is_call = |block: &Value| block["type"] == "tool_use";
    assert!(!message["content"].as_array().unwrap().iter().any(is_call), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_cut_is_not_handed_over() {
    let server = TestServer::start(Setup::default());
    let fields =
        json!({"tools": [weather_tool()], "tool_choice": {"type": "any"}, "max_tokens": 8});
    let request = ask("What is the weather in Lima?", &fields);
    let message = reply(&server, &request).await;
    assert_eq!(message["stop_reason"], "max_tokens");
    let is_call = |block: &Value| block["type"] == "tool_use";
    assert!(!message["content"].as_array().unwrap().iter().any(is_call), "{message}");
    // What a stream has said of it already is no JSON.
    let events = events(&server, &request).await;
    let pieces = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    let input: String = pieces.collect();
    assert!(serde_json::from_str::<Value>(&input).is_err(), "{input}");
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "max_tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_without_its_tool_is_refused() {
    let server = TestServer::start(Setup::default());
    for fields in [
        json!({"tool_choice": {"type": "any"}}),
        json!({"tool_choice": {"type": "tool", "name": "absent"}, "tools": [weather_tool()]}),
    ] {
        let answer = server.post(MESSAGES, &ask("Hi", &fields)).await;
        assert_eq!(answer.0, 400, "{}", answer.1);
        assert_eq!(answer.1["error"]["type"], "invalid_request_error");
    }
}
