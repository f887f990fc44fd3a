//! The Rust tests of the workspace, with a count of those that skipped themselves.
//!
//! A test that lacks something prints a line `skipped: REASON` and passes; these lines are shown and
//! counted here, so that a skipped test never hides among the passed ones.

use crate::fixtures;
use crate::programs::{Program, build_tests, programs};
use crate::report::{Outcome, cargo, cpu};
use crate::root;
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, ExitStatus, Stdio};

/// How many of the programs that took longest are listed at the end.
const SLOWEST: usize = 10;

/// Runs all tests; adds those that skipped themselves to `skipped`.
pub(crate) fn run(skipped: &mut usize) -> Result<Outcome> {
    run_programs(None, &[], &[], &[], skipped)
}

/// Test programs of `calla-gpu` that do not run with sanitizers: those of the whole demo would take many minutes, and
/// `runner` has whole networks that are small.
const NOT_SANITIZED: [&str; 5] = ["goldens", "layers", "engine", "drafts", "generation"];

/// Tests in the others that do not, as they run what the tests beside them run with sanitizers, over and over: steps of
/// the demo in many orders, recorded logits, and faults that the self-tests are to find, where what is asked is whether
/// they do.
const NOT_SANITIZED_TESTS: [&str; 5] = [
    "every_order_that_obeys_the_edges_gives_the_same_bits",
    "checkpoints_in_formats_of_kernels_have_their_logits_and_others_are_refused",
    "planted_faults_are_found_and_nothing_is_left_behind",
    "the_self_test_sees_faults",
    "the_kernels_agree_with_themselves",
];

/// Runs the tests of `calla-gpu` once more, with kernels built with AddressSanitizer and an error for every access
/// outside the ranges that a dispatch declares.
pub(crate) fn run_sanitized(skipped: &mut usize) -> Result<Outcome> {
    let mut targets = vec![];
    for file in fs::read_dir(root().join("crates/gpu/tests")).context("crates/gpu/tests")? {
        let path = file.context("crates/gpu/tests")?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let is_test = path.is_file() || path.join("main.rs").is_file();
        if is_test && !NOT_SANITIZED.contains(&stem) {
            targets.extend(["--test".to_owned(), stem.to_owned()]);
        }
    }
    let tests = NOT_SANITIZED_TESTS.into_iter().flat_map(|test| ["--skip", test]);
    let arguments: Vec<&str> = tests.collect();
    run_programs(Some("crates/gpu"), &targets, &arguments, &[("CALLA_GPU_SANITIZE", "1")], skipped)
}

/// Builds tests, of the workspace or of some `targets` in it, and runs their programs one after the other, each with
/// `arguments`; of a package alone, where others have targets of the same names.
fn run_programs(
    package: Option<&str>,
    targets: &[String],
    arguments: &[&str],
    environment: &[(&str, &str)],
    skipped: &mut usize,
) -> Result<Outcome> {
    let log_path = root().join("target/test.log");
    fs::create_dir_all(root().join("target")).context("cannot make target/")?;
    let mut log = fs::File::create(&log_path).context("cannot write target/test.log")?;
    let mut build = build_tests();
    build.args(targets).current_dir(root()).stderr(Stdio::inherit());
    let built = build.output().context("cannot start cargo test")?;
    ensure!(built.status.success(), "the tests do not build: {}", built.status);
    let mut runs = vec![];
    let wanted = |program: &Program| {
        let folder = package.is_none_or(|package| program.package.ends_with(package));
        folder && program.is_test
    };
    for program in programs(&built.stdout)?.into_iter().filter(wanted) {
        let mut command = Command::new(&program.path);
        command.arg("--show-output").args(arguments).current_dir(&program.package);
        command.env("CARGO_MANIFEST_DIR", &program.package);
        let package = program.package.file_name().unwrap_or_default().to_string_lossy();
        runs.push((format!("{package} {}", program.target), command));
    }
    ensure!(!runs.is_empty(), "cargo named no program of tests");
    if targets.is_empty() {
        let mut examples = cargo();
        examples.args(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet", "--"]);
        examples.arg("--show-output").current_dir(root());
        runs.push(("examples in documentation".to_owned(), examples));
    }

    let mut tally = Tally::default();
    let mut failed = vec![];
    let mut took = vec![];
    for (name, mut command) in runs {
        command.env("CALLA_FIXTURES", fixtures::directory()).env("RUST_BACKTRACE", "0");
        command.envs(environment.iter().copied());
        writeln!(log, "\n{name}: {command:?}").context("writing target/test.log")?;
        let (passed, cpu_before) = (tally.passed, cpu());
        let status = run_program(&mut command, &mut log, &mut tally)
            .with_context(|| format!("running {name}"))?;
        let seconds = cpu().saturating_sub(cpu_before).as_secs_f64();
        let verdict = if status.success() { String::new() } else { format!(", FAILED: {status}") };
        println!("{name}: {} passed in {seconds:.1} CPU s{verdict}", tally.passed - passed);
        took.push((seconds, name.clone()));
        if !status.success() {
            failed.push(format!("{name}: {status}"));
        }
    }
    took.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("\nmost CPU seconds:");
    took.iter().take(SLOWEST).for_each(|(seconds, name)| println!("{seconds:>7.1}  {name}"));
    for (reason, count) in &tally.reasons {
        println!("skipped {count} x: {reason}");
    }
    let skipped_here: usize = tally.reasons.values().sum();
    *skipped += skipped_here;
    if !failed.is_empty() {
        let failures = tally.failures.join("\n");
        bail!("{failures}\n{}; the whole output is in {}", failed.join("; "), log_path.display());
    }
    Ok(Outcome::Passed(tally.passed.saturating_sub(skipped_here)))
}

/// Runs a program of tests, and adds what it says to the log and the tally.
fn run_program(command: &mut Command, log: &mut fs::File, tally: &mut Tally) -> Result<ExitStatus> {
    // What a test prints past the harness's capture, and a program that is killed, are in the log too.
    command.stderr(log.try_clone().context("target/test.log")?);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    for line in BufReader::new(child.stdout.take().expect("piped")).split(b'\n') {
        let line = line.context("reading the tests' output")?;
        let line = String::from_utf8_lossy(&line);
        writeln!(log, "{line}").context("writing target/test.log")?;
        tally.read(&line);
    }
    child.wait().context("waiting for the tests' end")
}

/// What the lines of programs of tests add up to.
#[derive(Default)]
struct Tally {
    passed: usize,
    reasons: BTreeMap<String, usize>,
    failures: Vec<String>,
    in_failures: bool,
}

impl Tally {
    /// Takes a line.
    fn read(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_sanitized_is_there() {
        let folder = root().join("crates/gpu/tests");
        for name in NOT_SANITIZED {
            assert!(folder.join(name).with_extension("rs").is_file(), "no {name}");
        }
        let text = |path: &str| fs::read_to_string(folder.join(path)).unwrap();
        let texts =
            ["conformance.rs", "metal4.rs", "runner/orders.rs", "runner/reference.rs"].map(text);
        for name in NOT_SANITIZED_TESTS {
            let count = texts.iter().filter(|text| text.contains(&format!("fn {name}()"))).count();
            assert_eq!(count, 1, "{name}");
        }
    }

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
