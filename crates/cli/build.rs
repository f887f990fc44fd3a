//! Tells the program which commit it was built from.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    // Each commit, checkout and rebase adds a line to it.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    println!("cargo::rustc-env=CALLA_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}
