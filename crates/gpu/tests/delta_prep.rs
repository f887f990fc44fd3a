//! What a prefill computes in front of the recurrence against the convolution and preparation of the reference.

mod common;

use calla_gpu::delta_prep::delta_prep;
use calla_ops::Rows;
use calla_ops::ops::DeltaTerms;
use calla_testkit::{Random, compare};
use common::TestDevice;
use common::delta::{self, Inputs, Layer, Layout, Slots};
use common::tolerance;

fn prepare(
    device: &mut TestDevice,
    layer: &Layer,
    inputs: &Inputs,
    layout: &Layout,
    before: &Slots,
) -> (DeltaTerms<Rows>, Slots) {
    let [qkv, b, a] = inputs.upload(device);
    let slots = before.upload(device);
    let tables = layout.tables(device, &[]);
    let terms = delta::terms_output(device, &layer.shape, layout.rows());
    let dispatch = delta_prep(&layer.shape, qkv, b, a, &layer.gpu, &slots, &tables, &terms);
    common::run(device, &[dispatch]);
    let mut read = |tensor| common::rows(device, tensor);
    let terms = DeltaTerms {
        q: read(terms.q),
        k: read(terms.k),
        v: read(terms.v),
        beta: read(terms.beta),
        log_decay: read(terms.log_decay),
    };
    (terms, Slots::download(device, &slots))
}

fn all(terms: &DeltaTerms<Rows>) -> [&Rows; 5] {
    [&terms.q, &terms.k, &terms.v, &terms.beta, &terms.log_decay]
}

#[test]
fn matches_the_reference() {
    let Some(mut device) = common::device() else { return };
    let cases: [((usize, usize), &[usize]); 9] = [
        ((1, 1), &[1]),
        ((2, 4), &[7]),
        ((2, 4), &[8]),
        ((2, 4), &[9, 1, 2, 3, 4, 5]),
        ((1, 3), &[31, 1]),
        ((3, 3), &[32]),
        ((2, 4), &[33, 65]),
        ((16, 32), &[3, 9]),
        ((2, 4), &[200]),
    ];
    for (seed, ((key_heads, value_heads), lengths)) in (1..).zip(cases) {
        let mut random = Random::new(seed);
        let layer = Layer::new(&mut device, delta::shape(key_heads, value_heads), seed);
        let layout = Layout::new(&mut random, lengths, false);
        let mut inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), 0.0);
        // Gates far out, where a careless form would overflow or lose all digits.
        for (gate, far) in [(0, -100.0), (1, -16.0), (2, 30.0), (3, 200.0)] {
            if let Some(b) = inputs.b.as_mut_slice().get_mut(gate) {
                *b = far;
            }
            if let Some(a) = inputs.a.as_mut_slice().get_mut(gate) {
                *a = far;
            }
        }
        let before = Slots::random(&mut random, &layer.shape, layout.slots);
        let (terms, after) = prepare(&mut device, &layer, &inputs, &layout, &before);

        let mut expected = before.clone();
        let due = delta::reference_terms(&layer, &inputs, &layout, &mut expected);
        let mut worst = 0.0_f32;
        for (name, found, due) in
            [("q", &terms.q, &due.q), ("k", &terms.k, &due.k), ("v", &terms.v, &due.v)]
        {
            let due = common::beyond_rounding(found, due, tolerance::BF16);
            let (found, due) = (delta::by_head(found), delta::by_head(&due));
            let off = compare::within(&found, &due, tolerance::DELTA_TERMS)
                .unwrap_or_else(|error| panic!("{name} of case {seed}: {error}"));
            worst = worst.max(off.max_relative);
        }
        let mut worst_gate = 0.0_f32;
        for (found, due) in [(&terms.beta, &due.beta), (&terms.log_decay, &due.log_decay)] {
            for (&found, &due) in found.as_slice().iter().zip(due.as_slice()) {
                // A strength below 1e-30 writes nothing, and forms of the sigmoid differ in where they end.
                let off = (found - due).abs() / due.abs().max(1e-30);
                assert!(off <= tolerance::DELTA_GATES, "case {seed}: {found} instead of {due}");
                worst_gate = worst_gate.max(off);
            }
        }
        println!("case {seed}: {worst:.1e}, gates {worst_gate:.1e}");
        after.assert_identical(&expected);
    }
}

/// Rows of one span give the bits that they give in two steps, with whatever neighbours.
#[test]
fn cuts_and_neighbours_do_not_matter() {
    let Some(mut device) = common::device() else { return };
    for (seed, rows, cut) in [(11, 21, 1), (12, 21, 2), (13, 24, 3), (14, 20, 8), (15, 19, 13)] {
        let mut random = Random::new(seed);
        let layer = Layer::new(&mut device, delta::shape(1, 3), seed);
        let layout = Layout::new(&mut random, &[3, rows, 5], false);
        let inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), 0.0);
        let before = Slots::random(&mut random, &layer.shape, layout.slots);
        let (whole, after) = prepare(&mut device, &layer, &inputs, &layout, &before);

        let span = layout.spans[1];
        let alone = |rows: usize, slot_in, slot_out| {
            let mut alone = Layout { slots: layout.slots, ..Layout::default() };
            let rows = rows as u32;
            alone.spans.push(calla_gpu::SpanEntry { rows, slot_in, slot_out, ..span });
            alone.spans[0].first_row = 0;
            alone
        };
        let between = layout.spans[0].slot_out;
        let first = alone(cut, span.slot_in, between);
        let second = alone(rows - cut, between, span.slot_out);
        let (terms, slots) =
            prepare(&mut device, &layer, &inputs.part(3..3 + cut), &first, &before);
        for (part, whole) in all(&terms).into_iter().zip(all(&whole)) {
            compare::identical(part, &delta::part(whole, 3..3 + cut)).unwrap();
        }
        let (terms, slots) =
            prepare(&mut device, &layer, &inputs.part(3 + cut..3 + rows), &second, &slots);
        for (part, whole) in all(&terms).into_iter().zip(all(&whole)) {
            compare::identical(part, &delta::part(whole, 3 + cut..3 + rows)).unwrap();
        }
        let out = span.slot_out as usize;
        assert_eq!(slots.windows.row(out), after.windows.row(out), "window, cut at {cut}");
    }
}

#[test]
fn no_order_of_threads_matters() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(21);
    let layer = Layer::new(&mut device, delta::shape(2, 4), 21);
    let layout = Layout::new(&mut random, &[9, 1, 12], false);
    let inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), 0.0);
    let before = Slots::random(&mut random, &layer.shape, layout.slots);
    let results = common::ORDERS.map(|order| {
        device.set_order(order);
        prepare(&mut device, &layer, &inputs, &layout, &before)
    });
    for (terms, after) in &results[1..] {
        for (found, due) in all(terms).into_iter().zip(all(&results[0].0)) {
            compare::identical(found, due).unwrap();
        }
        after.assert_identical(&results[0].1);
    }
}
