//! Directories and files that are not as they should be.

use crate::support::{TEXT_FILES, arg, calla, demo, demo_with, error, finish};
use std::fs;

const ALL: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
];

/// The demo without a file.
fn without(file: &str) -> tempfile::TempDir {
    let files: Vec<&str> = ALL.into_iter().filter(|f| *f != file).collect();
    demo_with(&files)
}

fn generate(dir: &tempfile::TempDir) -> String {
    error(&["generate", "--no-think", "--model", arg(dir.path()), "1 + 1 = ?"], "")
}

#[test]
fn a_missing_file_is_named() {
    for (file, words) in [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer.json"),
        ("chat_template.jinja", "chat_template"),
        ("model.safetensors", "holds no weights"),
    ] {
        let message = generate(&without(file));
        assert!(message.contains(words), "{file}: {message}");
    }
}

#[test]
fn optional_files_are_optional() {
    // The end-of-turn token then comes from tokenizer_config.json.
    let dir = without("generation_config.json");
    let args = ["generate", "--no-think", "--model", arg(dir.path()), "1 + 1 = ?"];
    assert!(crate::support::ok(&args, "").contains('2'));
}

#[test]
fn a_broken_file_is_named() {
    for (file, contents) in [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", "{\"model_type\": \"gpt2\"}"),
        ("generation_config.json", "{\"temperature\": \"hot\"}"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "\u{0}"),
        ("tokenizer_config.json", "[1"),
        ("chat_template.jinja", "{% if %}"),
        ("chat_template.jinja", "{{ raise_exception('no') }}"),
        ("chat_template.jinja", "{% for i in range(100000000) %}x{% endfor %}"),
        ("model.safetensors", ""),
        ("model.safetensors", "\u{1}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}{"),
    ] {
        let dir = demo_with(&ALL);
        fs::write(dir.path().join(file), contents).unwrap();
        let message = generate(&dir);
        let name = file.split('.').next().unwrap().replace('_', " ");
        let known = message.contains(file) || message.contains(&name);
        assert!(known, "{file} {contents:?}: {message}");
    }
}

#[test]
fn a_file_or_nothing_is_no_directory() {
    let demo = demo();
    let file = demo.join("config.json");
    assert!(error(&["generate", "--model", arg(&file), "x"], "").contains("not a directory"));
    assert!(error(&["generate", "--model", "/none", "x"], "").contains("/none"));
    assert!(error(&["tokenize", "--model", "/none"], "x").contains("/none"));
}

#[test]
fn a_cut_download_is_refused() {
    let dir = demo_with(&TEXT_FILES);
    let bytes = fs::read(demo().join("model.safetensors")).unwrap();
    fs::write(dir.path().join("model.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
    assert!(generate(&dir).contains("model.safetensors"));
}

#[test]
fn a_tokenizer_larger_than_the_model_is_refused() {
    let dir = demo_with(&ALL);
    let made = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(demo().join("config.json")).unwrap();
    let small = config.replace("\"vocab_size\": 4096", "\"vocab_size\": 777");
    assert_ne!(small, config);
    let file = dir.path().join("small.json");
    fs::write(&file, small).unwrap();
    let out = made.path().join("out");
    let demo = demo();
    let args = ["synth", "--shape", arg(&file), "--tokenizer", arg(&demo), arg(&out)];
    crate::support::ok(&args, "");
    let message = error(&["generate", "--model", arg(&out), "x"], "");
    assert!(message.contains("4096 ids but the model only 777"), "{message}");
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let out = dir.path().join("out");
    for path in [arg(&pipe), "/dev/zero"] {
        let message = error(&["synth", "--shape", path, arg(&out)], "");
        assert!(message.contains("not a regular file"), "{message}");
        let message = error(&["eval", "--goldens", path], "");
        assert!(message.contains("not a regular file"), "{message}");
    }
    assert!(!out.exists());
}

#[cfg(unix)]
#[test]
fn a_signal_ends_synth_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    // A gigabyte: still at work when the signal comes.
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_calla"))
        .args(["synth", "--shape", "full-1", arg(&out)])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while !fs::exists(out.join("model.safetensors.partial")).unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("stopped; what was written"), "{err}");
    assert!(!out.exists());
}

#[test]
fn a_bad_log_filter_is_refused() {
    assert!(error(&["tokenize", "--log", "a=b=c"], "x").contains("--log"));
    let quiet = finish(calla(&["tokenize", "--log", "off"]).write_stdin("x"));
    assert_eq!(quiet.status, Some(0));
    let loud =
        finish(calla(&["generate", "--no-think", "1 + 1 = ?"]).env("CALLA_LOG", "calla=info"));
    assert!(loud.err.contains("INFO"), "{}", loud.err);
    let both = ["tokenize", "-v"];
    let both = finish(calla(&both).env("CALLA_LOG", "off").write_stdin("x"));
    assert_eq!(both.status, Some(0), "{}", both.err);
    let loud = finish(&mut calla(&["generate", "--no-think", "1 + 1 = ?", "-v"]));
    assert!(loud.err.contains("INFO"), "{}", loud.err);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_calla"))
        .args(["tokenize", arg(&demo().join("config.json"))])
        .stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("cannot write to standard output"), "{err}");
}
