//! The copy of the working tree that faults are planted in.

use crate::{root, tidy};
use anyhow::{Context as _, Result};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the kernels lie.
const KERNELS: &str = "crates/gpu/kernels/";

/// A copy of all files under version control, and of those that may come there.
pub(crate) struct Tree {
    /// `target/mutants`
    base: PathBuf,
    tree: PathBuf,
    /// What the host driver takes kernels from before its own.
    kernels: PathBuf,
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
        Ok(Self { base, tree, kernels })
    }

    /// Text of a file.
    pub(crate) fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(self.tree.join(file)).with_context(|| file.to_owned())
    }

    /// Puts `planted` in the place of a file's `text` for as long as what comes back lives: of a kernel for the host
    /// driver alone, unless it has to be `built`.
    pub(crate) fn plant(
        &self,
        file: &str,
        text: &str,
        planted: &str,
        built: bool,
    ) -> Result<Planted> {
        let kernel = file.strip_prefix(KERNELS).filter(|_| !built);
        let planted_at = match kernel {
            Some(name) => Planted { path: self.kernels.join(name), before: None },
            None => Planted { path: self.tree.join(file), before: Some(text.to_owned()) },
        };
        fs::write(&planted_at.path, planted).with_context(|| file.to_owned())?;
        Ok(planted_at)
    }

    /// Runs a cargo in the copy; whether it succeeded, and what it said.
    pub(crate) fn run(&self, cargo: &mut Command) -> Result<(bool, String)> {
        cargo.current_dir(&self.tree).stdin(Stdio::null());
        cargo.env("CARGO_TARGET_DIR", self.base.join("target")).env("RUST_BACKTRACE", "0");
        cargo.env("CALLA_GPU_KERNELS", &self.kernels);
        let output = cargo.output().context("cannot start cargo")?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }
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
