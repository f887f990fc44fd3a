//! Directories in which somebody else has put things, or that refuse to be written.
#![cfg(unix)]

use crate::tools::*;
use calla_store::{Store, StoreError};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;
use tempfile::TempDir;

const SEVEN: [u32; 7] = [1, 2, 3, 4, 5, 6, 7];

fn name(kind: &str, digit: &str) -> String {
    format!("{kind}-{}.calla", digit.repeat(64))
}

#[test]
fn foreign_things_are_neither_used_nor_removed() {
    let dir = TempDir::new().unwrap();
    let outside = TempDir::new().unwrap();
    put(&mut open(dir.path()), &SEVEN);
    let version = version_dir(&dir);
    let target = outside.path().join(name("s", "1"));
    fs::copy(files(&dir, "s-").remove(0), &target).unwrap();

    let strange = version.join(OsStr::from_bytes(b"s-\xff\xfe.calla"));
    fs::write(&strange, "x").unwrap();
    let text = version.join(name("s", "2"));
    fs::write(&text, "somebody's notes").unwrap();
    let huge = version.join(name("p", "3"));
    File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let folder = version.join(name("s", "4"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "x").unwrap();
    let link = version.join(name("s", "1"));
    symlink(&target, &link).unwrap();
    let temporary_link = version.join("t-0123456789abcdef.tmp");
    symlink(&target, &temporary_link).unwrap();
    let loops = version.join(name("p", "5"));
    symlink(&loops, &loops).unwrap();
    let socket = version.join(name("p", "6"));
    // Bound under a shorter name: names of sockets are limited.
    let short = outside.path().join("socket");
    let _listener = UnixListener::bind(&short).unwrap();
    fs::rename(&short, &socket).unwrap();
    let pipe = version.join(name("s", "7"));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let dangling = dir.path().join(format!("v-{}", "8".repeat(64)));
    symlink(outside.path(), &dangling).unwrap();

    let all =
        [&strange, &folder, &link, &temporary_link, &loops, &socket, &pipe, &dangling, &target];
    let mut store = open(dir.path());
    assert_eq!(readable(&mut store), [SEVEN]);
    put(&mut store, &[5; 9]);
    for stored in store.stored().to_vec() {
        store.remove(stored.id).unwrap();
    }
    for path in all {
        assert!(fs::symlink_metadata(path).is_ok(), "{} is gone", path.display());
    }
    // Plain files under our names, in a folder that is ours, are ours and damaged.
    for path in [&text, &huge] {
        assert!(fs::symlink_metadata(path).is_err(), "{} is there", path.display());
    }
}

#[test]
fn files_that_a_power_loss_has_zeroed_are_replaced() {
    let dir = TempDir::new().unwrap();
    for kind in ["s-", "p-"] {
        put(&mut open(dir.path()), &SEVEN);
        for path in files(&dir, kind) {
            let len = fs::metadata(&path).unwrap().len();
            fs::write(&path, vec![0; len as usize]).unwrap();
        }
        let mut store = open(dir.path());
        assert_eq!(readable(&mut store), [[0_u32; 7]; 0]);
        put(&mut store, &SEVEN);
        assert_eq!(readable(&mut store), [SEVEN]);
        drop(store);
        assert_eq!(readable(&mut open(dir.path())), [SEVEN], "{kind}");
    }
}

#[test]
fn what_stands_in_the_way_of_a_file_is_named_and_stays() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = put(&mut store, &SEVEN);
    let snapshot = files(&dir, "s-").remove(0);
    let page = files(&dir, "p-").remove(0);
    store.remove(id).unwrap();
    for path in [snapshot, page] {
        let target = dir.path().join("target");
        fs::write(&target, "kept").unwrap();
        symlink(&target, &path).unwrap();
        let error =
            store.put("owner", "", &SEVEN, &state(&SEVEN), &pages(&SEVEN), at(0)).unwrap_err();
        assert!(matches!(&error, StoreError::Blocked { path: named } if *named == path), "{error}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        assert_eq!(store.bytes(), 0);
        fs::remove_file(&path).unwrap();
        fs::remove_file(&target).unwrap();
        assert_eq!((files(&dir, "p-").len(), files(&dir, "t-").len()), (0, 0));
    }
    put(&mut store, &SEVEN);
}

#[test]
fn a_file_exchanged_for_a_link_is_damage() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = put(&mut store, &SEVEN);
    let path = files(&dir, "s-").remove(0);
    let moved = dir.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    symlink(&moved, &path).unwrap();
    assert!(
        matches!(get(&mut store, id), Err(StoreError::Damaged { removed, .. }) if removed == [id])
    );
    assert!(moved.exists() && fs::symlink_metadata(&path).is_ok());
}

#[test]
fn links_in_place_of_the_version_are_not_followed() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path()));
    let version = version_dir(&dir);
    fs::remove_file(version.join("lock")).unwrap();
    let target = dir.path().join("target");
    symlink(&target, version.join("lock")).unwrap();
    let error = Store::open(dir.path(), "model 1", SIZES, WIDE, at(0)).err().unwrap();
    assert!(matches!(error, StoreError::Blocked { .. }), "{error}");
    assert!(!target.exists());

    fs::remove_dir_all(&version).unwrap();
    let elsewhere = TempDir::new().unwrap();
    symlink(elsewhere.path(), &version).unwrap();
    let error = Store::open(dir.path(), "model 1", SIZES, WIDE, at(0)).err().unwrap();
    assert!(matches!(error, StoreError::Blocked { .. }), "{error}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_cannot_be_written_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = put(&mut store, &SEVEN);
    let version = version_dir(&dir);
    fs::set_permissions(&version, fs::Permissions::from_mode(0o500)).unwrap();
    if File::create(version.join("probe")).is_ok() {
        eprintln!("skipped: this user may write everywhere");
        return;
    }
    let other = [5; 9];
    let error = store.put("owner", "", &other, &state(&other), &pages(&other), at(0)).unwrap_err();
    assert!(matches!(&error, StoreError::Io { path, .. } if path.starts_with(&version)), "{error}");
    assert!(matches!(store.remove(id), Err(StoreError::Io { .. })));
    assert_eq!(readable(&mut store), [SEVEN]);
    fs::set_permissions(&version, fs::Permissions::from_mode(0o700)).unwrap();
    put(&mut store, &other);
    assert_eq!(store.stored().len(), 2);
}

#[test]
fn a_path_that_cannot_be_made_is_named() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = Store::open(&file, "model 1", SIZES, WIDE, at(0)).err().unwrap();
    assert!(error.to_string().starts_with(file.to_str().unwrap()), "{error}");
    assert!(error.to_string().contains("is not a directory"), "{error}");
    let dangling = dir.path().join("dangling");
    symlink(dir.path().join("nowhere"), &dangling).unwrap();
    let error = Store::open(&dangling, "model 1", SIZES, WIDE, at(0)).err().unwrap();
    assert!(error.to_string().contains("leads nowhere"), "{error}");
    let error = Store::open(&file.join("below"), "model 1", SIZES, WIDE, at(0)).err().unwrap();
    assert!(matches!(error, StoreError::NoDirectory { path, .. } if path == file));
}

#[test]
fn a_blocked_page_leaves_other_prefixes_alone() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = put(&mut store, &SEVEN);
    let page = files(&dir, "p-").remove(0);
    store.remove(id).unwrap();
    fs::create_dir(&page).unwrap();
    let error = store.put("owner", "", &SEVEN, &state(&SEVEN), &pages(&SEVEN), at(0)).unwrap_err();
    assert!(matches!(error, StoreError::Blocked { path } if path == page));
    put(&mut store, &[5; 9]);
    drop(store);
    let mut store = open(dir.path());
    assert_eq!(readable(&mut store), [[5; 9]]);
    assert!(page.is_dir());
}
