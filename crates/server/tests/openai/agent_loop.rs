//! An agent at work: its history only grows, so only what is new is computed.

use crate::chat::{CHAT, add_tool};
use crate::common::{Setup, TestServer};
use serde_json::{Value, json};

/// A system prompt as agents have them: long, with a line at its head that changes with each request.
fn system(request: usize) -> String {
    let rules: String =
        (0..40).map(|i| format!("Rule {i}: answer question {i} with care.\n")).collect();
    format!(
        "x-anthropic-billing-header: cc_version=2.1.{request}; cc_entrypoint=cli; cch={request:05x};\n{rules}"
    )
}

/// Ten turns of a question, a forced call, its result, a late reminder, and an answer. Gives prompt tokens,
/// reused tokens and miss reason of each of the twenty requests.
async fn run(server: &TestServer, preserve: bool, as_string: bool) -> Vec<(u64, u64, Value)> {
    let mut history: Vec<Value> = vec![];
    let mut counts = vec![];
    for turn in 0..10 {
        history.push(json!({"role": "user", "content": format!("What is {turn} + 3?  ")}));
        for choice in ["required", "none"] {
            let mut messages = vec![json!({"role": "system", "content": system(counts.len())})];
            messages.extend(history.iter().cloned());
            let request = json!({
                "model": "agent", "temperature": 0, "messages": messages, "tools": [add_tool()],
                "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 60,
                "preserve_thinking": preserve, "thinking_budget": 16,
            });
            let answer = server.ok(CHAT, &request).await;
            let usage = &answer["usage"];
            counts.push((
                usage["prompt_tokens"].as_u64().unwrap(),
                usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
                answer["cache"]["miss"].clone(),
            ));
            let mut message = answer["choices"][0]["message"].clone();
            let call = message["tool_calls"][0].clone();
            if let (false, Some(arguments)) = (as_string, call["function"]["arguments"].as_str()) {
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                message["tool_calls"][0]["function"]["arguments"] = arguments;
            }
            history.push(message);
            if choice == "required" {
                let id = &call["id"];
                assert!(id.is_string(), "{answer}");
                history.push(
                    json!({"role": "tool", "tool_call_id": id, "content": format!("{}", turn + 3)}),
                );
                history.push(json!({"role": "system", "content": format!("{} tokens are left", 9000 - turn)}));
            }
        }
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_history_computes_what_is_new() {
    let server = TestServer::start(Setup { context: 16_384, ..Setup::default() });
    for as_string in [true, false] {
        let counts = run(&server, true, as_string).await;
        for (step, pair) in counts.windows(2).enumerate() {
            let ((before, ..), (prompt, reused, _)) = (&pair[0], &pair[1]);
            assert!(prompt > before);
            assert!(
                reused + 8 >= *before,
                "request {}: {reused} of {prompt} tokens reused, but {before} were the last prompt's: {counts:?}",
                step + 1
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_template_drops_thinking_the_last_turn_is_computed_again() {
    let server = TestServer::start(Setup { context: 16_384, ..Setup::default() });
    let counts = run(&server, false, true).await;
    // A question's first request drops the thinking since the question before it: no more than that turn is
    // computed again, 200 tokens at most.
    for (step, pair) in counts.windows(2).enumerate() {
        let ((before, ..), (_, reused, miss)) = (&pair[0], &pair[1]);
        assert!(reused + 200 >= *before, "request {}: {reused} of {before}: {counts:?}", step + 1);
        assert_ne!(miss, "cold", "request {}: {counts:?}", step + 1);
    }
}
