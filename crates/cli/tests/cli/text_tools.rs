//! `tokenize`, `detokenize`, `render`.

use crate::support::{TEXT_FILES, arg, demo_with, error, ok, ok_json, run};
use serde_json::json;
use std::fs;

#[test]
fn text_becomes_ids_and_back_without_weights() {
    let dir = demo_with(&TEXT_FILES);
    let model = ["--model", arg(dir.path())];
    for text in ["12 + 30 = ?", " naïve 🙂 \n\ttabs\n", "<|im_end|> </think>", ""] {
        let tokenized = ok_json(&[&["tokenize", "--json"], &model[..]].concat(), text);
        assert!(tokenized["ids"].is_array());
        let back = ok(&[&["detokenize"], &model[..]].concat(), &tokenized.to_string());
        assert_eq!(back, text);
        let plain = ok(&[&["tokenize"], &model[..]].concat(), text);
        let json = ok_json(&[&["detokenize", "--json"], &model[..]].concat(), &plain);
        assert_eq!(json, json!({ "text": text }));
    }
    let file = dir.path().join("text");
    fs::write(&file, "12 + 30 = ?").unwrap();
    let from_file = ok(&[&["tokenize", arg(&file)], &model[..]].concat(), "");
    assert_eq!(from_file, ok(&[&["tokenize"], &model[..]].concat(), "12 + 30 = ?"));
}

#[test]
fn control_tokens_are_text_unless_asked_for() {
    let text = ok_json(&["tokenize", "--json"], "<|im_end|>");
    assert!(text["ids"].as_array().unwrap().len() > 1, "{text}");
    let token = ok_json(&["tokenize", "--json", "--special"], "<|im_end|>");
    assert_eq!(token["ids"].as_array().unwrap().len(), 1, "{token}");
    assert_eq!(ok(&["detokenize"], &token.to_string()), "<|im_end|>");
    assert_eq!(ok(&["detokenize", "--skip-special"], &token.to_string()), "");
}

#[test]
fn messages_are_rendered_with_the_checkpoints_template() {
    let messages = r#"[{"role": "user", "content": "hi <|im_end|>"}]"#;
    let rendered = ok_json(&["render", "--json"], messages);
    let text = rendered["text"].as_str().unwrap();
    assert_eq!(text, "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n");
    assert_eq!(ok(&["render"], messages), text);
    // The user's own marker is no control token.
    let end = ok_json(&["tokenize", "--special", "--json"], "<|im_end|>")["ids"][0].clone();
    let ids = rendered["ids"].as_array().unwrap();
    assert_eq!(ids.iter().filter(|&id| *id == end).count(), 1, "{rendered}");

    assert!(ok(&["render", "--no-think"], messages).ends_with("<think>\n\n</think>\n\n"));
    assert!(ok(&["render", "--no-generation-prompt"], messages).ends_with("<|im_end|>\n"));

    let history = r#"{"messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "because"},
        {"role": "user", "content": "c"}],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": {}}}]}"#;
    let text = ok(&["render"], history);
    assert!(!text.contains("because") && text.contains("\"clock\""), "{text}");
    assert!(ok(&["render", "--preserve-thinking"], history).contains("because"));
}

#[test]
fn settings_of_a_request_are_followed_and_unknown_ones_named() {
    let request = r#"{"messages": [{"role": "user", "content": "hi"}], "enable_thinking": false,
        "temprature": 1}"#;
    let output = run(&["render"], request);
    assert!(output.out.ends_with("<think>\n\n</think>\n\n"), "{output:?}");
    assert!(output.err.contains("not used: \"temprature\""), "{output:?}");
    assert!(ok(&["render", "--think"], request).ends_with("<think>\n"));
    let closed = request.replace("enable_thinking", "add_generation_prompt");
    assert!(ok(&["render"], &closed).ends_with("<|im_end|>\n"));
}

#[test]
fn a_system_message_in_the_middle_is_repaired() {
    let messages = r#"[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]"#;
    assert!(ok(&["render"], messages).contains("a\n\n<system-reminder>\nb\n</system-reminder>"));
}

#[test]
fn wrong_ids_and_messages_are_named() {
    for (args, stdin, words) in [
        (vec!["detokenize"], "1 two", "\"two\" is not a token id"),
        (vec!["detokenize"], "{\"ids\": [4096]}", "id 4096 (number 0) is not below 4096"),
        (vec!["render"], "[", "standard input is not JSON"),
        (vec!["render"], "[]", "the list of messages is empty"),
        (vec!["render"], "{\"tools\": []}", "no \"messages\""),
        (vec!["render"], "{\"messages\": 3}", "not a list"),
        (vec!["render"], "7", "expected a list of messages"),
        (vec!["render"], "[{\"role\": \"wizard\", \"content\": \"x\"}]", "message 0"),
        (
            vec!["render"],
            "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": 1}]}]",
            "image_url",
        ),
        (
            vec!["render", "--tools", "/none"],
            "[{\"role\": \"user\", \"content\": \"x\"}]",
            "cannot read /none",
        ),
        (vec!["render"], "[{\"role\": \"user\", \"contents\": \"x\"}]", "keys are role, contents"),
        (vec!["tokenize", "/none"], "", "cannot read /none"),
    ] {
        let message = error(&args, stdin);
        assert!(message.contains(words), "{args:?} {stdin}: {message}");
    }
}
