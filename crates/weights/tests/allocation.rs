//! Hostile files cannot make the readers allocate more than their own size explains.

mod common;

use calla_weights::{Checkpoint, header};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Tests of one program run side by side, and the counters are shared.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call goes to the system's allocator unchanged; the counters do not touch memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that were live at once during `work`, beyond those before it.
fn peak(work: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

#[test]
fn headers_cost_memory_in_proportion_to_themselves() {
    let _alone = ALONE.lock().unwrap();
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let shape = |shape: &str| {
        format!("{{\"w\":{{\"dtype\":\"U8\",\"shape\":[{shape}],\"data_offsets\":[0,1]}}}}")
    };
    let entries = |count: usize| -> String {
        let one = |i: usize| {
            format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{i},{}]}}", i + 1)
        };
        format!("{{{}}}", (0..count).map(one).collect::<Vec<_>>().join(","))
    };
    for (header, per_byte) in [
        (shape(&list("1", 5_000_000)), 1),
        (shape("18446744073709551615,18446744073709551615"), 1),
        (format!("{{\"w\":{{\"x\":[{}]}}}}", list("[[]]", 1_000_000)), 1),
        (format!("{{\"w\":{}", "[".repeat(5_000_000)), 1),
        (format!("{{\"{}\":1}}", "n".repeat(5_000_000)), 4),
        // An entry in memory is larger than its 55 bytes of text.
        (entries(100_000), 12),
        (entries(300_000), 12),
    ] {
        let file = common::file_of(&header, &[0]);
        let bytes = peak(|| drop(header::read(&file)));
        let allowed = per_byte * file.len() + 4096;
        assert!(bytes <= allowed, "{} bytes of header took {bytes}", header.len());
    }
    for claimed in [99_999_999, 100_000_000, 1 << 40, u64::MAX] {
        let file = [&claimed.to_le_bytes()[..], b"{}"].concat();
        let bytes = peak(|| drop(header::read(&file)));
        assert!(bytes <= 4096, "a claim of {claimed} bytes took {bytes}");
    }
}

#[test]
fn a_checkpoint_costs_little_beside_its_map() {
    let _alone = ALONE.lock().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tensors = common::tiny(dir.path(), true);
    let all: usize = tensors.values().map(|t| t.bytes.len()).sum();
    let bytes = peak(|| {
        let network = Checkpoint::open(dir.path()).unwrap().load().unwrap();
        drop(network);
    });
    // The small vectors in f32 and the table of names, but no matrix.
    assert!(bytes < all / 2, "{bytes} of {all}");
}
