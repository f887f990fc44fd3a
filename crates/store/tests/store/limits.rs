//! Limits of size and age, over all versions.

use crate::tools::*;
use calla_store::{Limits, Store, StoreError};
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

fn tokens(first: u32) -> [u32; 6] {
    [first, 2, 3, 4, 5, 6]
}

/// Bytes of one such snapshot with its page.
fn one() -> u64 {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    put(&mut store, &tokens(0));
    store.bytes()
}

#[test]
fn the_least_recently_used_goes_first_also_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let limits = Limits { bytes: 3 * one(), ..WIDE };
    let mut store = open_at(dir.path(), limits, 0);
    let ids: Vec<_> = (0..3).map(|i| put_at(&mut store, &tokens(i), i.into()).0).collect();
    store.get(ids[0], 0, at(10)).unwrap();
    let (fourth, removed) = put_at(&mut store, &tokens(3), 11);
    assert_eq!(removed, [ids[1]]);
    assert_eq!(store.bytes(), 3 * one());
    store.get(ids[2], 0, at(12)).unwrap();
    drop(store);
    let mut store = open_at(dir.path(), Limits { bytes: 3 * one() - 1, ..limits }, 13);
    assert_eq!(readable(&mut store), [tokens(2), tokens(3)]);
    let id = store.stored().iter().find(|s| s.tokens == tokens(3)).unwrap().id;
    assert_ne!(id, fourth, "names are of one opening");
}

#[test]
fn what_was_used_last_is_listed_last() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let ids: Vec<_> = (0..5).map(|i| put_at(&mut store, &tokens(i), i.into()).0).collect();
    store.get(ids[1], 0, at(9)).unwrap();
    drop(store);
    let store = open_at(dir.path(), WIDE, 10);
    let listed: Vec<u32> = store.stored().iter().map(|stored| stored.tokens[0]).collect();
    assert_eq!(listed, [0, 2, 3, 4, 1]);
}

#[test]
fn what_cannot_fit_removes_nothing() {
    let dir = TempDir::new().unwrap();
    let limits = Limits { bytes: 2 * one(), ..WIDE };
    let mut store = open_at(dir.path(), limits, 0);
    put(&mut store, &tokens(1));
    let long: Vec<u32> = (0..40).collect();
    let error = store.put("owner", "", &long, &state(&long), &pages(&long), at(1)).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { limit, .. } if limit == 2 * one()), "{error}");
    assert_eq!(readable(&mut store), [tokens(1)]);
}

/// A directory in the way of the last file to be written stands for a full disk.
#[test]
fn a_failed_put_removes_nothing() {
    let dir = TempDir::new().unwrap();
    let limits = Limits { bytes: one(), ..WIDE };
    let mut store = open_at(dir.path(), limits, 0);
    let (id, _) = put_at(&mut store, &tokens(1), 0);
    let path = files(&dir, "s-").remove(0);
    store.remove(id).unwrap();
    put_at(&mut store, &tokens(2), 1);
    fs::create_dir(&path).unwrap();
    let prefix = tokens(1);
    store.put("owner", "", &prefix, &state(&prefix), &pages(&prefix), at(2)).unwrap_err();
    assert_eq!(readable(&mut store), [tokens(2)]);
    assert_eq!((store.bytes(), files(&dir, "p-").len()), (one(), 1));
    fs::remove_dir(&path).unwrap();
    put_at(&mut store, &prefix, 3);
    assert_eq!(readable(&mut store), [prefix]);
}

/// Several at once, and only until it is the turn of this version's.
#[test]
fn other_versions_go_by_last_use() {
    let dir = TempDir::new().unwrap();
    let other = |seconds| Store::open(dir.path(), "model 2", SIZES, WIDE, at(seconds)).unwrap();
    let mut second = other(0);
    for i in 0..4 {
        put_at(&mut second, &tokens(i), (10 * i).into());
    }
    drop(second);
    put_at(&mut open_at(dir.path(), WIDE, 15), &tokens(9), 15);
    let store = open_at(dir.path(), Limits { bytes: 2 * one(), ..WIDE }, 40);
    assert_eq!(store.stored().len(), 0);
    assert_eq!(store.bytes(), 2 * one());
    drop(store);
    assert_eq!(readable(&mut other(41)), [tokens(2), tokens(3)]);
}

#[test]
fn making_room_spares_the_pages_of_the_new_snapshot() {
    let dir = TempDir::new().unwrap();
    let limits = Limits { bytes: one() + 100, ..WIDE };
    let mut store = open_at(dir.path(), limits, 0);
    let (old, _) = put_at(&mut store, &tokens(1), 0);
    // Shares the page, which is not given again.
    let longer = [1, 2, 3, 4, 9, 9];
    let put =
        store.put("owner", "", &longer, &state(&longer), &pages(&longer)[1..], at(1)).unwrap();
    assert_eq!(put.removed, [old]);
    assert_eq!(get(&mut store, put.id).unwrap(), loaded(&longer, 0));
    assert_eq!(files(&dir, "p-").len(), 1);
}

#[test]
fn what_is_not_used_for_long_goes() {
    let dir = TempDir::new().unwrap();
    let limits = Limits { age: Duration::from_secs(100), ..WIDE };
    let mut store = open_at(dir.path(), limits, 0);
    let (old, _) = put_at(&mut store, &tokens(1), 0);
    let (used, _) = put_at(&mut store, &tokens(2), 0);
    store.get(used, 0, at(50)).unwrap();
    let (_, removed) = put_at(&mut store, &tokens(3), 101);
    assert_eq!(removed, [old]);
    drop(store);
    let mut store = open_at(dir.path(), limits, 151);
    assert_eq!(readable(&mut store), [tokens(3)]);
}

#[test]
fn a_time_in_the_future_is_now() {
    let dir = TempDir::new().unwrap();
    put_at(&mut open(dir.path()), &tokens(1), 1 << 30);
    let mut store = open_at(dir.path(), Limits { bytes: one(), ..WIDE }, 5);
    let (_, removed) = put_at(&mut store, &tokens(2), 6);
    assert_eq!(removed.len(), 1, "it does not stay for ever");
}

#[test]
fn other_versions_count_and_go_in_their_turn() {
    let dir = TempDir::new().unwrap();
    let other = |limits, seconds| Store::open(dir.path(), "model 2", SIZES, limits, at(seconds));
    let mut second = other(WIDE, 0).unwrap();
    put_at(&mut second, &tokens(1), 0);
    put_at(&mut second, &tokens(2), 20);
    drop(second);
    let limits = Limits { bytes: 3 * one(), ..WIDE };
    let mut store = open_at(dir.path(), limits, 21);
    assert_eq!(store.bytes(), 2 * one());
    put_at(&mut store, &tokens(3), 22);
    // The oldest is the other version's first one.
    let (_, removed) = put_at(&mut store, &tokens(4), 23);
    assert!(removed.is_empty());
    assert_eq!(readable(&mut other(WIDE, 24).unwrap()), [tokens(2)]);

    // One that is in use is left alone.
    let held = other(WIDE, 24).unwrap();
    drop(store);
    let mut store = open_at(dir.path(), limits, 25);
    assert_eq!(store.bytes(), 3 * one());
    let (_, removed) = put_at(&mut store, &tokens(5), 26);
    assert_eq!(removed.len(), 1);
    assert_eq!(held.stored().len(), 1);
    drop((store, held));

    // Age counts for all.
    open_at(dir.path(), Limits { age: Duration::from_secs(5), ..limits }, 29);
    assert!(other(WIDE, 30).unwrap().stored().is_empty());
}
