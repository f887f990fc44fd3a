//! Steps with their outcomes, and the summary at the end.

use anyhow::{Context as _, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
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
    rows: Vec<Row>,
    passed: usize,
    failed: usize,
    skipped: usize,
    only: Option<String>,
}

/// Lines of a failure that the end of a run tells again.
const LINES_OF_A_FAILURE: usize = 40;

/// A step that ended.
struct Row {
    name: String,
    outcome: String,
    /// What a failed step said.
    error: Option<String>,
    wall: Duration,
    cpu: Duration,
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
        let (start, cpu_before) = (Instant::now(), cpu());
        let result = run();
        let (wall, cpu) = (start.elapsed(), cpu().saturating_sub(cpu_before));
        let mut error = None;
        let outcome = match result {
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
            Err(failure) => {
                self.failed += 1;
                let text = format!("{failure:#}");
                eprintln!("{text}");
                error = Some(text);
                "FAILED".to_owned()
            }
        };
        let (seconds, cpu_seconds) = (wall.as_secs_f64(), cpu.as_secs_f64());
        println!("--- {name}: {outcome} ({seconds:.0} s, {cpu_seconds:.0} s of processors)");
        self.rows.push(Row { name: name.to_owned(), outcome, error, wall, cpu });
    }

    /// Counts a test that skipped itself.
    pub(crate) fn count_skipped(&mut self, tests: usize) {
        self.skipped += tests;
    }

    /// What failed steps said, each cut to its last lines; empty if none failed.
    fn failures(&self) -> String {
        let mut told = String::new();
        for row in &self.rows {
            let Some(error) = &row.error else { continue };
            let lines: Vec<&str> = error.lines().collect();
            let from = lines.len().saturating_sub(LINES_OF_A_FAILURE);
            told += &format!("\n=== failed: {}\n", row.name);
            if from > 0 {
                told += &format!("({from} lines before these are above)\n");
            }
            for line in &lines[from..] {
                told += &format!("{line}\n");
            }
        }
        told
    }

    /// Prints what failed once more, so that the end of a long log tells it, and the summary; true if nothing failed
    /// and something ran.
    pub(crate) fn finish(self) -> bool {
        print!("{}", self.failures());
        println!("\n=== summary\n  wall    CPU");
        for Row { name, outcome, wall, cpu, .. } in &self.rows {
            let (wall, cpu) = (wall.as_secs_f64(), cpu.as_secs_f64());
            println!("{wall:>4.0} s {cpu:>4.0} s  {name}: {outcome}");
        }
        let sum = |of: fn(&Row) -> Duration| self.rows.iter().map(of).sum::<Duration>();
        let (wall, cpu) = (sum(|row| row.wall).as_secs_f64(), sum(|row| row.cpu).as_secs_f64());
        println!("{wall:>4.0} s {cpu:>4.0} s  all");
        println!("\n{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        self.failed == 0 && self.passed > 0
    }
}

/// Time of processors, user and system, that all programs took which this one started and waited for, and those that
/// they waited for.
pub(crate) fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("a system tells of its own processes");
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds().unsigned_abs())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_again_with_their_last_lines() {
        let mut report = Report::default();
        report.step("good", || Ok(Outcome::Passed(3)));
        report.step("bad", || bail!("first\nsecond"));
        let long: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        report.step("long", || bail!("{}", long.join("\n")));
        let told = report.failures();
        assert!(
            told.starts_with("\n=== failed: bad\nfirst\nsecond\n\n=== failed: long\n"),
            "{told}"
        );
        assert!(!told.contains("line 59\n"), "{told}");
        assert!(
            told.contains("(60 lines before these are above)\nline 60\n")
                && told.ends_with("line 99\n")
        );
        assert!(!told.contains("good") && !report.finish());
    }

    #[test]
    fn cpu_seconds_are_those_of_programs_that_ran() {
        let before = cpu();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        // One that the shell waits for.
        run(Command::new("sh").args(["-c", &format!("sh -c '{script}'; sleep 0.2")])).unwrap();
        let took = cpu() - before;
        assert!(took > Duration::from_millis(10), "{took:?}");
    }
}
