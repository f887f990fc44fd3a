//! A small store in a temporary directory, and content that depends on the tokens.

use calla_store::{Bytes, Limits, Loaded, Sizes, Store, StoreError, Stored, StoredId};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

pub(crate) const SIZES: Sizes = Sizes { state_bytes: 16, page_bytes: 8, page_tokens: 4 };
pub(crate) const WIDE: Limits = Limits { bytes: 1 << 30, age: Duration::from_secs(1000) };

/// A time, in seconds.
pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

pub(crate) fn open_at(dir: &Path, limits: Limits, seconds: u64) -> Store {
    Store::open(dir, "model 1", SIZES, limits, at(seconds)).unwrap()
}

pub(crate) fn open(dir: &Path) -> Store {
    open_at(dir, WIDE, 0)
}

pub(crate) fn state(tokens: &[u32]) -> Vec<u8> {
    (0..16).map(|i| (tokens.len() as u8).wrapping_mul(17) ^ i).collect()
}

/// All pages of a prefix; the last has two bytes a token.
pub(crate) fn pages(tokens: &[u32]) -> Vec<(usize, Bytes)> {
    let page =
        |page: &[u32]| Arc::new(page.iter().flat_map(|&t| [t as u8, (t >> 8) as u8]).collect());
    tokens.chunks(4).map(page).enumerate().collect()
}

pub(crate) fn put_at(store: &mut Store, tokens: &[u32], seconds: u64) -> (StoredId, Vec<StoredId>) {
    let put = store.put("owner", "", tokens, &state(tokens), &pages(tokens), at(seconds)).unwrap();
    (put.id, put.removed)
}

pub(crate) fn put(store: &mut Store, tokens: &[u32]) -> StoredId {
    put_at(store, tokens, 0).0
}

pub(crate) fn loaded(tokens: &[u32], first_page: usize) -> Loaded {
    let pages = pages(tokens).into_iter().skip(first_page).map(|page| page.1.to_vec()).collect();
    Loaded { state: state(tokens), pages }
}

pub(crate) fn get(store: &mut Store, id: StoredId) -> Result<Loaded, StoreError> {
    store.get(id, 0, at(0))
}

/// Every stored prefix that can be read; each that can must be as it was put.
pub(crate) fn readable(store: &mut Store) -> Vec<Vec<u32>> {
    let stored: Vec<Stored> = store.stored().to_vec();
    let mut prefixes = Vec::new();
    for Stored { id, tokens, .. } in stored {
        if let Ok(found) = get(store, id) {
            assert_eq!(found, loaded(&tokens, 0));
            prefixes.push(tokens);
        }
    }
    prefixes.sort();
    prefixes
}

/// The only version's directory.
pub(crate) fn version_dir(dir: &TempDir) -> PathBuf {
    let mut dirs = fs::read_dir(dir.path()).unwrap().map(|item| item.unwrap().path());
    let found = dirs.next().unwrap();
    assert!(dirs.next().is_none());
    found
}

/// Files of the only version whose names start with a prefix, in order.
pub(crate) fn files(dir: &TempDir, prefix: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(version_dir(dir))
        .unwrap()
        .map(|item| item.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix))
        .collect();
    files.sort();
    files
}
