//! Runs the program, and makes checkpoints to run it on.

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The demo checkpoint.
pub(crate) fn demo() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a workspace");
    root.join("demo")
}

/// The program, away from the user's models, history and settings.
pub(crate) fn calla(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_calla"));
    for name in [
        "CALLA_DEVICE",
        "CALLA_MODEL",
        "CALLA_LOG",
        "HF_HOME",
        "HF_HUB_CACHE",
        "NO_COLOR",
        "CLICOLOR_FORCE",
    ] {
        command.env_remove(name);
    }
    // Whatever this machine has.
    command.env("CALLA_DEVICE", "cpu");
    command.env("HOME", "/nonexistent").env("XDG_STATE_HOME", "/nonexistent").args(args);
    command
}

/// What a run printed and how it ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) status: Option<i32>,
}

/// Runs the program with some standard input.
pub(crate) fn run(args: &[&str], stdin: &str) -> Output {
    finish(calla(args).write_stdin(stdin))
}

/// Runs a prepared command.
pub(crate) fn finish(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    Output {
        out: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        err: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
        status: output.status.code(),
    }
}

/// Runs a command that must succeed: its standard output.
pub(crate) fn ok(args: &[&str], stdin: &str) -> String {
    let output = run(args, stdin);
    assert_eq!(output.status, Some(0), "{args:?}: {}", output.err);
    output.out
}

/// Runs a command that must succeed and print one line of JSON.
pub(crate) fn ok_json(args: &[&str], stdin: &str) -> Value {
    let out = ok(args, stdin);
    assert_eq!(out.trim_end().lines().count(), 1, "{out}");
    serde_json::from_str(&out).expect("JSON")
}

/// Runs a command that must fail with one line "error: ..." and status 1: that line.
pub(crate) fn error(args: &[&str], stdin: &str) -> String {
    let output = run(args, stdin);
    assert_eq!(output.status, Some(1), "{args:?}: {output:?}");
    let lines: Vec<&str> = output.err.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "{}", output.err);
    assert!(!output.err.contains("has a bug"), "{}", output.err);
    lines[0].to_owned()
}

/// A directory with some of the demo's files.
pub(crate) fn demo_with(files: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for file in files {
        fs::copy(demo().join(file), dir.path().join(file)).expect("a copy");
    }
    dir
}

/// Files that suffice for text.
pub(crate) const TEXT_FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// A path as an argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}
