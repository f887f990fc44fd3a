//! `cargo xtask test`: every check of the project, in the order in which a failure is cheapest to hear of.

use crate::report::{Outcome, Report, cargo, run};
use crate::{check_darwin, clients, fixtures, fuzz, install, mutate, page, rust_tests, tidy};
use anyhow::Result;

/// Runs all steps; false if one failed.
pub(crate) fn run_all(install_first: bool, only: Option<&str>) -> Result<bool> {
    let mut report = Report::new(only);
    if install_first {
        report.step("install", install::install);
    }
    report.step("format", || passed(cargo().args(["fmt", "--all", "--check"])));
    report.step("tidy", || tidy::run().map(|()| Outcome::Passed(0)));
    report.step("lints", || {
        let lints = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        passed(cargo().args(lints))
    });
    report.step("macOS code", check_darwin::check);
    report.step("fixtures", fixtures::make);
    let mut skipped = 0;
    report.step("tests", || rust_tests::run(&mut skipped));
    report.step("sanitized kernels", || rust_tests::run_sanitized(&mut skipped));
    report.step("planted faults", || mutate::run(None));
    report.count_skipped(skipped);
    report.step("documentation", || {
        passed(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
    });
    report.step("demo model tools", demo_tools);
    let mut skipped = 0;
    report.step("clients", || clients::run_all(&mut skipped));
    report.step("page", || page::run_all(&mut skipped));
    report.count_skipped(skipped);
    report.step("fuzz smoke", || fuzz::run_targets(10).map(|()| Outcome::Passed(0)));
    Ok(report.finish())
}

fn passed(command: &mut std::process::Command) -> Result<Outcome> {
    run(command)?;
    Ok(Outcome::Passed(0))
}

/// Tests of the Python programs that made the demo checkpoint.
fn demo_tools() -> Result<Outcome> {
    let Some(python) = install::python_with(&["numpy", "jinja2", "pytest", "tokenizers"]) else {
        return Ok(Outcome::Skipped(install::MISSING_PYTHON.to_owned()));
    };
    passed(std::process::Command::new(python).args(["-m", "pytest", "-q", "tools/demo-model"]))
}
