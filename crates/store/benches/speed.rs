//! Speed of the disk cache against plain writes and reads, at the sizes of the full model.

use calla_store::{Bytes, Limits, Sizes, Store};
use divan::Bencher;
use divan::counter::BytesCount;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const STATE_BYTES: usize = 64 << 20;
const PAGE_BYTES: usize = 1_310_720;
const PAGES: usize = 100;

fn main() {
    divan::main();
}

fn open(dir: &Path) -> Store {
    let sizes = Sizes { state_bytes: STATE_BYTES, page_bytes: PAGE_BYTES, page_tokens: 64 };
    let limits = Limits { bytes: 1 << 40, age: Duration::from_secs(1 << 30) };
    Store::open(dir, "speed", sizes, limits, SystemTime::now()).unwrap()
}

fn content() -> (Vec<u8>, Vec<(usize, Bytes)>) {
    let bytes =
        |len: usize, seed: usize| -> Vec<u8> { (0..len).map(|i| (i * 31 + seed) as u8).collect() };
    (bytes(STATE_BYTES, 0), (0..PAGES).map(|i| (i, Arc::new(bytes(PAGE_BYTES, i)))).collect())
}

fn total() -> BytesCount {
    BytesCount::new(STATE_BYTES + PAGES * PAGE_BYTES)
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn put(bencher: Bencher<'_, '_>) {
    let (state, pages) = content();
    let tokens: Vec<u32> = (0..PAGES as u32 * 64).collect();
    bencher.counter(total()).with_inputs(|| TempDir::new().unwrap()).bench_values(|dir| {
        let put = open(dir.path()).put("", "", &tokens, &state, &pages, SystemTime::now());
        put.unwrap();
        dir
    });
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn get(bencher: Bencher<'_, '_>) {
    let (state, pages) = content();
    let tokens: Vec<u32> = (0..PAGES as u32 * 64).collect();
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let id = store.put("", "", &tokens, &state, &pages, SystemTime::now()).unwrap().id;
    bencher.counter(total()).bench_local(|| store.get(id, 0, SystemTime::now()).unwrap());
}

/// The same bytes in as many files, each flushed.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn plain_write(bencher: Bencher<'_, '_>) {
    let (state, pages) = content();
    bencher.counter(total()).with_inputs(|| TempDir::new().unwrap()).bench_values(|dir| {
        for (i, bytes) in pages.iter().map(|page| &*page.1).chain([&state]).enumerate() {
            let mut file = File::create(dir.path().join(i.to_string())).unwrap();
            file.write_all(bytes).unwrap();
            file.sync_all().unwrap();
        }
        dir
    });
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn plain_read(bencher: Bencher<'_, '_>) {
    let (state, pages) = content();
    let dir = TempDir::new().unwrap();
    let files: Vec<_> = (0..=PAGES).map(|i| dir.path().join(i.to_string())).collect();
    for (file, bytes) in files.iter().zip(pages.iter().map(|page| &*page.1).chain([&state])) {
        fs::write(file, bytes).unwrap();
    }
    bencher
        .counter(total())
        .bench_local(|| -> usize { files.iter().map(|file| fs::read(file).unwrap().len()).sum() });
}
