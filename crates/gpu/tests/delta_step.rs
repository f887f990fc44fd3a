//! One decode step of Gated DeltaNet against the composition of its references.

mod common;

use calla_gpu::delta_step::delta_step;
use calla_gpu::{Dtype, Tensor};
use calla_ops::Rows;
use calla_testkit::{Random, compare};
use common::TestDevice;
use common::delta::{self, Inputs, Layer, Layout, Slots};
use common::tolerance;

/// Runs a step on slots that have these contents; gives the outputs and the slots after it.
fn step(
    device: &mut TestDevice,
    layer: &Layer,
    inputs: &Inputs,
    layout: &Layout,
    before: &Slots,
) -> (Rows, Slots) {
    let [qkv, b, a] = inputs.upload(device);
    let slots = before.upload(device);
    let tables = layout.tables(device, &[]);
    let out: Tensor =
        common::output(device, layout.rows(), layer.shape.delta_value_dim(), Dtype::F32);
    let dispatch = delta_step(&layer.shape, qkv, b, a, &layer.gpu, &slots, &tables, out);
    common::run(device, &[dispatch]);
    (common::rows(device, out), Slots::download(device, &slots))
}

#[test]
fn matches_the_reference() {
    let Some(mut device) = common::device() else { return };
    let cases: [((usize, usize), &[usize], f32); 7] = [
        ((1, 1), &[1], 0.0),
        ((2, 4), &[1, 1, 1, 1, 1, 1, 1, 1], 0.0),
        ((2, 4), &[4, 1, 3], 0.0),
        ((1, 3), &[2, 5], 8.0),
        ((1, 3), &[9], -12.0),
        ((3, 3), &[1, 2], 0.0),
        ((16, 32), &[1], 0.0),
    ];
    for (seed, ((key_heads, value_heads), lengths, shift)) in (1..).zip(cases) {
        let mut random = Random::new(seed);
        let layer = Layer::new(&mut device, delta::shape(key_heads, value_heads), seed);
        let layout = Layout::new(&mut random, lengths, false);
        let inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), shift);
        let before = Slots::random(&mut random, &layer.shape, layout.slots);
        let (out, after) = step(&mut device, &layer, &inputs, &layout, &before);

        let mut expected = before.clone();
        let terms = delta::reference_terms(&layer, &inputs, &layout, &mut expected);
        let expected_out =
            delta::reference_recurrence(&layer.shape, &terms, &layout, &mut expected, None);
        let bound = tolerance::DELTA_STEP;
        let off = compare::within(&delta::by_head(&out), &delta::by_head(&expected_out), bound);
        let off = off.unwrap_or_else(|error| panic!("case {seed}: {error}"));
        let state = compare::within(&after.states, &expected.states, bound)
            .unwrap_or_else(|error| panic!("state of case {seed}: {error}"));
        println!("case {seed}: {:.1e}, state {:.1e}", off.max_relative, state.max_relative);
        compare::identical(&after.windows, &expected.windows).unwrap();
        after.assert_others_kept(&before, &layout.written());
    }
}

/// A span of n rows gives the bits of n steps of one row, and its checkpoints those of the slots between them.
#[test]
fn a_span_equals_single_steps() {
    let Some(mut device) = common::device() else { return };
    for (seed, others) in [(11, &[][..]), (12, &[1][..]), (13, &[2, 1][..])] {
        let mut random = Random::new(seed);
        let layer = Layer::new(&mut device, delta::shape(2, 4), seed);
        let lengths = [&[5], others].concat();
        let layout = Layout::new(&mut random, &lengths, true);
        let inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), 0.0);
        let before = Slots::random(&mut random, &layer.shape, layout.slots);
        let (out, after) = step(&mut device, &layer, &inputs, &layout, &before);
        after.assert_others_kept(&before, &layout.written());

        let mut slots = before.clone();
        let span = layout.spans[0];
        let single = Layout::new(&mut random, &[1], false);
        for i in 0..5 {
            let checkpoint = layout.checkpoints.get(span.first_checkpoint as usize + i);
            let slot_in = match i {
                0 => span.slot_in,
                _ => layout.checkpoints[span.first_checkpoint as usize + i - 1],
            };
            let slot_out = if i == 4 { span.slot_out } else { *checkpoint.expect("a checkpoint") };
            let mut single = single.clone();
            single.slots = layout.slots;
            (single.spans[0].slot_in, single.spans[0].slot_out) = (slot_in, slot_out);
            let row = inputs.part(i..i + 1);
            let (one, after_one) = step(&mut device, &layer, &row, &single, &slots);
            compare::identical(&one, &delta::part(&out, i..i + 1)).unwrap();
            slots = after_one;
            for (alone, together) in
                [(&slots.states, &after.states), (&slots.windows, &after.windows)]
            {
                assert_eq!(alone.row(slot_out as usize), together.row(slot_out as usize));
            }
        }
    }
}

#[test]
fn no_order_of_threads_matters() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(21);
    let layer = Layer::new(&mut device, delta::shape(2, 4), 21);
    let layout = Layout::new(&mut random, &[3, 1, 2], true);
    let inputs = Inputs::new(&mut random, &layer.shape, layout.rows(), 0.0);
    let before = Slots::random(&mut random, &layer.shape, layout.slots);
    let mut results = common::ORDERS.map(|order| {
        device.set_order(order);
        step(&mut device, &layer, &inputs, &layout, &before)
    });
    let (first, others) = results.split_first_mut().expect("an order");
    for (out, after) in others {
        compare::identical(out, &first.0).unwrap();
        after.assert_identical(&first.1);
    }
}
