//! Steps with their outcomes, and the summary at the end.

use anyhow::{Context as _, Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

/// How a step ended.
pub(crate) enum Outcome {
    /// It passed; so many tests ran in it (0 where it is no test run).
    Passed(usize),
    /// It could not run.
    Skipped(String),
}

/// All steps so far.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<(String, String, Duration)>,
    passed: usize,
    failed: usize,
    skipped: usize,
    only: Option<String>,
}

impl Report {
    /// A report that runs only steps whose name contains `only`.
    pub(crate) fn new(only: Option<&str>) -> Self {
        Self { only: only.map(str::to_owned), ..Self::default() }
    }

    /// Runs a step and records how it ended. A failure does not stop the steps after it.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce() -> Result<Outcome>) {
        if self.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            return;
        }
        println!("\n=== {name}");
        let start = Instant::now();
        let result = run();
        let took = start.elapsed();
        let text = match result {
            Ok(Outcome::Passed(0)) => {
                self.passed += 1;
                "ok".to_owned()
            }
            Ok(Outcome::Passed(tests)) => {
                self.passed += tests;
                format!("ok, {tests} tests")
            }
            Ok(Outcome::Skipped(reason)) => {
                self.skipped += 1;
                format!("skipped: {reason}")
            }
            Err(error) => {
                self.failed += 1;
                eprintln!("{error:#}");
                "FAILED".to_owned()
            }
        };
        println!("--- {name}: {text} ({:.0} s)", took.as_secs_f64());
        self.rows.push((name.to_owned(), text, took));
    }

    /// Counts a test that skipped itself.
    pub(crate) fn count_skipped(&mut self, tests: usize) {
        self.skipped += tests;
    }

    /// Prints the summary; true if nothing failed and something ran.
    pub(crate) fn finish(self) -> bool {
        println!("\n=== summary");
        for (name, text, took) in &self.rows {
            println!("{:>5.0} s  {name}: {text}", took.as_secs_f64());
        }
        println!("\n{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        self.failed == 0 && self.passed > 0
    }
}

/// Runs a command and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    command.current_dir(crate::root());
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
