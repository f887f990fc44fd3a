//! `doctor`: its two forms, and its exit status.

use crate::support::{arg, demo, error, ok, ok_json};

#[test]
fn a_healthy_processor_is_reported_in_both_forms() {
    let text = ok(&["doctor", "--no-bench"], "");
    for part in ["## calla doctor", "- processor: ", "| cpu | linear |", "All is well."] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("### Speed") && !text.contains("/nonexistent"), "{text}");
    let demo = demo();
    let args = ["doctor", "--json", "--threads", "2", "--model", arg(&demo)];
    let json = ok_json(&args, "");
    assert_eq!(json["problems"].as_array().unwrap().len(), 0);
    let device = &json["devices"][0];
    assert!(device["kernels"].as_array().unwrap().len() > 20, "{device}");
    assert!(device["speed"]["Ok"]["read_bytes_per_s"].as_f64().unwrap() > 0.0, "{device}");
    assert!(json["model"]["decode_tokens_per_s"].as_f64().unwrap() > 0.0, "{json}");
    assert_eq!(json["model"]["prompt_tokens"], 512);
}

#[test]
fn what_is_wrong_ends_with_an_error() {
    if cfg!(not(target_os = "macos")) {
        let message = error(&["doctor", "--device", "metal", "--no-bench"], "");
        assert!(
            message.contains("one thing is wrong: metal: this system has no Metal"),
            "{message}"
        );
    }
    let message = error(&["doctor", "--device", "cpu", "--model", "/nonexistent/model"], "");
    assert!(message.contains("the model does not run"), "{message}");
    assert!(!message.contains("/nonexistent"), "{message}");
    error(&["doctor", "--device", "reference"], "");
}
