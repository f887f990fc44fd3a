//! Where data that tests compare with lie, and how tests say that they are absent.

use std::path::{Path, PathBuf};

/// The root of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The demo checkpoint with its goldens; always there.
#[must_use]
pub fn demo() -> PathBuf {
    workspace().join("demo")
}

/// A folder of reference material beside the workspace that is not part of it, or `None` with the reason
/// printed.
#[must_use]
pub fn beside(name: &str) -> Option<PathBuf> {
    let path = workspace().join("../shared").join(name);
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: {} is absent", path.display());
    None
}

/// Checkpoints made by `tools/peers` (folders with a `config.json` and a `golden.npz`), in
/// `$CALLA_FIXTURES` or `target/fixtures`; none, with the reason printed, where nobody made them.
#[must_use]
pub fn fixtures() -> Vec<PathBuf> {
    let root = std::env::var_os("CALLA_FIXTURES")
        .map_or_else(|| workspace().join("target/fixtures"), PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&root)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|dir| dir.join("config.json").is_file() && goldens_in(dir).is_some())
        .collect();
    found.sort();
    if found.is_empty() {
        println!("skipped: no checkpoints with goldens in {} (CALLA_FIXTURES)", root.display());
    }
    found
}

/// The goldens in a checkpoint folder, under either name in use.
#[must_use]
pub fn goldens_in(dir: &Path) -> Option<PathBuf> {
    ["goldens.npz", "golden.npz"].map(|name| dir.join(name)).into_iter().find(|p| p.is_file())
}
