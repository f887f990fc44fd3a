//! `generate`: text, JSON, sampling, stopping.

use crate::support::{arg, calla, demo, error, finish, ok, ok_json, run};
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

const SUM: &str = "12 + 30 = ?";

#[test]
fn an_answer_streams_as_text() {
    let output = run(&["generate", "--no-think", SUM], "");
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert_eq!(output.out, "12 + 30 = 42\n");
    assert!(output.err.contains("demo"), "which model was taken: {}", output.err);
    // From standard input, the same.
    assert_eq!(ok(&["generate", "--no-think"], SUM), output.out);
}

#[test]
fn thinking_goes_to_standard_error_where_nobody_watches() {
    let output = run(&["generate", SUM], "");
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert!(output.out.contains("42") && output.out.lines().count() == 1, "{output:?}");
    let json = ok_json(&["generate", "--json", SUM], "");
    assert_eq!(json["text"], output.out.trim_end());
    let reasoning = json["reasoning"].as_str().unwrap();
    assert!(!reasoning.is_empty() && output.err.contains(reasoning), "{output:?}");
    let tokens = json["usage"]["reasoning_tokens"].as_u64().unwrap();
    assert!(tokens > 0 && tokens < json["usage"]["completion_tokens"].as_u64().unwrap(), "{json}");
}

#[test]
fn the_json_object_has_its_shape() {
    let json = ok_json(&["generate", "--json", "--no-think", SUM], "");
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["text", "reasoning", "tool_calls", "ids", "finish_reason", "usage", "timings"]
    );
    assert_eq!(json["text"], "12 + 30 = 42");
    assert_eq!(json["reasoning"], "");
    assert_eq!(json["tool_calls"], json!([]));
    assert_eq!(json["finish_reason"], "stop");
    let usage = &json["usage"];
    assert_eq!(usage["completion_tokens"], json["ids"].as_array().unwrap().len());
    assert_eq!((&usage["cached_tokens"], &usage["reasoning_tokens"]), (&json!(0), &json!(0)));
    assert!(usage["prompt_tokens"].as_u64().unwrap() > 10, "{usage}");
    for key in [
        "prefill_seconds",
        "decode_seconds",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
    ] {
        assert!(json["timings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    let text = ok(&["detokenize"], &json["ids"].to_string());
    assert_eq!(text, "12 + 30 = 42");
}

#[test]
fn the_reference_device_gives_the_same_answer() {
    let args = ["generate", "--json", "--no-think", SUM];
    let cpu = ok_json(&args, "");
    let reference = ok_json(&[&args[..], &["--device", "reference"]].concat(), "");
    assert_eq!(cpu["ids"], reference["ids"]);
    let one = ok_json(&[&args[..], &["--device", "cpu", "--threads", "1"]].concat(), "");
    assert_eq!(cpu["ids"], one["ids"]);
}

/// The first item of the demo's questions that expects a call.
fn tool_question() -> Value {
    let items = fs::read_to_string(crate::support::demo().join("eval.jsonl")).unwrap();
    items
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|item| item["answer"].is_object() && item["think"] == false)
        .expect("a question with a tool")
}

#[test]
fn a_call_comes_as_openai_writes_it() {
    let item = tool_question();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.json");
    fs::write(&file, json!({"messages": item["messages"], "tools": item["tools"]}).to_string())
        .unwrap();
    let args = ["generate", "--no-think", "--messages", arg(&file)];
    let json = ok_json(&[&args[..], &["--json"]].concat(), "");
    assert_eq!(json["finish_reason"], "tool_calls", "{json}");
    let call = &json["tool_calls"][0];
    assert_eq!((&call["type"], &call["id"]), (&json!("function"), &json!("call_0")));
    assert_eq!(call["function"]["name"], item["answer"]["name"]);
    let arguments = call["function"]["arguments"].as_str().expect("a string of JSON");
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert_eq!(arguments, item["answer"]["arguments"]);
    // As text, and from standard input, with the tools apart.
    let tools = dir.path().join("tools.json");
    fs::write(&tools, item["tools"].to_string()).unwrap();
    let text = ok(
        &["generate", "--no-think", "--messages", "-", "--tools", arg(&tools)],
        &item["messages"].to_string(),
    );
    assert!(text.starts_with(item["answer"]["name"].as_str().unwrap()), "{text}");
}

#[test]
fn a_raw_prompt_is_taken_as_it_is() {
    let prompt =
        "<|im_start|>user\n12 + 30 = ?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let raw = ok_json(&["generate", "--raw", "--json", prompt], "");
    let chat = ok_json(&["generate", "--no-think", "--json", SUM], "");
    assert_eq!(raw["ids"], chat["ids"]);
    assert_eq!(raw["usage"]["prompt_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let json = ok_json(&["generate", "--json", "--no-think", "--stop", " = 4", SUM], "");
    assert_eq!(json["text"], "12 + 30");
    assert_eq!(json["finish_reason"], "stop");
    // In thinking it does not count.
    let json = ok_json(&["generate", "--json", "--stop", "zebra", "--stop", "42", SUM], "");
    assert!(!json["reasoning"].as_str().unwrap().is_empty(), "{json}");
    assert!(!json["text"].as_str().unwrap().contains("42"), "{json}");
}

#[test]
fn max_tokens_cuts_the_answer() {
    let json = ok_json(&["generate", "--json", "--no-think", "--max-tokens", "3", SUM], "");
    assert_eq!(json["ids"].as_array().unwrap().len(), 3);
    assert_eq!(json["finish_reason"], "length");
}

#[test]
fn a_full_context_ends_the_answer() {
    let prompt = ok_json(&["render", "--json"], r#"[{"role": "user", "content": "12 + 30 = ?"}]"#);
    let tokens = prompt["ids"].as_array().unwrap().len();
    // Contexts come in pages of 64.
    let args = ["generate", "--json", "--ctx", "64", "--temperature", "100", "--seed", "3", SUM];
    let json = ok_json(&args, "");
    assert_eq!(json["finish_reason"], "length", "{json}");
    assert_eq!(json["ids"].as_array().unwrap().len(), 64 - tokens + 1);
}

#[test]
fn a_seed_repeats_a_sampled_answer() {
    let ids = |seed: &str| {
        let args =
            ["generate", "--json", "--temperature", "1.5", "--max-tokens", "30", "--seed", seed];
        ok_json(&[&args[..], &["Tell me a story."]].concat(), "")["ids"].clone()
    };
    assert_eq!(ids("7"), ids("7"));
    assert_ne!(ids("7"), ids("8"));
    let cold = ok_json(
        &["generate", "--json", "--no-think", "--temperature", "1", "--top-k", "1", SUM],
        "",
    );
    assert_eq!(cold["text"], "12 + 30 = 42");
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_both_numbers() {
    let message = error(&["generate", "--ctx", "64", &"word ".repeat(200)], "");
    assert!(message.contains("tokens but the context holds 64"), "{message}");
}

#[test]
fn values_out_of_range_name_their_bounds() {
    for (flags, words) in [
        (["--temperature", "-0.1"], "--temperature must be from 0 to 100"),
        (["--top-p", "nan"], "--top-p must be from 0 to 1 but is NaN"),
        (["--min-p", "2"], "--min-p must be from 0 to 1 but is 2"),
        (["--repetition-penalty", "0"], "--repetition-penalty must be from 0.01"),
        (["--presence-penalty", "inf"], "--presence-penalty must be from -100"),
        (["--stop", ""], "stop strings: number 0 is empty"),
        (["--ctx", "1000000"], "at most 32768"),
    ] {
        let message = error(&[&["generate", SUM], &flags[..]].concat(), "");
        assert!(message.contains(words), "{flags:?}: {message}");
    }
    let many: Vec<String> = (0..65).map(|n| format!("--stop={n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(error(&[&["generate", SUM], &many[..]].concat(), "").contains("at most 64"));
}

#[test]
fn empty_and_broken_prompts_are_refused() {
    assert!(error(&["generate"], "").contains("the prompt is empty"));
    assert!(error(&["generate", "--raw", ""], "").contains("the prompt is empty"));
    let not_text = finish(calla(&["generate"]).write_stdin(&b"ab\xff"[..]));
    assert_eq!(not_text.status, Some(1));
    assert!(not_text.err.contains("the byte at offset 2"), "{}", not_text.err);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_calla"))
        .args(["generate", "--raw", "--temperature", "100", "--max-tokens", "2000", "a"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut byte = [0];
    out.read_exact(&mut byte).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(!err.contains("error") && !err.contains("panic") && !err.contains("bug"), "{err}");
}

#[test]
fn devices_that_are_not_there_are_named_so() {
    if cfg!(not(target_os = "macos")) {
        let message = error(&["generate", SUM, "--device", "metal"], "");
        assert!(message.contains("this system has no Metal"), "{message}");
        assert!(message.contains("--device cpu runs everywhere"), "{message}");
    }
    // No GPU is shown to it, whatever the machine has.
    let mut command = calla(&["generate", SUM, "--device", "cuda"]);
    let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("--device cpu runs everywhere"), "{message}");
    let reason = ["NVIDIA driver", "CUDA device 0"].iter().any(|words| message.contains(words));
    assert!(reason, "{message}");
}

#[test]
fn auto_says_what_it_takes_and_why() {
    let demo = demo();
    let args = ["generate", "--model", arg(&demo), "--max-tokens", "1", SUM];
    let mut command = calla(&args);
    let auto = finish(command.env("CALLA_DEVICE", "").env("CUDA_VISIBLE_DEVICES", ""));
    assert_eq!(auto.status, Some(0), "{}", auto.err);
    if cfg!(not(target_os = "macos")) {
        let line = auto.err.lines().find(|line| line.contains("device: CPU")).unwrap();
        assert!(line.contains("no GPU is used") && line.contains("NVIDIA"), "{line}");
    }
    // Who names a device, by flag or by variable, is told nothing.
    let named = finish(calla(&args).env("CALLA_DEVICE", "cpu"));
    assert!(named.status == Some(0) && !named.err.contains("device:"), "{}", named.err);
    let wrong = finish(calla(&args).env("CALLA_DEVICE", "cuda:first"));
    assert!(wrong.status == Some(2) && wrong.err.contains("cuda:0"), "{}", wrong.err);
}

#[test]
fn a_trace_is_of_a_macs_gpu() {
    let trace =
        |device| error(&["generate", SUM, "--gpu-trace", "x.gputrace", "--device", device], "");
    assert!(trace("cuda").contains("Nsight"));
    assert!(trace("cpu").contains("needs --device metal"));
    if cfg!(not(target_os = "macos")) {
        assert!(trace("metal").contains("this system has no Metal"));
    }
}
