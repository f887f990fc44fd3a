//! Runs the fuzz targets with stable Rust: coverage instrumentation comes from compiler passes that need
//! no nightly features, so no extra tool has to be installed.

use crate::report::{cargo, run};
use crate::root;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::process::Command;

/// What `cargo fuzz` passes too, less the sanitizer.
const COVERAGE_FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions -Copt-level=3";

/// Runs every target for `seconds`.
pub(crate) fn run_targets(seconds: u64) -> Result<()> {
    let fuzz = root().join("fuzz");
    let triple = host_triple()?;
    // With --target the flags do not reach build scripts and procedural macros.
    run(cargo()
        .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &triple])
        .args(["--target-dir", "target/fuzz"])
        .env("RUSTFLAGS", COVERAGE_FLAGS))?;
    let mut targets = 0;
    for entry in fs::read_dir(fuzz.join("fuzz_targets")).context("fuzz/fuzz_targets")? {
        let path = entry.context("fuzz/fuzz_targets")?.path();
        let Some(name) = path.file_stem().and_then(|s| s.to_str()) else { continue };
        let binary = root().join("target/fuzz").join(&triple).join("release").join(name);
        // New inputs go to target/; the committed corpus is only read.
        let found = root().join("target/fuzz/corpus").join(name);
        fs::create_dir_all(&found).context("target/fuzz/corpus")?;
        let mut command = Command::new(binary);
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg("-print_final_stats=1")
            .arg(format!("-artifact_prefix={}/", root().join("target/fuzz").display()))
            .arg(&found);
        let corpus = fuzz.join("corpus").join(name);
        if corpus.exists() {
            command.arg(corpus);
        }
        run(&mut command)?;
        targets += 1;
    }
    if targets == 0 {
        bail!("fuzz/fuzz_targets has no targets");
    }
    Ok(())
}

fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8(output.stdout).context("rustc -vV")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}
