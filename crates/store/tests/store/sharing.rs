//! What is put comes back, from this process and the next; pages are stored once and go with the last user.

use crate::tools::*;
use calla_store::{Bytes, Store, StoreError};
use std::fs;
use std::sync::Arc;
use tempfile::TempDir;

const TEN: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

#[test]
fn a_prefix_comes_back_also_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let prefixes: [&[u32]; 3] = [&TEN, &TEN[..8], &TEN[..3]];
    for tokens in prefixes {
        let id = put(&mut store, tokens);
        for first_page in 0..4 {
            let found = store.get(id, first_page, at(0)).unwrap();
            assert_eq!(found, loaded(tokens, first_page));
        }
    }
    drop(store);
    let mut store = open(dir.path());
    assert_eq!(readable(&mut store), [&TEN[..3], &TEN[..8], &TEN[..]]);
    assert!(store.stored().iter().all(|s| s.owner == "owner" && s.name.is_empty()));
    let id = store.stored().iter().find(|s| s.tokens == TEN).unwrap().id;
    assert_eq!(id, put(&mut store, &TEN), "the same prefix keeps its name");
    assert_eq!(store.stored().len(), 3);
}

#[test]
fn full_pages_are_shared_and_go_with_the_last_user() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let long = put(&mut store, &TEN);
    assert_eq!(files(&dir, "p-").len(), 2);
    // Only the state and no page has to be given.
    let id = store.put("owner", "", &TEN[..8], &state(&TEN[..8]), &[], at(0)).unwrap().id;
    assert_eq!(store.missing_pages("owner", "", &[1, 2, 3, 4, 5, 6, 7, 9]), [1]);
    assert_eq!(files(&dir, "p-").len(), 2);
    assert_eq!(store.missing_pages("owner", "", &TEN), [2], "a partial page is never shared");
    store.remove(long).unwrap();
    assert_eq!(get(&mut store, id).unwrap(), loaded(&TEN[..8], 0));
    store.remove(id).unwrap();
    assert_eq!((files(&dir, "p-").len(), files(&dir, "s-").len()), (0, 0));
    assert_eq!(store.bytes(), 0);
    store.remove(id).unwrap();
}

#[test]
fn what_is_stored_already_is_only_marked_as_used() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let (id, _) = put_at(&mut store, &TEN, 0);
    let path = files(&dir, "s-").remove(0);
    let content = fs::read(&path).unwrap();
    let again = store.put("owner", "", &TEN, &[0; 16], &[], at(5)).unwrap();
    assert_eq!((again.id, again.removed), (id, vec![]));
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), at(5));
    // Gone from under the store: written anew.
    fs::remove_file(&path).unwrap();
    assert_eq!(put(&mut store, &TEN), id);
    assert_eq!(get(&mut store, id).unwrap(), loaded(&TEN, 0));
}

#[test]
fn owners_and_names_share_nothing() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    put(&mut store, &TEN);
    for (owner, name) in [("other", ""), ("owner", "x"), ("", "owner")] {
        assert_eq!(store.missing_pages(owner, name, &TEN), [0, 1, 2]);
        store.put(owner, name, &TEN, &state(&TEN), &pages(&TEN), at(0)).unwrap();
    }
    assert_eq!((files(&dir, "p-").len(), files(&dir, "s-").len()), (8, 4));
}

#[test]
fn wrong_sizes_and_missing_pages_are_refused_and_leave_nothing() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let mut refused = |state: &[u8], pages: &[(usize, Bytes)], expected: &str| {
        let error = store.put("owner", "", &TEN, state, pages, at(0)).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot store this prefix: {expected}"));
    };
    let (state, pages) = (state(&TEN), pages(&TEN));
    refused(&state[1..], &pages, "its state has 15 bytes but must have 16");
    refused(&state, &pages[1..], "page 0 is neither stored nor given");
    refused(&state, &pages[..2], "the partial page 2 has 0 bytes but must have from 1 to 8");
    let mut short = pages.clone();
    Arc::make_mut(&mut short[1].1).pop();
    refused(&state, &short, "page 1 has 7 bytes but must have 8");
    assert_eq!((files(&dir, "p-").len(), files(&dir, "s-").len()), (0, 0));
    assert_eq!(store.bytes(), 0);
}

#[test]
fn one_process_at_a_time_holds_a_version() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    let second = Store::open(dir.path(), "model 1", SIZES, WIDE, at(0));
    let Err(StoreError::InUse { dir: named }) = second else { panic!("not refused") };
    assert_eq!(named, version_dir(&dir));
    assert!(Store::open(dir.path(), "model 2", SIZES, WIDE, at(0)).is_ok());
    drop(store);
    open(dir.path());
}

#[cfg(unix)]
#[test]
fn only_the_owner_of_the_files_can_read_them() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let base = dir.path().join("made/for/this");
    let mut store = open(&base);
    put(&mut store, &TEN);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&base), 0o700);
    for version in fs::read_dir(&base).unwrap() {
        let version = version.unwrap().path();
        assert_eq!(mode(&version), 0o700);
        for file in fs::read_dir(version).unwrap() {
            assert_eq!(mode(&file.unwrap().path()), 0o600);
        }
    }
}
