//! Agents at work: one that sends its whole history each time, as Codex does, and one that refers to the last
//! response. Both only append, so only what is new is computed.

use crate::common::{Setup, TestServer};
use crate::create::{RESPONSES, add_tool};
use serde_json::{Value, json};

/// Prompt tokens and reused tokens of a response.
fn counts(response: &Value) -> (u64, u64) {
    let usage = &response["usage"];
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64();
    (usage["input_tokens"].as_u64().unwrap(), cached.unwrap())
}

fn instructions() -> String {
    (0..40).map(|i| format!("Rule {i}: answer question {i} with care.\n")).collect()
}

fn request(input: &Value, choice: &str) -> Value {
    json!({
        "model": "gpt-5-codex", "temperature": 0, "input": input, "tools": [add_tool()], "tool_choice": choice,
        "parallel_tool_calls": false, "max_output_tokens": 60, "preserve_thinking": true,
        "thinking_budget": 16, "reasoning": {"summary": "auto"},
    })
}

fn results(response: &Value) -> Vec<Value> {
    let items = response["output"].as_array().unwrap().iter();
    let calls = items.filter(|item| item["type"] == "function_call");
    calls
        .map(|call| json!({"type": "function_call_output", "call_id": call["call_id"], "output": "42"}))
        .collect()
}

/// Each prompt holds the one before it, and that is not computed again.
fn check(counts: &[(u64, u64)]) {
    for (step, pair) in counts.windows(2).enumerate() {
        let ((before, _), (prompt, reused)) = (pair[0], pair[1]);
        assert!(prompt > before, "request {}: {counts:?}", step + 1);
        assert!(reused + 8 >= before, "request {}: {counts:?}", step + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_all_items_computes_what_is_new() {
    let server = TestServer::start(Setup { context: 16_384, ..Setup::default() });
    let mut history = vec![json!({"type": "message", "id": "msg_d", "role": "developer",
                                  "content": [{"type": "input_text", "text": instructions()}]})];
    let mut all = vec![];
    for turn in 0..4 {
        history.push(json!({"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": format!("What is {turn} + 3?")}]}));
        for choice in ["required", "none"] {
            let mut body = request(&json!(history), choice);
            body["store"] = false.into();
            body["include"] = json!(["reasoning.encrypted_content"]);
            let response = server.ok(RESPONSES, &body).await;
            all.push(counts(&response));
            let results = results(&response);
            assert_eq!(results.len(), usize::from(choice == "required"), "{response}");
            for item in response["output"].as_array().unwrap() {
                let mut item = item.clone();
                // Of thinking such a client may send back the sealed text alone.
                if item["type"] == "reasoning" {
                    item["summary"] = json!([]);
                }
                history.push(item);
            }
            history.extend(results);
        }
    }
    check(&all);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_refers_to_the_last_response_computes_what_is_new() {
    let server = TestServer::start(Setup { context: 16_384, ..Setup::default() });
    let (mut all, mut last, mut results_before) = (vec![], Value::Null, vec![]);
    for turn in 0..4 {
        for choice in ["required", "none"] {
            let mut input: Vec<Value> = std::mem::take(&mut results_before);
            if choice == "required" {
                input.push(json!({"role": "user", "content": format!("What is {turn} + 3?")}));
            }
            let mut body = request(&json!(input), choice);
            body["instructions"] = instructions().into();
            body["previous_response_id"] = last;
            let response = server.ok(RESPONSES, &body).await;
            all.push(counts(&response));
            results_before = results(&response);
            last = response["id"].clone();
        }
    }
    check(&all);
}
