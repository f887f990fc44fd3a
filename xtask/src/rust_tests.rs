//! The Rust tests of the workspace, with a count of those that skipped themselves.
//!
//! A test that lacks something prints a line `skipped: REASON` and passes; these lines are shown and
//! counted here, so that a skipped test never hides among the passed ones.

use crate::fixtures;
use crate::report::{Outcome, cargo};
use crate::root;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

/// Runs all tests; adds those that skipped themselves to `skipped`.
pub(crate) fn run(skipped: &mut usize) -> Result<Outcome> {
    run_cargo(&[], &[], skipped)
}

/// Tests of `calla-gpu` that do not run with sanitizers: those of the whole demo would take many minutes, and `runner`
/// has whole networks that are small.
const NOT_SANITIZED: [&str; 5] = ["goldens", "layers", "engine", "drafts", "generation"];

/// Runs the tests of `calla-gpu` once more, with kernels built with AddressSanitizer and an error for every access
/// outside the ranges that a dispatch declares.
pub(crate) fn run_sanitized(skipped: &mut usize) -> Result<Outcome> {
    // Of the whole workspace, or features of dependencies would differ and all be built again.
    let mut targets = vec![];
    for file in fs::read_dir(root().join("crates/gpu/tests")).context("crates/gpu/tests")? {
        let path = file.context("crates/gpu/tests")?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let is_test = path.is_file() || path.join("main.rs").is_file();
        if is_test && !NOT_SANITIZED.contains(&stem) {
            targets.extend(["--test".to_owned(), stem.to_owned()]);
        }
    }
    run_cargo(&targets, &[("CALLA_GPU_SANITIZE", "1")], skipped)
}

fn run_cargo(
    targets: &[String],
    environment: &[(&str, &str)],
    skipped: &mut usize,
) -> Result<Outcome> {
    let log_path = root().join("target/test.log");
    fs::create_dir_all(root().join("target")).context("cannot make target/")?;
    let mut log = fs::File::create(&log_path).context("cannot write target/test.log")?;
    let mut child = cargo()
        .current_dir(root())
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(targets)
        .args(["--", "--show-output"])
        .env("CALLA_FIXTURES", fixtures::directory())
        .env("RUST_BACKTRACE", "0")
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let mut tally = Tally::default();
    for line in BufReader::new(child.stdout.take().expect("piped")).split(b'\n') {
        let line = line.context("reading the tests' output")?;
        let line = String::from_utf8_lossy(&line);
        writeln!(log, "{line}").context("writing target/test.log")?;
        if tally.read(&line) {
            println!("{line}");
        }
    }
    let status = child.wait().context("waiting for cargo test")?;
    for (reason, count) in &tally.reasons {
        println!("skipped {count} x: {reason}");
    }
    let skipped_here: usize = tally.reasons.values().sum();
    *skipped += skipped_here;
    if !status.success() {
        println!("{}", tally.failures.join("\n"));
        bail!("cargo test: {status}; the whole output is in {}", log_path.display());
    }
    Ok(Outcome::Passed(tally.passed.saturating_sub(skipped_here)))
}

/// What the lines of `cargo test` add up to.
#[derive(Default)]
struct Tally {
    passed: usize,
    reasons: BTreeMap<String, usize>,
    failures: Vec<String>,
    in_failures: bool,
}

impl Tally {
    /// Takes a line; true if it is the result of one test program.
    fn read(&mut self, line: &str) -> bool {
        let result = line.strip_prefix("test result: ");
        if let Some(rest) = result {
            self.in_failures = false;
            let passed = rest.split(". ").nth(1).and_then(|counts| counts.split(' ').next());
            self.passed += passed.and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
        } else if let Some(reason) = line.strip_prefix("skipped: ") {
            *self.reasons.entry(reason.to_owned()).or_default() += 1;
        } else if line == "failures:" {
            self.in_failures = true;
        }
        if self.in_failures {
            self.failures.push(line.to_owned());
        }
        result.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_up() {
        let mut tally = Tally::default();
        for line in [
            "test a ... ok",
            "skipped: no fixtures",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            "failures:",
            "    b panicked",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
            "skipped: no fixtures",
        ] {
            tally.read(line);
        }
        assert_eq!(tally.passed, 15);
        assert_eq!(tally.reasons["no fixtures"], 2);
        assert_eq!(tally.failures, ["failures:", "    b panicked"]);
    }
}
