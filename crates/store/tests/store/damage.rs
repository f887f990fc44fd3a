//! Damaged files are found, reported and removed, and nothing else is lost.

use crate::tools::*;
use calla_store::{Store, StoreError};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const SEVEN: [u32; 7] = [1, 2, 3, 4, 5, 6, 7];
const OTHER: [u32; 5] = [9, 9, 9, 9, 9];

/// Damages each of a prefix's two files in turn, and checks what the running store and the next one do.
fn each_damage(damages: impl Fn(&[u8]) -> Vec<Vec<u8>>) {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    put(&mut store, &SEVEN);
    let originals: Vec<_> = [files(&dir, "s-"), files(&dir, "p-")].concat();
    assert_eq!(originals.len(), 2);
    let originals = originals.into_iter().map(|path| (fs::read(&path).unwrap(), path));
    let originals: Vec<_> = originals.collect();
    put(&mut store, &OTHER);
    for (good, path) in originals {
        for bad in damages(&good) {
            // Found when it is read...
            let id = put(&mut store, &SEVEN);
            fs::write(&path, &bad).unwrap();
            let error = get(&mut store, id).unwrap_err();
            let StoreError::Damaged { path: named, removed, .. } = error else { panic!("{error}") };
            assert_eq!((named, removed), (path.clone(), vec![id]));
            assert!(!path.exists());
            assert_eq!(readable(&mut store), [OTHER]);
            // ... and when it is there before the store.
            put(&mut store, &SEVEN);
            drop(store);
            fs::write(&path, &bad).unwrap();
            store = open(dir.path());
            assert_eq!(readable(&mut store), [OTHER]);
            assert_eq!((files(&dir, "s-").len(), files(&dir, "p-").len()), (1, 1));
        }
    }
}

#[test]
fn a_change_of_any_byte_is_found() {
    each_damage(|good| {
        let flip = |i: usize, mask: u8| {
            let mut bad = good.to_vec();
            bad[i] ^= mask;
            bad
        };
        (0..good.len()).flat_map(|i| [flip(i, 1 << (i % 8)), flip(i, 0xff)]).collect()
    });
}

#[test]
fn every_length_is_found() {
    each_damage(|good| {
        let cut = |len: usize| good[..len].to_vec();
        let longer = |n: usize| [good, &vec![0; n]].concat();
        (0..good.len()).map(cut).chain([longer(1), longer(1000)]).collect()
    });
}

#[test]
fn a_missing_or_exchanged_page_takes_all_that_have_it() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let first = put(&mut store, &SEVEN);
    let page = files(&dir, "p-").remove(0);
    let second = put(&mut store, &[1, 2, 3, 4, 8]);
    fs::remove_file(&page).unwrap();
    let Err(StoreError::Damaged { mut removed, .. }) = get(&mut store, first) else {
        panic!("not found")
    };
    removed.sort();
    assert_eq!(removed, [first, second]);
    assert_eq!(store.bytes(), 0);
    assert!(
        matches!(get(&mut store, second), Err(StoreError::Damaged { removed, .. }) if removed == [second])
    );

    let id = put(&mut store, &SEVEN);
    put(&mut store, &OTHER);
    let other = files(&dir, "p-").into_iter().find(|path| *path != page).unwrap();
    fs::copy(other, &page).unwrap();
    assert!(matches!(get(&mut store, id), Err(StoreError::Damaged { path, .. }) if path == page));
    assert_eq!(readable(&mut store), [OTHER]);
}

#[test]
fn pages_that_are_not_asked_for_are_not_read() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = put(&mut store, &SEVEN);
    fs::remove_file(files(&dir, "p-").remove(0)).unwrap();
    assert_eq!(store.get(id, 1, at(0)).unwrap(), loaded(&SEVEN, 1));
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = put(&mut store, &OTHER);
    put(&mut store, &SEVEN);
    let whole = fs::read(files(&dir, "s-").remove(0)).unwrap();
    store.remove(id).unwrap();
    drop(store);
    let version = version_dir(&dir);
    let parts = [0, 1, 5, 50, whole.len() - 1, whole.len()];
    for (i, len) in parts.into_iter().enumerate() {
        fs::write(version.join(format!("t-{i:016x}.tmp")), &whole[..len]).unwrap();
    }
    // Written before the snapshot that did not come any more.
    let page = fs::read(files(&dir, "p-").remove(0)).unwrap();
    fs::write(version.join(format!("p-{}.calla", "ab".repeat(32))), page).unwrap();
    let mut store = open(dir.path());
    assert_eq!(files(&dir, "t-").len(), 0);
    assert_eq!(files(&dir, "p-").len(), 1);
    assert_eq!(readable(&mut store), [SEVEN]);
}

#[test]
fn another_network_does_not_read_them() {
    let dir = TempDir::new().unwrap();
    put(&mut open(dir.path()), &SEVEN);
    let other = Store::open(dir.path(), "model 2", SIZES, WIDE, at(0)).unwrap();
    assert!(other.stored().is_empty());
    drop(other);
    let larger = calla_store::Sizes { state_bytes: 17, ..SIZES };
    assert_eq!(open(dir.path()).stored().len(), 1);
    let changed = Store::open(dir.path(), "model 1", larger, WIDE, at(0)).unwrap();
    assert!(changed.stored().is_empty());
}

/// Files of another version are not read under this version's directory.
#[test]
fn files_moved_from_another_version_are_removed() {
    let dir = TempDir::new().unwrap();
    put(&mut open(dir.path()), &SEVEN);
    let moved = files(&dir, "").into_iter().filter(|path| path.extension().is_some());
    let moved: Vec<_> = moved.collect();
    assert_eq!(moved.len(), 2);
    let second = TempDir::new().unwrap();
    let mut store = Store::open(second.path(), "model 2", SIZES, WIDE, at(0)).unwrap();
    put(&mut store, &OTHER);
    drop(store);
    for path in moved {
        fs::copy(&path, version_dir(&second).join(path.file_name().unwrap())).unwrap();
    }
    let mut store = Store::open(second.path(), "model 2", SIZES, WIDE, at(0)).unwrap();
    assert_eq!(readable(&mut store), [OTHER]);
    assert_eq!((files(&second, "s-").len(), files(&second, "p-").len()), (1, 1));
}

fn zero(path: &Path) {
    let len = fs::metadata(path).unwrap().len() as usize;
    fs::write(path, vec![0; len]).unwrap();
}

/// A loss of power leaves files of the right length that hold zeros.
#[test]
fn files_of_zeros_are_removed_and_written_anew() {
    for (kind, running) in [("p-", true), ("p-", false), ("s-", true), ("s-", false), ("", false)] {
        let dir = TempDir::new().unwrap();
        let mut store = open(dir.path());
        let id = put(&mut store, &SEVEN);
        files(&dir, kind).iter().filter(|path| !path.ends_with("lock")).for_each(|path| zero(path));
        if running {
            assert!(matches!(get(&mut store, id), Err(StoreError::Damaged { .. })));
        } else {
            drop(store);
            store = open(dir.path());
        }
        assert!(store.stored().is_empty());
        assert_eq!((files(&dir, "s-").len(), files(&dir, "p-").len()), (0, 0), "{kind}");
        put(&mut store, &SEVEN);
        assert_eq!(readable(&mut store), [SEVEN]);
    }
}

#[test]
fn foreign_content_under_our_names_is_removed_or_replaced() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = put(&mut store, &SEVEN);
    let ours = [files(&dir, "s-"), files(&dir, "p-")].concat();
    store.remove(id).unwrap();
    for path in &ours {
        fs::write(path, "somebody's notes, long enough for a mark").unwrap();
    }
    put(&mut store, &SEVEN);
    assert_eq!(readable(&mut store), [SEVEN]);
    drop(store);
    let huge = version_dir(&dir).join(format!("p-{}.calla", "3".repeat(64)));
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let temporary = version_dir(&dir).join("t-0123456789abcdef.tmp");
    fs::write(&temporary, [0; 50]).unwrap();
    assert_eq!(readable(&mut open(dir.path())), [SEVEN]);
    assert!(!huge.exists() && !temporary.exists());
}

#[test]
fn one_get_finds_all_damaged_pages_and_one_put_heals_them() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let long: Vec<u32> = (1..18).collect();
    let id = put(&mut store, &long);
    // Shares all pages, and so keeps their files when the first goes.
    let shorter = put(&mut store, &long[..16]);
    let damaged = files(&dir, "p-");
    assert_eq!(damaged.len(), 4);
    for path in &damaged[..3] {
        zero(path);
    }
    let Err(StoreError::Damaged { mut removed, .. }) = get(&mut store, id) else {
        panic!("not found")
    };
    removed.sort();
    assert_eq!(removed, [id, shorter]);
    put(&mut store, &long);
    assert_eq!(readable(&mut store), [long]);
}

/// A damaged state as well: the pages stay for another snapshot, and are not good either.
#[test]
fn a_damaged_snapshot_has_its_pages_checked() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let first = put(&mut store, &SEVEN);
    let snapshot = files(&dir, "s-").remove(0);
    put(&mut store, &SEVEN[..5]);
    zero(&snapshot);
    zero(&files(&dir, "p-")[0]);
    assert!(
        matches!(get(&mut store, first), Err(StoreError::Damaged { removed, .. }) if removed.len() == 2)
    );
    put(&mut store, &SEVEN);
    assert_eq!(readable(&mut store), [SEVEN]);
}

fn overwrite(path: &Path, at: usize, bytes: &[u8]) {
    let mut content = fs::read(path).unwrap();
    let at = at % content.len().max(1);
    let end = content.len().min(at + bytes.len());
    content[at..end].copy_from_slice(&bytes[..end - at]);
    fs::write(path, content).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_bytes_are_survived(bytes: Vec<u8>, which: prop::sample::Index, at: usize, whole: bool) {
        let dir = TempDir::new().unwrap();
        let mut store = open(dir.path());
        put(&mut store, &SEVEN);
        put(&mut store, &OTHER);
        let files = files(&dir, "");
        let path = which.get(&files);
        if whole {
            fs::write(path, &bytes).unwrap();
        } else {
            overwrite(path, at, &bytes);
        }
        // What can be read is what was put: `readable` asserts it.
        readable(&mut store);
        drop(store);
        let (mut store, is_version) = match Store::open(dir.path(), "model 1", SIZES, WIDE, crate::tools::at(0)) {
            Ok(store) => (store, false),
            // Foreign bytes under the name of the version's text stay.
            Err(StoreError::Blocked { path }) => {
                prop_assert!(path.ends_with("version"));
                fs::remove_file(path).unwrap();
                (open(dir.path()), true)
            }
            Err(error) => panic!("{error}"),
        };
        let read = readable(&mut store);
        let least = usize::from(is_version) + 1;
        prop_assert!(read.len() >= least, "{:?}", read);
        put(&mut store, &SEVEN);
        prop_assert!(readable(&mut store).contains(&SEVEN.to_vec()));
    }
}
