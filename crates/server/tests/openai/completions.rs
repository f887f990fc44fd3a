//! Prompts that are continued as they are.

use crate::common::{Setup, TestServer, json_events};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const PROMPT: &str = "<|im_start|>user\nWhat is the capital of Peru?<|im_end|>\n<|im_start|>assistant\n\
                      <think>\n\n</think>\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn texts_and_tokens_are_continued_alike() {
    let server = TestServer::start(Setup::default());
    let request = json!({"model": "x", "prompt": PROMPT, "temperature": 0, "max_tokens": 20});
    let answer = server.ok(COMPLETIONS, &request).await;
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["text"], "The capital of Peru is Lima.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let tokens = server.ok("/tokenize", &json!({"prompt": PROMPT, "parse_special": true})).await;
    for prompt in [tokens["tokens"].clone(), json!([tokens["tokens"]]), json!([PROMPT])] {
        let mut request = request.clone();
        request["prompt"] = prompt;
        let same = server.ok(COMPLETIONS, &request).await;
        assert_eq!(same["choices"], answer["choices"]);
    }
    let mut request = request.clone();
    request["echo"] = json!(true);
    request["stop"] = json!([" Lima"]);
    let echoed = server.ok(COMPLETIONS, &request).await;
    assert_eq!(echoed["choices"][0]["text"], format!("{PROMPT}The capital of Peru is"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_joins_to_the_whole_and_has_log_probabilities() {
    let server = TestServer::start(Setup::default());
    let mut request =
        json!({"model": "x", "prompt": PROMPT, "temperature": 0, "max_tokens": 20, "logprobs": 2});
    let whole = server.ok(COMPLETIONS, &request).await;
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let events = server.events(COMPLETIONS, &request).await;
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let chunks = json_events(&events);
    let text: String =
        chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(whole["choices"][0]["text"], text);
    let logprobs = &whole["choices"][0]["logprobs"];
    let list = |field: &str| -> Vec<Value> {
        let of = |chunk: &Value| chunk["choices"][0]["logprobs"][field].as_array().cloned();
        chunks.iter().filter_map(of).flatten().collect()
    };
    for field in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        assert_eq!(logprobs[field], json!(list(field)), "{field}");
    }
    assert_eq!(list("tokens").iter().map(|t| t.as_str().unwrap()).collect::<String>(), text);
    assert_eq!(
        chunks.last().unwrap()["usage"]["completion_tokens"],
        whole["usage"]["completion_tokens"]
    );
}
