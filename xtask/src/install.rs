//! What the tests need beyond Rust: a C compiler (for the tokenizer's regex library) and a Python
//! environment under `target/venv` with the peers that fixtures are made by. What the clients and the page need is in
//! `clients` and `page`.

use crate::report::{Outcome, run};
use crate::{clients, page, root};
use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Why a step that needs Python is skipped.
pub(crate) const MISSING_PYTHON: &str =
    "needs Python packages; run `cargo xtask test --install` once";

/// Debian packages; on another system their counterparts have to be there.
const APT_PACKAGES: [&str; 4] = ["build-essential", "python3", "python3-venv", "python3-pip"];

/// Installs everything.
pub(crate) fn install() -> Result<Outcome> {
    install_apt()?;
    install_pip()?;
    clients::install()?;
    page::install()?;
    Ok(Outcome::Passed(0))
}

fn install_apt() -> Result<()> {
    let present = |program: &str| succeeds(Command::new(program).arg("--version"));
    let venv = succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"]));
    if present("cc") && venv {
        println!("a C compiler and python3 with venv are there");
        return Ok(());
    }
    if !has_apt() {
        anyhow::bail!("no apt-get here: install a C compiler and python3 with venv by hand");
    }
    apt_install(&APT_PACKAGES)
}

/// Whether Debian's packages can be installed here.
pub(crate) fn has_apt() -> bool {
    succeeds(Command::new("apt-get").arg("--version"))
}

/// Installs Debian packages.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    // Root in a container has no sudo; a user needs it.
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n");
    let apt = |args: &[&str]| {
        let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
        if !is_root {
            command.arg("apt-get");
        }
        run(command.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "-q"])?;
    apt(&[&["install", "-y", "-q", "--no-install-recommends"], packages].concat())
}

fn install_pip() -> Result<()> {
    let venv = root().join("target/venv");
    if !venv.join("bin/python").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            .context("cannot make a Python environment")?;
    }
    run(Command::new(venv.join("bin/python"))
        .args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"])
        .arg("tools/requirements-test.txt"))
}

/// A Python that has all of `modules`: that of `target/venv`, else the system's.
pub(crate) fn python_with(modules: &[&str]) -> Option<PathBuf> {
    let imports = format!("import {}", modules.join(", "));
    [root().join("target/venv/bin/python"), PathBuf::from("python3")]
        .into_iter()
        .find(|python| succeeds(Command::new(python).args(["-c", &imports])))
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
