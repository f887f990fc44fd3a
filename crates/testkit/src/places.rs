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

/// Checkpoints made by `tools/peers` with their goldens, below `$CALLA_FIXTURES` or `target/fixtures`; none,
/// with the reason printed, where nobody made them. A checkpoint is `NAME/mlx` with `NAME/golden.npz`, or
/// any folder that holds both.
#[must_use]
pub fn fixtures() -> Vec<(PathBuf, PathBuf)> {
    let root = std::env::var_os("CALLA_FIXTURES")
        .map_or_else(|| workspace().join("target/fixtures"), PathBuf::from);
    let mut found = Vec::new();
    for dir in folders(&root) {
        for candidate in std::iter::once(dir.clone()).chain(folders(&dir)) {
            let own = candidate.join("golden.npz");
            let outer = dir.join("golden.npz");
            let goldens = if own.is_file() || !candidate.ends_with("mlx") { own } else { outer };
            if candidate.join("config.json").is_file() && goldens.is_file() {
                found.push((candidate, goldens));
            }
        }
    }
    if found.is_empty() {
        println!("skipped: no checkpoints with goldens in {} (CALLA_FIXTURES)", root.display());
    }
    found
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(of)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    found
}

/// Ids of `eos_token_id` in the text of a `generation_config.json`.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn end_tokens(generation_config: &str) -> Vec<u32> {
    let config: serde_json::Value =
        serde_json::from_str(generation_config).expect("generation_config.json is JSON");
    let ids = config["eos_token_id"].as_array().expect("a list of end-of-turn ids");
    ids.iter().map(|id| id.as_u64().expect("a token id") as u32).collect()
}
