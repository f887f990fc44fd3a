//! `plan`: what a step costs on a GPU, from config.json alone.

use crate::support::{arg, demo_with, error, ok, ok_json, run};
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

/// The published text model's config.json, as far as its shape goes, with some keys changed.
fn full_with(changes: &Value) -> TempDir {
    let mut config = json!({
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 248_320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "full_attention_interval": 4,
        "head_dim": 256,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "rope_parameters": {
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "rope_type": "default",
        },
        "quantization": {"group_size": 64, "bits": 4},
    });
    for (key, value) in changes.as_object().expect("changes") {
        config[key] = value.clone();
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("config.json"), config.to_string()).expect("a file");
    dir
}

fn full() -> TempDir {
    full_with(&json!({}))
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path}: {value}"))
}

#[test]
fn the_full_size_is_planned_from_its_config() {
    let dir = full();
    let args = ["plan", "--model", arg(dir.path()), "--context", "4096", "--chip", "h200"];
    let output = run(&[&args[..], &["--json"]].concat(), "");
    assert_eq!((output.status, output.err.as_str()), (Some(0), ""));
    let json: Value = serde_json::from_str(&output.out).unwrap();

    assert_eq!(json["context"], 4096);
    assert_eq!(json["decode"]["kernels"], 302);
    assert_eq!(json["decode"]["stages"], 262);
    assert_eq!((&json["decode"]["rows"], &json["prefill"]["rows"]), (&json!(1), &json!(256)));
    // 1.67 GB of weights, two times 64 MB of state, 84 MB of keys and values.
    let moved = number(&json, "/decode/bytes_read") + number(&json, "/decode/bytes_written");
    assert!((1.87e9..1.97e9).contains(&moved), "{moved}");
    // 4.9 GFLOP a row, and what tiles add.
    let flops = number(&json, "/prefill/flops");
    assert!((256.0 * 4.9e9..256.0 * 8e9).contains(&flops), "{flops}");
    assert!(number(&json, "/prefill/scratch_bytes") > number(&json, "/decode/scratch_bytes"));

    let parts = json["by_layer_type"].as_object().unwrap();
    let mut names: Vec<&str> = parts.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["attention", "delta_net", "embedding", "lm_head", "moe"]);
    for step in ["decode", "prefill"] {
        for key in ["kernels", "bytes_read", "bytes_written", "flops"] {
            let sum: u64 = parts.values().map(|part| part[step][key].as_u64().unwrap()).sum();
            assert_eq!(json[step][key], sum, "{step} {key}");
            assert!(sum > 0, "{step} {key}");
        }
        assert!(json[step]["stages"].as_u64() < json[step]["kernels"].as_u64(), "{step}");
    }

    let floor = &json["floor"];
    assert_eq!(floor["chip"], "h200");
    assert!(floor["source"].as_str().unwrap().contains("measured"));
    let tokens = number(floor, "/decode_tokens_per_s");
    assert!((2370.0..2385.0).contains(&tokens), "{tokens}");
    let bytes = number(floor, "/decode_bytes");
    assert!((tokens * bytes / number(floor, "/bandwidth_bytes_per_s") - 1.0).abs() < 1e-3);
    let plan = number(floor, "/decode_plan_tokens_per_s");
    assert!((0.95..1.01).contains(&(plan / tokens)), "{plan} of {tokens}");
    // 256 rows read all 19.2 GB of weights once, which takes longer than their arithmetic.
    let prefill = number(floor, "/prefill_tokens_per_s");
    let memory = 256.0 * 4.47e12 / number(floor, "/prefill_bytes");
    assert!((prefill / memory - 1.0).abs() < 1e-3, "{prefill} of {memory}");
    assert!(number(floor, "/prefill_flops") / 795e12 < 256.0 / memory);

    let text = ok(&args, "");
    for words in ["decode: one sequence", "302", "in 262 stages", "NVIDIA H200: 4470 GB/s, 795"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn long_slices_are_bound_by_arithmetic() {
    let dir = full();
    let args = ["plan", "--model", arg(dir.path()), "--rows", "4096", "--chip", "h200", "--json"];
    let json = ok_json(&args, "");
    let floor = &json["floor"];
    let tokens = number(floor, "/prefill_tokens_per_s");
    let arithmetic = 4096.0 * 795e12 / number(floor, "/prefill_flops");
    assert!((tokens / arithmetic - 1.0).abs() < 1e-3, "{tokens} of {arithmetic}");
}

#[test]
fn sequences_share_weights() {
    let dir = full();
    let plan = |sequences: &str, chip: &str| {
        let args = ["plan", "-m", arg(dir.path()), "--sequences", sequences, "--chip", chip];
        ok_json(&[&args[..], &["--json"]].concat(), "")
    };
    let (one, four) = (plan("1", "m5-max"), plan("4", "m5-max"));
    assert_eq!(four["decode"]["sequences"], 4);
    let ratio = number(&four, "/decode/bytes_read") / number(&one, "/decode/bytes_read");
    assert!((1.5..3.5).contains(&ratio), "{ratio}");
    assert_eq!(one["prefill"], four["prefill"]);
    // Nobody published a rate for Apple's GPUs, so that memory alone counts.
    assert!(one["floor"]["flops_per_s"].is_null());
    let tokens = number(&one, "/floor/decode_tokens_per_s");
    assert!((320.0..330.0).contains(&tokens), "{tokens}");
    assert!(number(&four, "/floor/decode_tokens_per_s") > tokens);
}

#[test]
fn defaults_follow_the_model() {
    let dir = full_with(&json!({"max_position_embeddings": 100}));
    let json = ok_json(&["plan", "--model", arg(dir.path()), "--json"], "");
    assert_eq!((&json["context"], &json["prefill"]["rows"]), (&json!(100), &json!(100)));
    assert!(json["floor"].is_null());

    let demo = demo_with(&["config.json"]);
    let text = ok(&["plan", "--model", arg(demo.path())], "");
    assert!(text.contains("256 rows that end at context 4096") && text.contains("--chip NAME"));
}

#[test]
fn another_format_is_said_to_be_counted_as_the_published_one() {
    let dir = full_with(&json!({"quantization": {"group_size": 64, "bits": 8}}));
    let output = run(&["plan", "--model", arg(dir.path())], "");
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert!(output.err.contains("published MLX 4-bit"), "{}", output.err);
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let dir = full();
    let plan = |args: &[&str]| error(&[&["plan", "--model", arg(dir.path())], args].concat(), "");
    let message = plan(&["--context", "262145"]);
    assert!(message.contains("at most 262144") && message.contains("262145"), "{message}");
    let message = plan(&["--context", "100", "--rows", "101"]);
    assert!(message.contains("at most 100") && message.contains("101"), "{message}");
    assert!(error(&["plan", "--model", "/nonexistent"], "").contains("/nonexistent"));

    // Shapes beyond the kernels.
    for (changes, words) in [
        (json!({"hidden_size": 2080}), ["hidden_size is 2080", "multiples of 64"]),
        (json!({"num_experts": 1024}), ["num_experts is 1024", "at most 512"]),
        (json!({"num_experts_per_tok": 17}), ["num_experts_per_tok is 17", "at most 16"]),
    ] {
        let dir = full_with(&changes);
        let message = error(&["plan", "--model", arg(dir.path())], "");
        for words in words.into_iter().chain(["--device cpu"]) {
            assert!(message.contains(words), "{words}: {message}");
        }
    }

    // Shapes that config.json may name and no machine can hold.
    let wide = json!({
        "num_hidden_layers": 1024,
        "vocab_size": 4096,
        "hidden_size": 1024,
        "num_attention_heads": 1024,
        "num_key_value_heads": 1024,
        "full_attention_interval": 1,
        "max_position_embeddings": 1 << 24,
    });
    let dir = full_with(&wide);
    let plan = |args: &[&str]| error(&[&["plan", "--model", arg(dir.path())], args].concat(), "");
    let message = plan(&["--context", "16777216", "--rows", "8192"]);
    assert!(message.contains("shorter --context"), "{message}");
    let message = plan(&["--context", "65000", "--rows", "8192"]);
    assert!(message.contains("fewer --rows"), "{message}");
}
