//! `cargo xtask check-darwin`: the code that only a Mac compiles, checked where there is no Mac.
//!
//! A check needs the standard library of the target and no linker, so rustup's target is enough. Libraries in C, which a
//! few crates bring, are not compiled (there are no headers of Apple's): what stands for the compiler writes empty files,
//! as nothing is linked that would read them. What calls Metal is linked too, as it has none of them ([`crate::link_darwin`]).

use crate::link_darwin::{Linker, compiler};
use crate::report::{Outcome, cargo, run};
use anyhow::{Context as _, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target of Macs with Apple's own processors.
pub(crate) const TARGET: &str = "aarch64-apple-darwin";

/// The program, and crates with code for macOS alone, or for other systems alone that macOS has to do without.
const CRATES: [&str; 6] =
    ["calla", "calla-gpu", "calla-gpu-metal", "calla-gpu-host", "calla-ops", "calla-runtime"];

/// Stands for a compiler of C: makes an empty file of what is to be written.
const COMPILER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
        -o) shift; : > "$1" ;;
        -o*) : > "${1#-o}" ;;
    esac
    shift
done
"#;

/// Stands for what makes a library of objects.
const ARCHIVER: &str = r#"#!/bin/sh
for file in "$@"; do
    case "$file" in *.a) : > "$file" ;; esac
done
"#;

/// Checks the crates with clippy, tests included, and fails for every warning; then links.
pub(crate) fn check() -> Result<Outcome> {
    if !has_target() {
        let reason = format!("needs the target {TARGET}; run `rustup target add {TARGET}` once");
        return Ok(Outcome::Skipped(reason));
    }
    let folder = crate::root().join("target").join("check-darwin");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let compiler = script(&folder, "cc", COMPILER)?;
    let archiver = script(&folder, "ar", ARCHIVER)?;
    let mut command = cargo();
    command.args(["clippy", "--target", TARGET, "--all-targets"]);
    let suffix = TARGET.replace('-', "_");
    for (tool, path) in [("CC", &compiler), ("CXX", &compiler), ("AR", &archiver)] {
        command.env(format!("{tool}_{suffix}"), path);
    }
    for name in CRATES {
        command.args(["--package", name]);
    }
    run(command.args(["--", "-D", "warnings"]))?;
    match Linker::new(&folder)? {
        Ok(linker) => linker.link_metal(TARGET)?,
        Err(reason) => println!("skipped: linking for macOS: {reason}"),
    }
    Ok(Outcome::Passed(0))
}

/// Writes a program: where it is.
pub(crate) fn script(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    // What is there may be running.
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(path);
    }
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .with_context(|| path.display().to_string())?;
    Ok(path)
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
pub(crate) fn has_target() -> bool {
    let output = compiler().args(["--print", "target-libdir", "--target", TARGET]).output();
    let Ok(output) = output else { return false };
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}
