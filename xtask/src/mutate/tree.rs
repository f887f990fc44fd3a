//! The copy of the working tree that faults are planted in.

use super::faults::{Fault, KERNELS};
use crate::programs::{build_tests, programs};
use crate::{check_darwin, root, target_folder, tidy};
use anyhow::{Context as _, Result, ensure};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Test programs by the names of their targets.
pub(crate) type Programs = HashMap<String, PathBuf>;

/// Runs the compiler.
const WRAPPER: &str = "#!/bin/sh\nexec \"$@\"\n";

/// A copy of all files under version control, and of those that may come there.
pub(crate) struct Tree {
    /// `target/mutants/tree`
    tree: PathBuf,
    /// What the host driver takes kernels from before its own.
    kernels: PathBuf,
    /// What cargo runs in place of the compiler.
    wrapper: PathBuf,
}

impl Tree {
    /// Makes the copy the same as the working tree, whatever an interrupted run has left in it. Files that are the same
    /// already keep their times, so that nothing is built again.
    pub(crate) fn copy() -> Result<Self> {
        let base = root().join("target/mutants");
        let (tree, kernels) = (base.join("tree"), base.join("kernels"));
        let files = tidy::tracked_files()?;
        for path in &files {
            let (from, to) = (root().join(path), tree.join(path));
            let bytes = fs::read(&from).with_context(|| from.display().to_string())?;
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::create_dir_all(to.parent().context("a file has a folder")?)?;
                fs::write(&to, bytes).with_context(|| to.display().to_string())?;
            }
        }
        remove_others(&tree, Path::new(""), &files.into_iter().collect())?;
        if kernels.exists() {
            fs::remove_dir_all(&kernels).with_context(|| kernels.display().to_string())?;
        }
        fs::create_dir_all(&kernels).with_context(|| kernels.display().to_string())?;
        let wrapper = check_darwin::script(&base, "rustc", WRAPPER)?;
        Ok(Self { tree, kernels, wrapper })
    }

    /// Text of a file.
    pub(crate) fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(self.tree.join(file)).with_context(|| file.to_owned())
    }

    /// Puts a fault into a file whose text is `text`, for as long as what comes back lives: into a kernel for the host
    /// driver alone, unless it has to be built.
    pub(crate) fn plant(&self, fault: &Fault, text: &str) -> Result<Planted> {
        let kernel = fault.file.strip_prefix(KERNELS).filter(|_| !fault.is_built());
        let planted = match kernel {
            Some(name) => Planted { path: self.kernels.join(name), before: None },
            None => Planted { path: self.tree.join(fault.file), before: Some(text.to_owned()) },
        };
        fs::write(&planted.path, fault.planted(text)?).with_context(|| fault.file.to_owned())?;
        Ok(planted)
    }

    /// Builds tests of `calla-gpu`: their programs, or what cargo said.
    pub(crate) fn build(&self, targets: &BTreeSet<&str>) -> Result<Result<Programs, String>> {
        let mut cargo = build_tests();
        for target in targets {
            cargo.args(["--test", target]);
        }
        let output = self.cargo(&mut cargo)?;
        if !output.status.success() {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let package = self.tree.join("crates/gpu");
        let built = programs(&output.stdout)?.into_iter().filter(|p| p.package == package);
        let programs: Programs = built.map(|program| (program.target, program.path)).collect();
        let missing = targets.iter().find(|target| !programs.contains_key(**target));
        ensure!(missing.is_none(), "cargo named no test program {missing:?}");
        Ok(Ok(programs))
    }

    /// Runs a test program.
    pub(crate) fn run(&self, program: &mut Command) -> Result<(bool, String)> {
        program.current_dir(self.tree.join("crates/gpu")).stdin(Stdio::null());
        program.env("RUST_BACKTRACE", "0").env("CALLA_GPU_KERNELS", &self.kernels);
        program.output().with_context(|| format!("cannot start {program:?}")).map(said)
    }

    /// Runs a cargo in the copy.
    ///
    /// What it builds of others' crates is that of the working tree; of ours it is not, as what is compiled through another
    /// program than the compiler goes by other names. It is built fast: it is run once.
    fn cargo(&self, cargo: &mut Command) -> Result<Output> {
        cargo.current_dir(&self.tree).stdin(Stdio::null());
        cargo.env("CARGO_TARGET_DIR", target_folder());
        cargo.env("RUSTC_WORKSPACE_WRAPPER", &self.wrapper);
        cargo.env("CARGO_INCREMENTAL", "1").env("CARGO_PROFILE_DEV_DEBUG", "false");
        cargo.output().context("cannot start cargo")
    }
}

/// Whether a program succeeded, and what it said.
fn said(output: Output) -> (bool, String) {
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// A planted fault, which goes away with this.
pub(crate) struct Planted {
    path: PathBuf,
    before: Option<String>,
}

impl Drop for Planted {
    fn drop(&mut self) {
        let done = match &self.before {
            Some(text) => fs::write(&self.path, text),
            None => fs::remove_file(&self.path),
        };
        if let Err(error) = done {
            // The next run puts it right.
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

/// Removes files below `folder` of the copy that are not in `files`.
fn remove_others(tree: &Path, folder: &Path, files: &HashSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(tree.join(folder)).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !files.contains(&path) {
            fs::remove_file(tree.join(&path)).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
