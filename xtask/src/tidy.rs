//! House rules that a compiler does not check.

use crate::report::cargo;
use crate::root;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which of our crates each crate may use in the program (development dependencies are free). A new edge
/// is a design decision: ARCHITECTURE.md says why each exists.
const EDGES: [(&str, &[&str]); 21] = [
    ("calla-model", &[]),
    ("calla-weights", &["calla-model"]),
    ("calla-text", &[]),
    ("calla-ops", &["calla-model"]),
    ("calla-cpu", &["calla-model", "calla-ops"]),
    ("calla-msl", &[]),
    ("calla-gpu", &["calla-model", "calla-msl", "calla-ops"]),
    ("calla-gpu-host", &["calla-gpu", "calla-msl"]),
    ("calla-gpu-cuda", &["calla-gpu", "calla-msl"]),
    ("calla-gpu-metal", &["calla-gpu"]),
    ("calla-conformance", &["calla-gpu", "calla-model", "calla-ops", "calla-testkit"]),
    (
        "calla-cubins",
        &["calla-conformance", "calla-gpu", "calla-gpu-cuda", "calla-model", "calla-ops"],
    ),
    ("calla-engine", &["calla-model", "calla-ops"]),
    ("calla-store", &[]),
    ("calla-eval", &["calla-model", "calla-ops"]),
    ("calla-grammar", &["calla-engine", "calla-ops", "calla-text"]),
    ("calla-runtime", &["calla-model", "calla-ops", "calla-engine", "calla-store"]),
    (
        "calla-server",
        &["calla-engine", "calla-grammar", "calla-ops", "calla-runtime", "calla-text"],
    ),
    (
        "calla-testkit",
        &["calla-model", "calla-ops", "calla-weights", "calla-eval", "calla-cpu", "calla-text"],
    ),
    (
        "calla",
        &[
            "calla-conformance",
            "calla-model",
            "calla-weights",
            "calla-text",
            "calla-testkit",
            "calla-ops",
            "calla-cpu",
            "calla-engine",
            "calla-eval",
            "calla-gpu",
            "calla-gpu-cuda",
            "calla-gpu-metal",
            "calla-grammar",
            "calla-runtime",
            "calla-server",
            "calla-store",
        ],
    ),
    ("xtask", &[]),
];

/// Longest source file, in lines; one subject seldom needs more.
const SOURCE_LINES_MAX: usize = 700;
/// Largest file outside the demo checkpoint, in bytes.
const FILE_BYTES_MAX: u64 = 300 << 10;

/// Checks all rules.
pub(crate) fn run() -> Result<()> {
    let mut problems = Vec::new();
    check_edges(&mut problems)?;
    for path in tracked_files()? {
        check_file(&path, &mut problems)?;
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"));
}

/// Files under version control, relative to the root.
pub(crate) fn tracked_files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(root())
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot run git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let exists = |path: &PathBuf| root().join(path).exists();
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(exists).collect())
}

fn check_edges(problems: &mut Vec<String>) -> Result<()> {
    let output = cargo()
        .current_dir(root())
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    for package in metadata["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().context("no name")?;
        let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
            problems.push(format!("{name}: not in the list of crates in xtask/src/tidy.rs"));
            continue;
        };
        let dependencies = package["dependencies"].as_array().context("no dependencies")?;
        for dependency in dependencies.iter().filter(|d| d["kind"] != "dev") {
            let to = dependency["name"].as_str().unwrap_or_default();
            if to.starts_with("calla-") && !allowed.contains(&to) {
                problems.push(format!("{name} must not depend on {to} (xtask/src/tidy.rs)"));
            }
        }
    }
    Ok(())
}

fn check_file(path: &Path, problems: &mut Vec<String>) -> Result<()> {
    let full = root().join(path);
    let size = fs::metadata(&full).with_context(|| full.display().to_string())?.len();
    if size > FILE_BYTES_MAX && !path.starts_with("demo") {
        problems.push(format!("{}: {size} bytes, over {FILE_BYTES_MAX}", path.display()));
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("rs") => {
            let text = fs::read_to_string(&full).with_context(|| full.display().to_string())?;
            check_source(path, &text, problems);
        }
        Some("md") => {
            let text = fs::read_to_string(&full).with_context(|| full.display().to_string())?;
            check_links(path, &text, problems);
        }
        _ => {}
    }
    Ok(())
}

fn check_source(path: &Path, text: &str, problems: &mut Vec<String>) {
    // Fuzz targets start with the attribute that makes them one.
    let first = text.lines().find(|l| !l.starts_with("#![")).unwrap_or_default();
    if !first.starts_with("//!") {
        problems.push(format!("{}: does not open with `//!` and its subject", path.display()));
    }
    let lines = text.lines().count();
    if lines > SOURCE_LINES_MAX {
        problems.push(format!("{}: {lines} lines, over {SOURCE_LINES_MAX}", path.display()));
    }
    for (i, line) in text.lines().enumerate() {
        // Spelt apart so that this file passes its own rule.
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
            if line.contains(word) {
                problems.push(format!("{}:{}: {word}", path.display(), i + 1));
            }
        }
    }
}

/// Links to files of the repository must lead somewhere.
fn check_links(path: &Path, text: &str, problems: &mut Vec<String>) {
    let base = root().join(path).parent().map(Path::to_path_buf).unwrap_or_default();
    for piece in text.split("](").skip(1) {
        let Some(target) = piece.split(')').next() else { continue };
        let target = target.split('#').next().unwrap_or_default();
        if !target.is_empty() && !target.contains("://") && !base.join(target).exists() {
            problems.push(format!("{}: link to {target} leads nowhere", path.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_problems(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        check_source(Path::new("x.rs"), text, &mut problems);
        problems
    }

    #[test]
    fn sources_are_checked() {
        assert!(source_problems("//! Subject.\n").is_empty());
        assert_eq!(source_problems("fn main() {}\n").len(), 1);
        assert_eq!(source_problems(&format!("//! S.\n// {}\n", concat!("TO", "DO"))).len(), 1);
        assert_eq!(source_problems(&format!("//! S.\n{}", "\n".repeat(2000))).len(), 1);
    }

    #[test]
    fn links_are_checked() {
        let mut problems = Vec::new();
        check_links(Path::new("x.md"), "[a](Cargo.toml) [b](https://b) [c](no)", &mut problems);
        assert_eq!(problems, ["x.md: link to no leads nowhere"]);
    }
}
