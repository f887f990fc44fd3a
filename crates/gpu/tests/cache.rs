//! State of sequences on a device.

mod common;

use calla_gpu::cache::{DeviceCache, StateError};
use calla_gpu::{BufferId, Described, Device as _, DeviceError, Dtype, Tensor};
use calla_model::shape::PAGE_TOKENS;
use calla_model::{LayerKind, Shape};
use calla_ops::{CacheError, CacheSize, Span, SpanKind};
use calla_testkit::{Random, shapes};
use common::TestDevice;

const SIZE: CacheSize = CacheSize { pages: 3, slots: 4 };
const SPARES: usize = 2;

/// Two DeltaNet layers and an attention layer.
fn shape() -> Shape {
    use LayerKind::{Attention, DeltaNet};
    Shape { layers: vec![DeltaNet, Attention, DeltaNet], ..shapes::tiny() }
}

fn cache(device: &mut TestDevice, drafting: bool) -> DeviceCache {
    DeviceCache::new(device, &shape(), SIZE, SPARES, drafting).expect("memory")
}

/// A cache without data, and the bytes that were allocated for it.
fn described(shape: &Shape, size: CacheSize, spares: usize, drafting: bool) -> (DeviceCache, u64) {
    let mut device = Described::new(drafting);
    let cache =
        DeviceCache::new(&mut device, shape, size, spares, drafting).expect("no memory is needed");
    (cache, device.bytes())
}

fn run(device: &mut TestDevice, dispatches: &[calla_gpu::Dispatch]) {
    // Of one stage: the driver refuses them if one touches what another writes.
    let stages = if dispatches.is_empty() { vec![] } else { vec![dispatches.len()] };
    device.run(dispatches, &stages).unwrap_or_else(|error| panic!("{error}"));
}

/// What a slot, or a page, consists of.
fn parts(cache: &DeviceCache) -> [Vec<Tensor>; 2] {
    let slots = cache.delta().iter().flat_map(|layer| [layer.states, layer.windows]);
    let pages = cache.attention().iter().flat_map(|layer| [layer.keys, layer.values]);
    [slots.chain(cache.kept()).collect(), pages.collect()]
}

fn bytes(device: &mut TestDevice, tensor: Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.range.len as usize];
    device.read(tensor.range, &mut bytes).expect("a read");
    bytes
}

/// Fills everything with random bits, those of NaN among them.
fn fill(device: &mut TestDevice, cache: &DeviceCache, random: &mut Random) {
    for part in parts(cache).concat() {
        let bytes: Vec<u8> = (0..part.range.len).map(|_| random.range(0..=255) as u8).collect();
        device.write(part.range, &bytes).expect("a write");
    }
}

/// Row `index` of each part, one after the other.
fn entry(device: &mut TestDevice, parts: &[Tensor], index: u32) -> Vec<u8> {
    let mut all = vec![];
    for &part in parts {
        let len = part.row_bytes() as usize;
        all.extend_from_slice(&bytes(device, part)[index as usize * len..][..len]);
    }
    all
}

/// All slots and pages.
fn contents(device: &mut TestDevice, cache: &DeviceCache) -> [Vec<Vec<u8>>; 2] {
    let slots = (0..SIZE.slots).map(|slot| {
        let mut bytes = vec![7; 3];
        cache.read_slot(device, slot, &mut bytes).expect("a slot");
        bytes
    });
    let slots = slots.collect();
    let pages = (0..SIZE.pages).map(|page| {
        let mut bytes = vec![7; 3];
        cache.read_page(device, page, &mut bytes).expect("a page");
        bytes
    });
    [slots, pages.collect()]
}

fn span(slot: usize, checkpoints: &[usize]) -> Span {
    let rows = 0..checkpoints.len() + 1;
    let checkpoints = checkpoints.to_vec();
    Span { checkpoints, ..Span::new(SpanKind::Decode, rows, 0, slot, vec![0]) }
}

#[test]
fn a_new_cache_is_zero() {
    let Some(mut device) = common::device() else { return };
    for drafting in [false, true] {
        let cache = cache(&mut device, drafting);
        assert_eq!(
            (cache.attention().len(), cache.kept().is_some()),
            (1 + usize::from(drafting), drafting)
        );
        for part in parts(&cache).concat() {
            assert!(bytes(&mut device, part).iter().all(|&byte| byte == 0), "{part:?}");
        }
    }
}

#[test]
fn slots_and_pages_move_as_bytes_of_the_same_bits() {
    let Some(mut device) = common::device() else { return };
    for (seed, drafting) in [(1, false), (2, true)] {
        let random = &mut Random::new(seed);
        let (from, to) = (cache(&mut device, drafting), cache(&mut device, drafting));
        fill(&mut device, &from, random);
        fill(&mut device, &to, random);
        let [slot_parts, page_parts] = parts(&from);
        let [slots, pages] = contents(&mut device, &from);
        for (i, slot) in (0..).zip(&slots) {
            assert_eq!(slot.len(), from.slot_bytes());
            assert!(*slot == entry(&mut device, &slot_parts, i), "slot {i}");
        }
        for (i, page) in (0..).zip(&pages) {
            assert_eq!(page.len(), from.page_bytes());
            assert!(*page == entry(&mut device, &page_parts, i), "page {i}");
        }

        let mut expected = contents(&mut device, &to);
        to.write_slot(&mut device, 3, &slots[1]).expect("a slot");
        expected[0][3].clone_from(&slots[1]);
        to.write_page(&mut device, 0, &pages[2]).expect("a page");
        expected[1][0].clone_from(&pages[2]);
        assert!(contents(&mut device, &to) == expected, "written");

        run(&mut device, &to.copy_slot(3, 0).expect("slots"));
        expected[0][0].clone_from(&slots[1]);
        run(&mut device, &to.copy_page(0, 1).expect("pages"));
        expected[1][1].clone_from(&pages[2]);
        assert!(contents(&mut device, &to) == expected, "copied");

        run(&mut device, &to.clear_slot(3).expect("a slot"));
        expected[0][3].fill(0);
        run(&mut device, &to.copy_slot(1, 1).expect("a slot"));
        run(&mut device, &to.copy_page(2, 2).expect("a page"));
        assert!(contents(&mut device, &to) == expected, "cleared");
    }
}

#[test]
fn a_step_moves_its_sequences_only_where_it_is_committed() {
    let Some(mut device) = common::device() else { return };
    let mut cache = cache(&mut device, true);
    fill(&mut device, &cache, &mut Random::new(3));
    let [before, _] = contents(&mut device, &cache);
    let [slot_parts, _] = parts(&cache);
    // What a step leaves in a physical slot.
    let leave = |device: &mut TestDevice, slot: u32, value: u8| {
        for part in &slot_parts {
            let len = part.row_bytes();
            let range = calla_gpu::Range { start: u64::from(slot) * len, len, ..part.range };
            device.write(range, &vec![value; len as usize]).expect("a write");
        }
    };
    assert_eq!(cache.max_spans(), SPARES);
    let spans = [span(2, &[0]), span(1, &[])];

    // Abandoned: only the checkpoint is not what it was.
    let moves = cache.begin(&spans).expect("spare slots");
    let [[from, to], [other_from, other_to]] = [2, 1].map(|slot| moves.of(slot).expect("a move"));
    let checkpoint = moves.checkpoint(0).expect("a checkpoint");
    let mut all = vec![from, to, other_from, other_to, checkpoint];
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|&slot| slot < slot_parts[0].rows));
    assert_eq!((moves.of(0), moves.of(3), moves.checkpoint(2)), (None, None, None));
    assert!(entry(&mut device, &slot_parts, from) == before[2]);
    for (slot, value) in [(to, 1), (other_to, 2), (checkpoint, 3)] {
        leave(&mut device, slot, value);
    }
    let mut expected = before.clone();
    expected[0].fill(3);
    assert!(contents(&mut device, &cache)[0] == expected, "abandoned");

    // Committed.
    let again = cache.begin(&spans).expect("spare slots");
    assert_eq!(again, moves);
    cache.commit(again);
    expected[2].fill(1);
    expected[1].fill(2);
    assert!(contents(&mut device, &cache)[0] == expected, "committed");

    // The next step goes to where the first came from, and what moves bytes goes along.
    let next = cache.begin(&spans[..1]).expect("spare slots");
    assert_eq!(next.of(2), Some([to, from]));
    cache.write_slot(&mut device, 2, &before[3]).expect("a slot");
    expected[2].clone_from(&before[3]);
    run(&mut device, &cache.copy_slot(2, 1).expect("slots"));
    expected[1].clone_from(&before[3]);
    run(&mut device, &cache.clear_slot(2).expect("a slot"));
    expected[2].fill(0);
    assert!(contents(&mut device, &cache)[0] == expected, "moved");
}

#[test]
fn random_steps_keep_every_sequence_its_own_slot() {
    let random = &mut Random::new(4);
    let mut cache = described(&shape(), SIZE, SPARES, false).0;
    let mut current: Vec<u32> = (0..4).collect();
    for _ in 0..200 {
        let count = random.range(1..=2);
        let slots = random.distinct(count, SIZE.slots);
        let spans: Vec<Span> = slots.iter().map(|&slot| span(slot, &[])).collect();
        let moves = cache.begin(&spans).expect("spare slots");
        let mut after = current.clone();
        for &slot in &slots {
            let [from, to] = moves.of(slot).expect("a move");
            assert_eq!(from, current[slot]);
            assert!(!current.contains(&to), "slot {to} is another's");
            after[slot] = to;
        }
        if random.range(0..=2) > 0 {
            cache.commit(moves);
            current = after;
        }
    }
}

#[test]
#[should_panic(expected = "other moves were committed")]
fn moves_of_the_past_are_refused() {
    let mut cache = described(&shape(), SIZE, SPARES, false).0;
    let (first, second) = (cache.begin(&[span(0, &[])]), cache.begin(&[span(1, &[])]));
    cache.commit(first.expect("spare slots"));
    cache.commit(second.expect("spare slots"));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let Some(mut device) = common::device() else { return };
    let cache = cache(&mut device, false);
    let spans = [span(0, &[]), span(1, &[]), span(2, &[])];
    let error = cache.begin(&spans).expect_err("two spare slots");
    assert_eq!(error, StateError::Spares { spans: 3, spares: 2 });
    assert!(error.to_string().contains("run it in parts"), "{error}");

    let slot = CacheError::Missing { what: "slot", index: 4, count: 4 };
    let page = CacheError::Missing { what: "page", index: 3, count: 3 };
    let mut out = vec![];
    assert_eq!(cache.begin(&[span(4, &[])]), Err(slot.clone().into()));
    assert_eq!(cache.begin(&[span(0, &[4])]), Err(slot.clone().into()));
    assert_eq!(cache.clear_slot(4), Err(slot.clone()));
    assert_eq!(cache.copy_slot(4, 0), Err(slot.clone()));
    assert_eq!(cache.copy_slot(0, 4), Err(slot.clone()));
    assert_eq!(cache.copy_page(0, 3), Err(page.clone()));
    assert_eq!(cache.copy_page(3, 0), Err(page.clone()));
    assert_eq!(cache.read_slot(&mut device, 4, &mut out), Err(slot.clone().into()));
    assert_eq!(cache.write_slot(&mut device, 4, &out), Err(slot.into()));
    assert_eq!(cache.read_page(&mut device, 3, &mut out), Err(page.clone().into()));
    assert_eq!(cache.write_page(&mut device, 3, &out), Err(page.into()));

    let short = |what, expected| CacheError::Length { what, expected, actual: expected - 1 };
    let error = short("slot", cache.slot_bytes());
    let bytes = vec![0; cache.slot_bytes() - 1];
    assert_eq!(cache.write_slot(&mut device, 0, &bytes), Err(error.into()));
    let error = short("page", cache.page_bytes());
    let bytes = vec![0; cache.page_bytes() - 1];
    assert_eq!(cache.write_page(&mut device, 0, &bytes), Err(error.into()));
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let Some(mut device) = common::device() else { return };
    // Beyond what can be counted, beyond what kernels count, and beyond what any machine has.
    for count in [usize::MAX, 1 << 32, u32::MAX as usize - SPARES] {
        for size in [CacheSize { pages: count, slots: 1 }, CacheSize { pages: 1, slots: count }] {
            let error = DeviceCache::new(&mut device, &shape(), size, SPARES, true);
            assert!(matches!(error, Err(DeviceError::OutOfMemory { .. })), "{size:?}: {error:?}");
        }
    }
    // What was allocated before the last layer failed is given back.
    let first = device.allocate("the first", 16).expect("memory");
    let size = CacheSize { pages: 1, slots: u32::MAX as usize - SPARES };
    DeviceCache::new(&mut device, &shape(), size, SPARES, true).expect_err("too many slots");
    let keys = Tensor::whole(BufferId(first.0 + 1), 1, 4, Dtype::Bf16);
    let error = device.read(keys.range, &mut [0; 8]).expect_err("it was released");
    assert!(error.to_string().contains("was released"), "{error}");
}

#[test]
fn caches_take_what_the_budget_counts() {
    use calla_model::budget::*;
    for shape in [Shape::demo(), Shape::full(40), shape()] {
        for drafting in [false, true] {
            let size = CacheSize { pages: 1000, slots: 7 };
            let (cache, allocated) = described(&shape, size, 5, drafting);
            let (mut slot, mut page) =
                (recurrent_state_bytes(&shape, 2), kv_bytes(&shape, PAGE_TOKENS, 2));
            if drafting {
                slot += draft_state_bytes(&shape);
                page += draft_kv_bytes(&shape, PAGE_TOKENS, 2);
            }
            assert_eq!((cache.slot_bytes() as u64, cache.page_bytes() as u64), (slot, page));
            assert_eq!(cache.bytes(), 12 * slot + 1000 * page);
            assert_eq!(allocated, cache.bytes());
        }
    }
}

#[test]
fn a_described_buffer_can_be_released_once() {
    let mut device = Described::new(false);
    let [first, second] = [16, 40].map(|bytes| device.allocate("values", bytes).expect("ids"));
    device.release(first).expect("a buffer");
    assert_eq!(device.bytes(), 48);
    let [gone, there] = [first, second].map(|buffer| Tensor::whole(buffer, 1, 4, Dtype::F32));
    assert!(device.write(gone.range, &[0; 16]).is_err());
    device.write(there.range, &[0; 16]).expect("a write");
    assert!(device.release(first).is_err());
}
