//! `cargo xtask cubins`: compiles the kernels for NVIDIA GPUs ahead, for a release. The next release build embeds them.
//!
//! What is compiled and how it is kept is `crates/cubins`; here is NVRTC found, or fetched.

use crate::report::{cargo, run};
use crate::root;
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes `target/calla.cubins` for `architectures`, or for those that all GPUs but systems on a chip can do with.
pub(crate) fn make(install: bool, architectures: &[String]) -> Result<()> {
    let fetched = root().join("target/nvrtc");
    if install {
        fetch(&fetched)?;
    }
    let mut command = cargo();
    command.args(["run", "--release", "--package", "calla-cubins", "--"]);
    command.arg(root().join("target/calla.cubins"));
    if !architectures.is_empty() {
        command.args(["--arch", &architectures.join(",")]);
    }
    if let Some(folder) = library_folder(&fetched) {
        // In front of what the user has: a release is made with the version that is named in `tools`.
        let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = [folder].into_iter().chain(std::env::split_paths(&given));
        let paths: OsString = std::env::join_paths(paths).context("LD_LIBRARY_PATH")?;
        command.env("LD_LIBRARY_PATH", paths);
    }
    run(&mut command).context(
        "the kernels were not compiled; where NVRTC is what is missing, `cargo xtask cubins --install` fetches it",
    )
}

fn fetch(folder: &Path) -> Result<()> {
    if library_folder(folder).is_some() {
        println!("{} has NVRTC", folder.display());
        return Ok(());
    }
    run(Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
        ])
        .arg(folder)
        .args(["-r", "tools/requirements-cubins.txt"]))
}

/// The folder with the library, of those of the package.
fn library_folder(fetched: &Path) -> Option<PathBuf> {
    let versions = fetched.join("nvidia").read_dir().ok()?.flatten();
    versions.map(|version| version.path().join("lib")).find(|lib| {
        let mut files = lib.read_dir().into_iter().flatten().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with("libnvrtc.so"))
    })
}
