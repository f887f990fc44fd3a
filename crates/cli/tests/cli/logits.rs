//! `eval` and `synth`.

use crate::support::{arg, demo, error, ok, ok_json};
use std::fs;
use std::path::Path;

#[test]
fn the_demo_agrees_with_its_goldens() {
    let demo = demo();
    let goldens = demo.join("goldens.npz");
    let args = ["eval", "--model", arg(&demo), "--goldens", arg(&goldens)];
    let json = ok_json(&[&args[..], &["--json"]].concat(), "");
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "positions",
            "top1",
            "top1_margin",
            "kl_mean",
            "kl_max",
            "logprob_max_abs_diff",
            "perplexity",
            "perplexity_reference"
        ]
    );
    assert!(json["positions"].as_u64().unwrap() > 4000, "{json}");
    assert!(json["top1"].as_f64().unwrap() > 0.95, "{json}");
    assert!(json["kl_mean"].as_f64().unwrap() < 1e-3, "{json}");
}

#[test]
fn full_logits_are_read_too() {
    let tiny = demo().parent().unwrap().parent().unwrap().join("shared/tiny");
    let goldens = tiny.join("golden.npz");
    if !goldens.is_file() {
        println!("skipped: no checkpoint with full logits here");
        return;
    }
    let args = ["eval", "--model", arg(&tiny), "--goldens", arg(&goldens), "--device", "reference"];
    let text = ok(&args, "");
    assert!(text.contains("positions"), "{text}");
    let json = ok_json(&[&args[..], &["--json", "--margin", "0.001"]].concat(), "");
    assert_eq!(json["top1_margin"], 1.0, "{json}");
}

#[test]
fn bad_goldens_are_refused() {
    let demo = demo();
    let model = ["--model", arg(&demo)];
    for (file, words) in
        [("/nonexistent.npz", "/nonexistent.npz"), (arg(&demo.join("config.json")), "config.json")]
    {
        let message = error(&[&["eval", "--goldens", file], &model[..]].concat(), "");
        assert!(message.contains(words), "{message}");
    }
    let goldens = demo.join("goldens.npz");
    let args = ["eval", "--goldens", arg(&goldens), "--margin", "-1"];
    assert!(error(&args, "").contains("--margin must be"));
}

#[test]
fn a_random_checkpoint_loads_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let demo = demo();
    let made = dir.path().join("made");
    let text = ok(
        &[
            "synth",
            "--shape",
            "demo",
            "--seed",
            "5",
            "--skew",
            "1",
            "--mtp",
            "--tokenizer",
            arg(&demo),
            arg(&made),
        ],
        "",
    );
    assert!(text.contains("GB/s") && text.contains("1 file"), "{text}");
    let info = ok_json(&["info", "--json", "--verify", arg(&made)], "");
    assert_eq!(info["shape"], ok_json(&["info", "--json", arg(&demo)], "")["shape"]);
    let reply =
        ok_json(&["generate", "--json", "--model", arg(&made), "--max-tokens", "5", "hello"], "");
    assert!(!reply["ids"].as_array().unwrap().is_empty(), "{reply}");

    // The same seed gives the same bytes; a shape can come from a file.
    let again = dir.path().join("again");
    let config = demo.join("config.json");
    let args =
        ["synth", "--shape", arg(&config), "--seed", "5", "--skew", "1", "--mtp", arg(&again)];
    ok(&args, "");
    let bytes = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
    assert!(bytes(&made) == bytes(&again), "the same seed gave other bytes");

    let message = error(&["synth", "--shape", "demo", arg(&made)], "");
    assert!(message.contains("not empty"), "{message}");
    for (flags, words) in [
        (["--shape", "full-0"], "from 1 to 40"),
        (["--shape", "/none"], "cannot be read as a file"),
    ] {
        let message = error(&[&["synth"], &flags[..], &["/nonexistent/x"]].concat(), "");
        assert!(message.contains(words), "{message}");
    }
    let message = error(&["synth", "--shape", "demo", "--skew", "NaN", "/nonexistent/x"], "");
    assert!(message.contains("--skew must be"), "{message}");
}
