//! What the tests need beyond Rust: a C compiler (for the tokenizer's regex library), clang (for Metal kernels on the
//! processor) and a Python environment under `target/venv` with the peers that fixtures are made by. What the clients and the page need is in
//! `clients` and `page`.

use crate::report::{Outcome, run};
use crate::{check_darwin, clients, page, root};
use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Why a step that needs Python is skipped.
pub(crate) const MISSING_PYTHON: &str =
    "needs Python packages; run `cargo xtask test --install` once";

/// Debian packages; on another system their counterparts have to be there.
const APT_PACKAGES: [&str; 4] = ["build-essential", "python3", "python3-venv", "python3-pip"];

/// Debian packages that compile Metal kernels for the processor, with the sanitizers.
const CLANG_PACKAGES: [&str; 2] = ["clang-19", "libclang-rt-19-dev"];
/// Compilers that do as well as Debian's, if they are 17 or later and have the sanitizers.
const CLANG_PROGRAMS: [&str; 4] = ["clang++-19", "clang++-18", "clang++-17", "clang++"];

/// Installs everything.
pub(crate) fn install() -> Result<Outcome> {
    install_apt()?;
    install_clang()?;
    check_darwin::install()?;
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

/// Kernels run on Linux on x86-64 only; their tests are skipped elsewhere.
fn install_clang() -> Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        println!("kernels are not run on this kind of machine: no clang is needed");
        return Ok(());
    }
    if let Some(program) = CLANG_PROGRAMS.iter().find(|program| compiles_sanitized(program)) {
        println!("{program} is there");
        return Ok(());
    }
    if !has_apt() {
        anyhow::bail!("no apt-get here: install clang 17 or later with its sanitizers by hand");
    }
    apt_install(&CLANG_PACKAGES)
}

/// Whether a compiler knows `__bf16` arithmetic, as clang does from 17 on, and has the sanitizers.
fn compiles_sanitized(program: &str) -> bool {
    let source = std::env::temp_dir().join(format!("calla-clang-{}.cpp", std::process::id()));
    let output = source.with_extension("out");
    let text = "__bf16 a; static_assert(sizeof(a + a) == 2, \"\"); int main() { return 0; }\n";
    let compiled = std::fs::write(&source, text).is_ok()
        && succeeds(
            Command::new(program)
                .arg("-fsanitize=address,undefined")
                .arg(&source)
                .arg("-o")
                .arg(&output),
        );
    for file in [source, output] {
        // What was never written needs no removal.
        let _ = std::fs::remove_file(file);
    }
    compiled
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
