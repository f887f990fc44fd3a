//! `cargo xtask mutate`: whether the tests of the GPU backend notice faults, planted one at a time.
//!
//! Faults are planted in a copy of the tree, `target/mutants/tree`, with a build of its own of our crates; the working tree
//! is only read. A fault of a kernel needs no build: the host driver takes the file from a folder in the place of its own.

mod faults;
mod tree;

use crate::report::Outcome;
use anyhow::{Context as _, Result, bail, ensure};
use faults::{Check, Fault};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tree::{Programs, Tree};

/// A small test: all need the library.
const ANY_TARGET: &str = "copy";

/// How the tests took a fault.
enum Verdict {
    /// The test failed; what it said first.
    Caught(String),
    /// It passed.
    Survived,
    /// The fault does not compile, or something else failed: it shows nothing.
    Broken(String),
}

/// Plants all faults whose name, class or file contains `only`. Fails if one is not caught.
pub(crate) fn run(only: Option<&str>) -> Result<Outcome> {
    let wanted = |fault: &&Fault| {
        let class = format!("{:?}", fault.class).to_lowercase();
        only.is_none_or(|only| [fault.name, fault.file, &class].iter().any(|t| t.contains(only)))
    };
    let mut faults: Vec<&Fault> = faults::all().filter(wanted).collect();
    ensure!(!faults.is_empty(), "no fault has this in its name, class or file");
    // Those that need no build first: a build with a fault takes the place of the programs without.
    faults.sort_by_key(|fault| fault.is_built());
    let tree = Tree::copy()?;
    for fault in &faults {
        fault.planted(&tree.read(fault.file)?)?;
    }
    println!("{} faults; first without any", faults.len());
    let programs = match pass_without(&tree, &faults)? {
        Ok(programs) => programs,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };

    let mut rows = vec![];
    for fault in &faults {
        let start = Instant::now();
        let verdict = try_fault(&tree, fault, &programs)?;
        let seconds = start.elapsed().as_secs_f64();
        let (word, detail) = match &verdict {
            Verdict::Caught(said) => ("caught", said.as_str()),
            Verdict::Survived => ("SURVIVED", ""),
            Verdict::Broken(reason) => ("BROKEN", reason.as_str()),
        };
        println!("{word} in {seconds:.1} s: {}: {}\n    {detail}", fault.file, fault.name);
        rows.push((fault, verdict, seconds));
    }

    println!("\n{:<58} {:<11} {:<64} seconds", "fault", "class", "caught by");
    let mut failed = 0;
    for (fault, verdict, seconds) in &rows {
        let caught_by = match verdict {
            Verdict::Caught(_) => fault.check.to_string(),
            Verdict::Survived => format!("NOT by {}", fault.check),
            Verdict::Broken(_) => "BROKEN: it shows nothing".to_owned(),
        };
        failed += usize::from(!matches!(verdict, Verdict::Caught(_)));
        let class = format!("{:?}", fault.class).to_lowercase();
        println!("{:<58} {class:<11} {caught_by:<64} {seconds:7.1}", fault.name);
    }
    let total: f64 = rows.iter().map(|(.., seconds)| seconds).sum();
    println!("{} of {} caught in {total:.0} s", rows.len() - failed, rows.len());
    ensure!(failed == 0, "{failed} faults were not caught");
    Ok(Outcome::Passed(rows.len()))
}

/// Demands that all tests pass in the tree as it is. If one skips itself, its reason.
fn pass_without(tree: &Tree, faults: &[&Fault]) -> Result<Result<Programs, String>> {
    let mut tests: BTreeMap<(&str, bool), Vec<&str>> = BTreeMap::new();
    for fault in faults {
        if let Check::Test { target, name, sanitize } = fault.check {
            let names = tests.entry((target, sanitize)).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    // With the one that faults of the build are looked for with; no target at all would mean every one there is.
    let targets = tests.keys().map(|(target, _)| *target).chain([ANY_TARGET]).collect();
    let programs = match tree.build(&targets)? {
        Ok(programs) => programs,
        Err(output) => bail!("the tests do not build without any fault\n{output}"),
    };
    for ((target, sanitize), names) in tests {
        let (success, output) = run_tests(tree, &programs[target], &names, sanitize)?;
        if !success {
            bail!("{target}: fails without any fault\n{output}");
        }
        if let Some(reason) = output.lines().find_map(|line| line.strip_prefix("skipped: ")) {
            return Ok(Err(reason.to_owned()));
        }
        for &name in &names {
            ensure!(
                output.contains(&format!("test {name} ... ok")),
                "{target}: there is no test {name}"
            );
        }
        let how = if sanitize { " with sanitizers" } else { "" };
        println!("{target}{how}: {} tests pass without", names.len());
    }
    Ok(Ok(programs))
}

/// Plants a fault, runs what has to notice it, and takes it away. `programs` are those without faults.
fn try_fault(tree: &Tree, fault: &Fault, programs: &Programs) -> Result<Verdict> {
    let text = tree.read(fault.file)?;
    let _planted = tree.plant(fault, &text)?;
    match fault.check {
        Check::Test { target, name, sanitize } => {
            let program = if fault.is_built() {
                match tree.build(&BTreeSet::from([target]))? {
                    Ok(mut programs) => programs.remove(target).context("it was built")?,
                    Err(output) => return Ok(Verdict::Broken(output)),
                }
            } else {
                programs[target].clone()
            };
            let (success, output) = run_tests(tree, &program, &[name], sanitize)?;
            Ok(verdict(success, &output, name))
        }
        Check::Build { message } => Ok(match tree.build(&BTreeSet::from([ANY_TARGET]))? {
            Ok(_) => Verdict::Survived,
            Err(output) => match output.lines().find(|line| line.contains(message)) {
                Some(line) => Verdict::Caught(line.to_owned()),
                None => Verdict::Broken(output),
            },
        }),
    }
}

/// Runs tests of a program: whether they passed, and what they said.
fn run_tests(
    tree: &Tree,
    program: &Path,
    names: &[&str],
    sanitize: bool,
) -> Result<(bool, String)> {
    let mut command = Command::new(program);
    command.args(["--show-output", "--exact"]).args(names);
    for name in ["CALLA_GPU_DEVICE", "CALLA_GPU_FORGET", "CALLA_GPU_ORDER", "CALLA_GPU_THREADS"] {
        command.env_remove(name);
    }
    // A kernel with a fault may wait for ever.
    command
        .env("CALLA_GPU_SANITIZE", u8::from(sanitize).to_string())
        .env("CALLA_GPU_TIMEOUT", "60");
    tree.run(&mut command)
}

/// What a run of the test `name` with a fault says of it.
fn verdict(success: bool, output: &str, name: &str) -> Verdict {
    if success {
        return Verdict::Survived;
    }
    // What clang and the translator say of a kernel that is none.
    let compiles = !output.contains(": error: ") && !output.contains("no kernel has this name");
    if !compiles || !output.contains(&format!("test {name} ... FAILED")) {
        return Verdict::Broken(output.to_owned());
    }
    let mut said = output.lines().skip_while(|line| !line.contains("panicked at")).skip(1);
    Verdict::Caught(said.next().unwrap_or_default().chars().take(160).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_the_named_test() {
        let failed = "test a ... FAILED\n\nthread 'a' panicked at x.rs:1:1:\nrow 3\n";
        assert!(matches!(verdict(false, failed, "a"), Verdict::Caught(said) if said == "row 3"));
        assert!(matches!(verdict(false, failed, "b"), Verdict::Broken(_)));
        assert!(matches!(verdict(true, "test a ... ok\n", "a"), Verdict::Survived));
        let no_kernel = format!("{failed}x.metal:3:4: error: use of undeclared identifier\n");
        assert!(matches!(verdict(false, &no_kernel, "a"), Verdict::Broken(_)));
        assert!(matches!(verdict(false, "error: could not compile", "a"), Verdict::Broken(_)));
    }
}
