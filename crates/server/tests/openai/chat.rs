//! Whole replies.

use crate::common::{Setup, TestServer};
use serde_json::{Value, json};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A greedy request of one question.
pub(crate) fn ask(question: &str) -> Value {
    json!({
        "model": "gpt-5",
        "temperature": 0,
        "messages": [{"role": "user", "content": question}],
    })
}

/// `request` with more fields.
pub(crate) fn with(mut request: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

pub(crate) fn add_tool() -> Value {
    json!({"type": "function", "function": {
        "name": "add", "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {
            "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
    }})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_under_the_name_that_was_asked_for() {
    let server = TestServer::start(Setup::default());
    let answer = server.ok(CHAT, &ask("12 + 30 = ?")).await;
    assert_eq!(answer["model"], "gpt-5");
    assert_eq!(answer["object"], "chat.completion");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "12 + 30 = 42");
    assert!(choice["message"]["reasoning_content"].as_str().unwrap().contains("42"));
    assert_eq!(choice["finish_reason"], "stop");
    let usage = &answer["usage"];
    let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap();
    assert_eq!(count("/total_tokens"), count("/prompt_tokens") + count("/completion_tokens"));
    assert!(count("/completion_tokens_details/reasoning_tokens") > 10);
    assert_eq!(answer["cache"]["miss"], "cold");

    // Once more: the same reply, from the cache.
    let again = server.ok(CHAT, &ask("12 + 30 = ?")).await;
    assert_eq!(again["choices"], answer["choices"]);
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);

    let no_thinking = [
        json!({"enable_thinking": false}),
        json!({"reasoning_effort": "none"}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ];
    for more in no_thinking {
        let answer = server.ok(CHAT, &with(ask("What is the capital of Peru?"), &more)).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], "The capital of Peru is Lima.", "{more}");
        assert_eq!(message.get("reasoning_content"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_end_a_reply_and_say_so() {
    let server = TestServer::start(Setup::default());
    let answer = server.ok(CHAT, &with(ask("12 + 30 = ?"), &json!({"max_tokens": 5}))).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    let budget = json!({"thinking_budget": 4});
    let answer = server.ok(CHAT, &with(ask("12 + 30 = ?"), &budget)).await;
    let reasoning = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert!(reasoning.as_u64().unwrap() <= 6, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let stop = json!({"stop": ["Peru is"], "enable_thinking": false});
    let answer = server.ok(CHAT, &with(ask("What is the capital of Peru?"), &stop)).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "The capital of ");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // Tokens up to the stop string count, and none that the engine made until it heard of it.
    let count = answer["usage"]["completion_tokens"].as_u64().unwrap();
    for (tokens, has_it) in [(count - 1, false), (count, true)] {
        let most = json!({"max_tokens": tokens, "enable_thinking": false});
        let answer = server.ok(CHAT, &with(ask("What is the capital of Peru?"), &most)).await;
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(text.contains("Peru is"), has_it, "{tokens} tokens: {text}");
    }
    server.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_replies_share_their_prompt() {
    let server = TestServer::start(Setup::default());
    let words: String = (0..60).map(|i| format!("Remember number {i}. ")).collect();
    let more =
        json!({"n": 3, "temperature": 1.0, "seed": 7, "enable_thinking": false, "max_tokens": 12});
    let request = with(ask(&format!("{words} What is the capital of Peru?")), &more);
    let answer = server.ok(CHAT, &request).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    let again = server.ok(CHAT, &request).await;
    assert_eq!(again["choices"], answer["choices"], "a seed gives the same replies");
    // The prompt was computed once: two of three lookups found most of it.
    let metrics = server.text("/metrics").await;
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let prompt = answer["usage"]["prompt_tokens"].as_f64().unwrap();
    let (asked, found) =
        (value("vllm:prefix_cache_queries_total"), value("vllm:prefix_cache_hits_total"));
    assert_eq!(asked, 6.0 * prompt);
    assert!(found > asked - prompt - 6.0 * 40.0, "{found} of {asked} tokens were reused");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_called_when_the_model_or_the_request_says_so() {
    let server = TestServer::start(Setup::default());
    let tools = json!({"tools": [add_tool()], "enable_thinking": false, "max_tokens": 200});
    let forced = [
        json!({"tool_choice": "required"}),
        json!({"tool_choice": {"type": "function", "function": {"name": "add"}}}),
    ];
    for choice in forced {
        let request = with(with(ask("What is the capital of Peru?"), &tools), &choice);
        let answer = server.ok(CHAT, &request).await;
        let reply = &answer["choices"][0];
        assert_eq!(reply["finish_reason"], "tool_calls", "{answer}");
        let call = &reply["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], "add");
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert!(arguments["a"].is_i64() && arguments["b"].is_i64(), "{arguments}");
    }
    // Where tokens run out inside of a call, nothing of it is an answer or a call, wherever that is.
    for max_tokens in 1..12 {
        let more = json!({"tool_choice": "required", "max_tokens": max_tokens});
        let request = with(with(ask("Add 3 and 4."), &tools), &more);
        let answer = server.ok(CHAT, &request).await;
        let reply = &answer["choices"][0];
        assert_eq!(reply["finish_reason"], "length", "{answer}");
        assert_eq!(reply["message"]["content"], "", "{answer}");
        assert_eq!(reply["message"].get("tool_calls"), None, "{answer}");
    }
    let none = json!({"tool_choice": "none"});
    let request = with(with(ask("Use the add tool for 3 and 4."), &tools), &none);
    let answer = server.ok(CHAT, &request).await;
    assert_eq!(answer["choices"][0]["message"].get("tool_calls"), None, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_has_the_form_that_was_asked_for() {
    let server = TestServer::start(Setup::default());
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["answer"],
        "properties": {"answer": {"type": "integer"}},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    for think in [false, true] {
        let more = json!({"response_format": format, "enable_thinking": think, "max_tokens": 300});
        let answer = server.ok(CHAT, &with(ask("12 + 30 = ?"), &more)).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let content: Value = serde_json::from_str(content).unwrap();
        assert!(content["answer"].is_i64(), "{answer}");
        let has_thought = answer["choices"][0]["message"].get("reasoning_content").is_some();
        assert_eq!(has_thought, think);
    }
    let more = json!({"regex": "(yes|no)", "enable_thinking": false});
    let answer = server.ok(CHAT, &with(ask("12 + 30 = ?"), &more)).await;
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(["yes", "no"].contains(&content), "{answer}");
    let more = json!({"grammar": "start: \"forty\" \"-two\"", "enable_thinking": false});
    let answer = server.ok(CHAT, &with(ask("12 + 30 = ?"), &more)).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "forty-two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_of_the_answer_leaves_tools_to_the_model() {
    let server = TestServer::start(Setup::default());
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["answer"],
        "properties": {"answer": {"type": "integer"}},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let more = json!({"response_format": format, "tools": [add_tool()], "max_tokens": 300});
    for question in ["12 + 30 = ?", "Use the add tool for 3 and 4."] {
        let answer = server.ok(CHAT, &with(ask(question), &more)).await;
        let message = &answer["choices"][0]["message"];
        match message["content"].as_str() {
            Some(content) if !content.is_empty() => {
                let content: Value = serde_json::from_str(content).unwrap();
                assert!(content["answer"].is_i64(), "{answer}");
                assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            }
            _ => assert_eq!(message["tool_calls"][0]["function"]["name"], "add", "{answer}"),
        }
    }
    let more = json!({"grammar": "start: \"a\"", "tools": [add_tool()]});
    let (status, error) = server.post(CHAT, &with(ask("hello"), &more)).await;
    assert_eq!(status, 400, "a Lark grammar cannot be joined with tools: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_are_those_of_the_answer() {
    let server = TestServer::start(Setup::default());
    let more = json!({"logprobs": true, "top_logprobs": 3});
    let answer = server.ok(CHAT, &with(ask("12 + 30 = ?"), &more)).await;
    let choice = &answer["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(choice["message"]["content"], text);
    for token in tokens {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"][0]["token"], token["token"], "greedy takes the first");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_and_tokens() {
    let server = TestServer::start(Setup::default());
    let (status, models) = server.get("/v1/models").await;
    assert_eq!((status, models["data"][0]["id"].as_str()), (200, Some("demo")));
    let (_, model) = server.get("/v1/models/openai/gpt-5").await;
    assert_eq!(model["id"], "openai/gpt-5");
    let text = "12 + 30 🙂 <|im_start|>";
    let tokens = server.ok("/tokenize", &json!({"prompt": text})).await;
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    let back = server.ok("/detokenize", &json!({"tokens": tokens["tokens"]})).await;
    assert_eq!(back["prompt"], text);
    let special = server.ok("/tokenize", &json!({"prompt": text, "parse_special": true})).await;
    assert!(special["count"].as_u64() < tokens["count"].as_u64());
    let messages = ask("12 + 30 = ?")["messages"].clone();
    let chat = server.ok("/tokenize", &json!({"messages": messages})).await;
    let answer = server.ok(CHAT, &ask("12 + 30 = ?")).await;
    assert_eq!(chat["count"], answer["usage"]["prompt_tokens"]);
    let (status, error) = server.post("/detokenize", &json!({"tokens": [999_999]})).await;
    assert_eq!((status, error["error"]["param"].as_str()), (400, Some("tokens[0]")));
}
