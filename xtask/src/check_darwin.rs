//! `cargo xtask check-darwin`: the code that only a Mac compiles, checked where there is no Mac.
//!
//! A check needs the standard library of the target and no linker, so rustup's target is enough. Programs in C are
//! not compiled (there are no headers of Apple's), so only crates without such can be checked.

use crate::report::{Outcome, cargo, run};
use anyhow::Result;
use std::process::Command;

/// The target of Macs with Apple's own processors.
const TARGET: &str = "aarch64-apple-darwin";

/// Crates with code for macOS alone, or for other systems alone that macOS has to do without. They depend on Rust only.
const CRATES: [&str; 2] = ["calla-gpu-metal", "calla-gpu-host"];

/// Checks the crates with clippy, tests included, and fails for every warning.
pub(crate) fn check() -> Result<Outcome> {
    if !has_target() {
        let reason = format!("needs the target {TARGET}; run `rustup target add {TARGET}` once");
        return Ok(Outcome::Skipped(reason));
    }
    let mut command = cargo();
    command.args(["clippy", "--target", TARGET, "--all-targets"]);
    for name in CRATES {
        command.args(["--package", name]);
    }
    run(command.args(["--", "-D", "warnings"]))?;
    Ok(Outcome::Passed(0))
}

/// Installs the target's standard library. Where rustup is not there, the check will be skipped with its reason.
pub(crate) fn install() -> Result<()> {
    if has_target() {
        println!("the target {TARGET} is there");
        return Ok(());
    }
    if run(Command::new("rustup").args(["target", "add", TARGET])).is_err() {
        println!("cannot add the target {TARGET}: macOS code will not be checked here");
    }
    Ok(())
}

/// Whether the compiler that cargo uses has the target's standard library.
fn has_target() -> bool {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(crate::root())
        .output();
    let Ok(output) = output else { return false };
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}
