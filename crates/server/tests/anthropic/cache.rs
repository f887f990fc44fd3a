//! A coding agent's conversation: it only grows, so only what is new is computed.

use crate::common::{Setup, TestServer};
use crate::harness::{ask, reply, weather_tool};
use serde_json::{Value, json};

/// The tokens of the prompt, those that were reused, and the content of the reply.
async fn turn(server: &TestServer, request: &Value) -> (u64, u64, Value) {
    let message = reply(server, request).await;
    let tokens = |name: &str| message["usage"][name].as_u64().unwrap();
    let reused = tokens("cache_read_input_tokens");
    (tokens("input_tokens") + reused, reused, message["content"].clone())
}

/// What Claude Code sends with each step: a first system block that changes, marks for caches that move, and a
/// reminder behind the last result.
fn request(step: usize, history: &[Value], keep: &Value) -> Value {
    let rules: String =
        (0..30).map(|i| format!("Rule {i}: answer question {i} in one short line.\n")).collect();
    ask(
        "",
        &json!({
            "system": [
                {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1.{step}; cc_entrypoint=cli; cch={step:05x};")},
                {"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}},
            ],
            "tools": [weather_tool()],
            "thinking": {"type": "enabled", "budget_tokens": 200},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]},
            "messages": history,
        }),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_loop_computes_only_what_is_new() {
    let server = TestServer::start(Setup::default());
    let cities = ["Paris", "Rome", "Oslo", "Lima"];
    let mut history = vec![];
    let mut before = 0;
    for (step, city) in cities.into_iter().enumerate() {
        // A question, then a call and its result with a reminder behind it.
        let question = format!("What is the weather in {city}?");
        history.push(json!({"role": "user", "content": [
            {"type": "text", "text": question, "cache_control": {"type": "ephemeral"}},
        ]}));
        for half in 0..2 {
            let (prompt, reused, mut content) =
                turn(&server, &request(2 * step + half, &history, &json!("all"))).await;
            if before > 0 {
                // All of the prompt before, up to where the reply's turn began; what is new is short.
                assert!(reused + 10 >= before, "step {step}: {reused} of {before} reused");
                assert!(
                    prompt - reused < 120,
                    "step {step}: {} of {prompt} computed",
                    prompt - reused
                );
            }
            before = prompt;
            let blocks = content.as_array_mut().unwrap();
            if half == 0 && !blocks.iter().any(|block| block["type"] == "tool_use") {
                // Whatever a demo of this size says, the loop goes on with a call.
                let input = json!({"city": city});
                blocks.push(json!({"type": "tool_use", "id": format!("toolu_{step}"), "name": "get_weather", "input": input}));
            }
            let calls: Vec<Value> =
                blocks.iter().filter(|block| block["type"] == "tool_use").cloned().collect();
            history.push(json!({"role": "assistant", "content": content}));
            if half == 0 {
                let results: Vec<Value> = calls.iter().map(|call| {
                    json!({"type": "tool_result", "tool_use_id": call["id"], "content": "{\"temperature\": 9}"})
                }).collect();
                history.push(json!({"role": "user", "content": results}));
                history.push(
                    json!({"role": "system", "content": format!("Tokens left: {}", 9000 - step)}),
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_that_the_template_drops_costs_the_last_turn_at_most() {
    let server = TestServer::start(Setup::default());
    let mut history = vec![];
    for (step, question) in
        ["12 + 30 = ?", "20 + 21 = ?", "What is the capital of Kenya?", "7 + 8 = ?"]
            .into_iter()
            .enumerate()
    {
        history.push(json!({"role": "user", "content": question}));
        let (prompt, reused, content) = turn(&server, &request(step, &history, &json!(null))).await;
        if step > 0 {
            assert!(prompt - reused < 120, "step {step}: {} of {prompt} computed", prompt - reused);
        }
        history.push(json!({"role": "assistant", "content": content}));
    }
}
