//! Which model is taken, and what is said of it.

use crate::support::{arg, calla, demo, demo_with, error, finish, ok_json, run};
use std::fs;

/// A line of text that costs little to tokenise.
const TEXT: &str = "12";

#[test]
fn the_demo_is_taken_where_nothing_else_is() {
    let output = run(&["tokenize"], TEXT);
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert_eq!(output.err.lines().count(), 1, "{}", output.err);
    assert!(output.err.contains("the demo: no full checkpoint found"), "{}", output.err);
}

#[test]
fn a_named_model_is_taken() {
    let demo = demo();
    let quiet = run(&["tokenize", "--model", arg(&demo)], TEXT);
    assert_eq!((quiet.status, quiet.err.as_str()), (Some(0), ""));
    let variable = finish(calla(&["tokenize"]).env("CALLA_MODEL", &demo).write_stdin(TEXT));
    assert!(variable.err.contains("named by CALLA_MODEL"), "{}", variable.err);
    let empty = finish(calla(&["tokenize"]).env("CALLA_MODEL", "").write_stdin(TEXT));
    assert!(empty.err.contains("the demo"), "{}", empty.err);
    let flag = finish(
        calla(&["tokenize", "--model", arg(&demo)]).env("CALLA_MODEL", "/none").write_stdin(TEXT),
    );
    assert_eq!(flag.status, Some(0), "{}", flag.err);
}

#[test]
fn a_checkpoint_in_a_usual_place_is_taken_before_the_demo() {
    let home = tempfile::tempdir().unwrap();
    let models = home.path().join(".calla/models");
    fs::create_dir_all(&models).unwrap();
    let files = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    ];
    let checkpoint = demo_with(&files);
    fs::rename(checkpoint.keep(), models.join("mine")).unwrap();
    let args = ["generate", "--no-think", "12 + 30 = ?"];
    let output = finish(calla(&args).env("HOME", home.path()));
    assert_eq!(output.out, "12 + 30 = 42\n", "{}", output.err);
    assert!(output.err.contains("found in ~/.calla/models"), "{}", output.err);

    // A broken one is not taken, and that is said.
    fs::write(models.join("mine/model.safetensors"), "short").unwrap();
    let output = finish(calla(&args).env("HOME", home.path()));
    assert_eq!(output.out, "12 + 30 = 42\n", "{}", output.err);
    assert!(
        output.err.contains("not taken") && output.err.contains("the demo, instead"),
        "{}",
        output.err
    );
    // Commands that need no weights go the same way.
    let output = finish(calla(&["tokenize"]).env("HOME", home.path()).write_stdin(TEXT));
    assert_eq!(output.status, Some(0), "{}", output.err);
    assert!(
        output.err.contains("not taken") && output.err.contains("the demo, instead"),
        "{}",
        output.err
    );
    // Unless it was named.
    let mine = models.join("mine");
    let output = run(&["generate", "--model", arg(&mine), "x"], "");
    assert_eq!(output.status, Some(1));
}

#[test]
fn a_model_beyond_the_memory_is_refused_with_numbers_and_an_alternative() {
    let dir = demo_with(&["config.json", "model.safetensors"]);
    let limit = &ok_json(&["info", "--json"], "")["machine"]["limit_bytes"];
    if limit.as_u64().unwrap() > 130_000_000_000 {
        println!(
            "skipped: this machine has more memory than any context of the demo's shape takes"
        );
        return;
    }
    // State for 16 million tokens takes 206 GB, a third of it for the draft layer.
    let config = fs::read_to_string(demo().join("config.json")).unwrap();
    let long = config
        .replace("\"max_position_embeddings\": 32768", "\"max_position_embeddings\": 16777216");
    assert_ne!(long, config);
    fs::write(dir.path().join("config.json"), long).unwrap();
    let args = ["generate", "--model", arg(dir.path()), "--ctx", "16777216", "x"];
    let message = error(&args, "");
    for words in
        ["does not fit", "206.", "this machine allows", "--ctx", "The demo fits", "--model"]
    {
        assert!(message.contains(words), "{words}: {message}");
    }
    // Without --ctx, the context is what fits.
    let info = ok_json(&["info", "--json", arg(dir.path())], "");
    assert_eq!(info["fits"], true);
    assert_eq!(info["memory"].as_array().unwrap().last().unwrap()["fits"], false);
}
