//! The recurrence in chunks against the reference with sums in f64.

mod common;

use calla_gpu::gated_delta::gated_delta;
use calla_gpu::{ChunkEntry, Dtype};
use calla_model::Shape;
use calla_ops::Rows;
use calla_ops::ops::DeltaTerms;
use calla_testkit::{Random, compare};
use common::TestDevice;
use common::delta::{self, Inputs, Layer, Layout, Slots};
use common::temporaries::Temporaries;
use common::tolerance;

/// Terms of some rows as the device holds them; `shift` moves the decays (large is fast).
fn terms(
    device: &mut TestDevice,
    random: &mut Random,
    layout: &Layout,
    shape: &Shape,
    shift: f32,
) -> (DeltaTerms<Rows>, Slots) {
    let layer = Layer::new(device, shape.clone(), random.bits());
    let inputs = Inputs::new(random, shape, layout.rows(), shift);
    let mut slots = Slots::random(random, shape, layout.slots);
    let exact = delta::reference_terms(&layer, &inputs, layout, &mut slots);
    let [q, k, v] = [&exact.q, &exact.k, &exact.v].map(common::rounded);
    (DeltaTerms { q, k, v, ..exact }, slots)
}

/// Runs the recurrence; gives the outputs and the slots after it.
fn recurrence(
    device: &mut TestDevice,
    shape: &Shape,
    terms: &DeltaTerms<Rows>,
    layout: &Layout,
    chunks: &[ChunkEntry],
    before: &Slots,
) -> (Rows, Slots) {
    let [q, k, v] = [&terms.q, &terms.k, &terms.v].map(|rows| common::bf16s(device, rows));
    let [beta, log_decay] = [&terms.beta, &terms.log_decay].map(|rows| common::f32s(device, rows));
    let uploaded = DeltaTerms { q, k, v, beta, log_decay };
    let slots = before.upload(device);
    let tables = layout.tables(device, chunks);
    let out = common::output(device, layout.rows(), shape.delta_value_dim(), Dtype::Bf16);
    let dispatches = gated_delta(shape, &uploaded, &slots, &tables, &mut Temporaries(device), out);
    common::run(device, &dispatches);
    (common::rows(device, out), Slots::download(device, &slots))
}

fn written(all: &Slots, layout: &Layout) -> Rows {
    let states = layout.written();
    let values = states.iter().flat_map(|&slot| all.states.row(slot)).copied().collect();
    Rows::from_vec(all.states.cols(), values)
}

#[test]
fn matches_the_reference() {
    let Some(mut device) = common::device() else { return };
    // Heads, rows of each span, decays.
    let cases: [((usize, usize), &[usize], f32); 10] = [
        ((1, 1), &[1], 0.0),
        ((2, 4), &[7, 8, 9], 0.0),
        ((1, 3), &[31, 32, 33], 0.0),
        ((1, 3), &[63, 64, 65], -4.0),
        ((1, 1), &[200], 0.0),
        // Decays of nearly 1 (all is kept), and such that nothing is.
        ((1, 2), &[130], -12.0),
        ((1, 2), &[130, 5], 12.0),
        ((3, 3), &[64], 3.0),
        ((2, 4), &[1, 1, 70], 0.0),
        ((1, 1), &[1000], -8.0),
    ];
    for (seed, ((key_heads, value_heads), lengths, shift)) in (1..).zip(cases) {
        let mut random = Random::new(seed);
        let shape = delta::shape(key_heads, value_heads);
        let layout = Layout::new(&mut random, lengths, false);
        let (terms, before) = terms(&mut device, &mut random, &layout, &shape, shift);
        let chunks = layout.chunks(|| 64);
        let (found, after) = recurrence(&mut device, &shape, &terms, &layout, &chunks, &before);
        let mut due_slots = before.clone();
        let due = delta::reference_recurrence(&shape, &terms, &layout, &mut due_slots, Some(64));
        let due = common::beyond_rounding(&found, &due, tolerance::BF16);
        let off = compare::within(
            &delta::by_head(&found),
            &delta::by_head(&due),
            tolerance::DELTA_CHUNKS,
        )
        .unwrap_or_else(|error| panic!("case {seed}: {error}"));
        let state = compare::within(
            &written(&after, &layout),
            &written(&due_slots, &layout),
            tolerance::DELTA_STATE,
        )
        .unwrap_or_else(|error| panic!("state of case {seed}: {error}"));
        println!("case {seed}: {:.1e}, state {:.1e}", off.max_relative, state.max_relative);
        after.assert_others_kept(&before, &layout.written());
    }
}

#[test]
fn any_cut_into_chunks_is_the_same_recurrence() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(31);
    let shape = delta::shape(1, 2);
    let layout = Layout::new(&mut random, &[90, 20, 150], false);
    let (terms, before) = terms(&mut device, &mut random, &layout, &shape, 0.0);
    let mut due_slots = before.clone();
    let due = delta::reference_recurrence(&shape, &terms, &layout, &mut due_slots, None);
    for _ in 0..3 {
        let chunks = layout.chunks(|| random.range(1..=64));
        let (found, after) = recurrence(&mut device, &shape, &terms, &layout, &chunks, &before);
        let due = common::beyond_rounding(&found, &due, tolerance::BF16);
        compare::within(&delta::by_head(&found), &delta::by_head(&due), tolerance::DELTA_CHUNKS)
            .unwrap();
        compare::within(
            &written(&after, &layout),
            &written(&due_slots, &layout),
            tolerance::DELTA_STATE,
        )
        .unwrap();
    }
}

#[test]
fn neighbours_slices_and_order_do_not_matter() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(32);
    let shape = delta::shape(1, 2);
    let layout = Layout::new(&mut random, &[100, 64, 30], false);
    let (terms, before) = terms(&mut device, &mut random, &layout, &shape, 0.0);
    let chunks = layout.chunks(|| 64);
    let (all, all_slots) = recurrence(&mut device, &shape, &terms, &layout, &chunks, &before);
    for order in common::ORDERS {
        device.set_order(order);
        let (again, slots) = recurrence(&mut device, &shape, &terms, &layout, &chunks, &before);
        compare::identical(&again, &all).unwrap();
        slots.assert_identical(&all_slots);
    }
    device.set_order(0);
    // The first span alone, in two steps that meet at a chunk's end.
    let first = layout.spans[0];
    let mut slots = before.clone();
    let mut slot_in = first.slot_in;
    let spare = (0..layout.slots as u32)
        .find(|&slot| slot != first.slot_in && slot != first.slot_out)
        .expect("a third slot");
    for (range, slot_out) in [(0..64, spare), (64..100, first.slot_out)] {
        let part = |all: &Rows| delta::part(all, range.clone());
        let own = DeltaTerms {
            q: part(&terms.q),
            k: part(&terms.k),
            v: part(&terms.v),
            beta: part(&terms.beta),
            log_decay: part(&terms.log_decay),
        };
        let span = calla_gpu::SpanEntry {
            rows: range.len() as u32,
            position: first.position + range.start as u32,
            slot_in,
            slot_out,
            ..first
        };
        let layout = Layout { spans: vec![span], ..layout.clone() };
        let chunks = layout.chunks(|| 64);
        let (found, after) = recurrence(&mut device, &shape, &own, &layout, &chunks, &slots);
        compare::identical(&found, &delta::part(&all, range)).unwrap();
        (slots, slot_in) = (after, slot_out);
    }
    let slot = first.slot_out as usize;
    assert_eq!(slots.states.row(slot), all_slots.states.row(slot));
}
