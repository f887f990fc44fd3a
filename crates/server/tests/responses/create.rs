//! Whole responses.

use crate::common::{Setup, TestServer};
use serde_json::{Value, json};

pub(crate) const RESPONSES: &str = "/v1/responses";

/// A greedy request.
pub(crate) fn ask(input: impl Into<Value>) -> Value {
    json!({"model": "gpt-5", "temperature": 0, "input": input.into()})
}

/// `request` with more fields.
pub(crate) fn with(mut request: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

pub(crate) fn add_tool() -> Value {
    json!({
        "type": "function", "name": "add", "description": "Add two numbers.", "strict": false,
        "parameters": {"type": "object", "properties": {
            "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
    })
}

pub(crate) fn kinds(response: &Value) -> Vec<&str> {
    let items = response["output"].as_array().unwrap();
    items.iter().map(|item| item["type"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_with_a_whole_object() {
    let server = TestServer::start(Setup::default());
    let more =
        json!({"metadata": {"a": "b"}, "user": "u", "prompt_cache_key": "k", "instructions": null});
    let response = server.ok(RESPONSES, &with(ask("12 + 30 = ?"), &more)).await;
    assert_eq!(kinds(&response), ["reasoning", "message"]);
    let [thinking, message] = response["output"].as_array().unwrap().as_slice() else { panic!() };
    assert_eq!(message["content"][0]["text"], "12 + 30 = 42");
    assert_eq!(message["status"], "completed");
    assert!(thinking["content"][0]["text"].as_str().unwrap().contains("42"));
    assert_eq!((&response["model"], &response["status"]), (&json!("gpt-5"), &json!("completed")));
    assert_eq!(response["metadata"], json!({"a": "b"}));
    let usage = &response["usage"];
    let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap();
    assert_eq!(count("/total_tokens"), count("/input_tokens") + count("/output_tokens"));
    assert!(count("/output_tokens_details/reasoning_tokens") > 10);
    assert_eq!(count("/input_tokens_details/cached_tokens"), 0);
    // Keys that clients with a strict schema insist on.
    for key in [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "model",
        "previous_response_id",
        "instructions",
        "output",
        "error",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "temperature",
        "reasoning",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
    ] {
        assert!(response.get(key).is_some(), "{key}");
    }

    let again = server.ok(RESPONSES, &ask("12 + 30 = ?")).await;
    assert_eq!(again["output"][1]["content"], message["content"]);
    assert!(again["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_is_told_as_the_request_asks() {
    let server = TestServer::start(Setup::default());
    let none = with(ask("12 + 30 = ?"), &json!({"reasoning": {"effort": "none"}}));
    assert_eq!(kinds(&server.ok(RESPONSES, &none).await), ["message"]);
    let more = json!({"reasoning": {"effort": "minimal", "summary": "auto"},
                      "include": ["reasoning.encrypted_content"], "store": false});
    let response = server.ok(RESPONSES, &with(ask("12 + 30 = ?"), &more)).await;
    let thinking = &response["output"][0];
    let text = thinking["summary"][0]["text"].as_str().unwrap();
    assert!(text.contains("42"), "{thinking}");
    assert!(thinking.get("content").is_none());
    assert!(thinking["encrypted_content"].as_str().unwrap().ends_with(text));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_cut_a_response_short() {
    let server = TestServer::start(Setup::default());
    let short = with(ask("12 + 30 = ?"), &json!({"max_output_tokens": 4}));
    let response = server.ok(RESPONSES, &short).await;
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["usage"]["output_tokens"], 4);
    // A probe without anything to answer.
    for input in [json!(""), json!([])] {
        let response =
            server.ok(RESPONSES, &with(ask(input), &json!({"max_output_tokens": 1}))).await;
        assert_eq!(response["usage"]["output_tokens"], 1);
        assert_eq!(response["output"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_all_types_are_accepted_and_those_offered_are_called() {
    let server = TestServer::start(Setup::default());
    let tools = json!([
        add_tool(),
        {"type": "web_search"},
        {"type": "image_generation"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "mcp", "server_label": "x", "server_url": "https://example.com"},
        {"type": "local_shell"},
        {"type": "namespace", "name": "mcp__math", "description": "Math.", "tools": [add_tool()]},
        {"type": "custom", "name": "note", "description": "Notes a text.", "format": {"type": "text"}},
    ]);
    let more = |choice: Value| {
        json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false,
               "reasoning": {"effort": "none"}, "max_output_tokens": 200})
    };
    let call = |choice: Value| {
        let request = with(ask("Add 3 and 4."), &more(choice));
        let server = &server;
        async move {
            let response = server.ok(RESPONSES, &request).await;
            response["output"].as_array().unwrap().last().unwrap().clone()
        }
    };
    let plain = call(json!({"type": "function", "name": "add"})).await;
    assert_eq!((&plain["type"], &plain["name"]), (&json!("function_call"), &json!("add")));
    assert!(plain.get("namespace").is_none());
    let arguments: Value = serde_json::from_str(plain["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["a"].is_i64() && arguments["b"].is_i64(), "{arguments}");
    let nested = call(json!({"type": "function", "namespace": "mcp__math", "name": "add"})).await;
    assert_eq!((&nested["namespace"], &nested["name"]), (&json!("mcp__math"), &json!("add")));
    let custom = call(json!({"type": "custom", "name": "note"})).await;
    assert_eq!((&custom["type"], &custom["name"]), (&json!("custom_tool_call"), &json!("note")));
    assert!(custom["input"].is_string() && custom["call_id"].is_string());
    let allowed = json!({"type": "allowed_tools", "mode": "required",
                         "tools": [{"type": "function", "name": "add"}]});
    assert_eq!(call(allowed).await["name"], "add");
    assert_eq!(call(json!("none")).await["type"], "message");
}

#[tokio::test(flavor = "multi_thread")]
async fn formats_and_log_probabilities() {
    let server = TestServer::start(Setup::default());
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["color"],
                        "properties": {"color": {"enum": ["red", "green"]}}});
    let format = json!({"type": "json_schema", "name": "c", "strict": true, "schema": schema});
    let more = json!({"text": {"format": format}, "reasoning": {"effort": "low"}});
    let response = server.ok(RESPONSES, &with(ask("Which color?"), &more)).await;
    let text = response["output"].as_array().unwrap().last().unwrap()["content"][0]["text"].clone();
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!(["red", "green"].contains(&value["color"].as_str().unwrap()));
    assert_eq!(response["text"]["format"], format);

    let more = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2,
                      "reasoning": {"effort": "none"}});
    let response = server.ok(RESPONSES, &with(ask("12 + 30 = ?"), &more)).await;
    let part = &response["output"][0]["content"][0];
    let tokens = part["logprobs"].as_array().unwrap();
    let joined: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(part["text"], joined);
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
}
