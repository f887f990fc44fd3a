//! Attention of the rows of a prefill against the reference.

mod common;

use calla_gpu::Dtype;
use calla_gpu::attention_prefill::attention_prefill;
use calla_ops::Rows;
use calla_testkit::{Random, compare};
use common::TestDevice;
use common::paged::{self, Layout, Sequences, gather, reference};
use common::tolerance;
use std::ops::Range;

const BOUND: f32 = tolerance::ATTENTION_PREFILL;

type Step = [(usize, Range<usize>)];

/// Rows of sequences, `(sequence, positions)` each, in chunks of as many rows as `chunk` says.
fn prefill(
    device: &mut TestDevice,
    random: &mut Random,
    all: &Sequences,
    step: &Step,
    chunk: impl FnMut() -> usize,
) -> Rows {
    let (sequences, positions): (Vec<usize>, Vec<Range<usize>>) = step.iter().cloned().unzip();
    let layout = Layout::new(random, &positions);
    let pool = paged::upload(device, &all.shape, &all.pool(&layout, &sequences));
    let tables = layout.tables(device, chunk);
    let q = common::bf16s(device, &gather(&layout, &sequences, &all.q));
    let q_gate = common::bf16s(device, &gather(&layout, &sequences, &all.q_gate));
    let out = common::output(device, layout.rows(), all.shape.query_dim(), Dtype::Bf16);
    let context = positions.iter().map(|range| range.end as u32).max().expect("a span");
    let dispatch = attention_prefill(&all.shape, q, q_gate, &pool, &tables, context, out);
    common::run(device, &[dispatch]);
    common::rows(device, out)
}

/// Requires what the reference gives; heads are compared one by one.
fn check(actual: &Rows, expected: &Rows, bound: f32, what: &str) -> f32 {
    let by_head = |rows: &Rows| Rows::from_vec(256, rows.as_slice().to_vec());
    let expected = common::beyond_rounding(actual, expected, tolerance::BF16);
    compare::within(&by_head(actual), &by_head(&expected), bound)
        .unwrap_or_else(|error| panic!("{what}: {error}"))
        .max_relative
}

/// Spans that start and end around the edges of pages and tiles.
#[test]
fn rows_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let spans = [0..1, 0..7, 60..68, 63..72, 0..31, 100..132, 33..66, 128..191, 65..129, 1..66];
    let heads = [(1, 1), (3, 1), (8, 2), (16, 2), (16, 1), (12, 3)];
    let mut worst = 0.0_f32;
    for (seed, (heads, kv_heads)) in (0..).zip(heads) {
        let random = &mut Random::new(seed);
        let sharpness = *random.pick(&[0.1, 1.0, 6.0]);
        let lengths: Vec<usize> = spans.iter().map(|span| span.end).collect();
        let all = Sequences::new(random, paged::shape(heads, kv_heads), &lengths, true, sharpness);
        let step: Vec<_> = spans.iter().cloned().enumerate().collect();
        let actual = prefill(&mut device, random, &all, &step, || 64);
        let expected = reference(random, &all, &step);
        worst = worst.max(check(&actual, &expected, BOUND, &format!("{heads}/{kv_heads} heads")));
    }
    println!("worst: {worst:.1e}");
}

#[test]
fn long_prompts_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let random = &mut Random::new(40);
    let all = Sequences::new(random, paged::shape(4, 1), &[1000, 200], true, 1.0);
    let step = [(0, 0..1000), (1, 0..200)];
    let actual = prefill(&mut device, random, &all, &step, || 64);
    println!("worst: {:.1e}", check(&actual, &reference(random, &all, &step), BOUND, "1000 rows"));
}

/// Neighbours, chunks, tiles, where pages lie, and the order of threads do not matter.
#[test]
fn a_row_is_the_same_bits_whatever_it_is_computed_with() {
    let Some(mut device) = common::device() else { return };
    for (heads, kv_heads) in [(3, 1), (8, 1), (2, 2)] {
        let random = &mut Random::new(heads as u64);
        let all = Sequences::new(random, paged::shape(heads, kv_heads), &[150, 70], true, 2.0);
        let step = [(0, 0..150), (1, 5..70)];
        let together = prefill(&mut device, random, &all, &step, || 64);
        for order in common::ORDERS {
            device.set_order(order);
            let mut cuts = Random::new(u64::from(order));
            let again = prefill(&mut device, random, &all, &step, || cuts.range(1..=64));
            compare::identical(&again, &together).unwrap();
        }
        // Rows of the first sequence alone: nothing behind them is there yet.
        for positions in [0..1, 63..64, 64..65, 127..129, 58..90, 149..150] {
            let part = prefill(&mut device, random, &all, &[(0, positions.clone())], || 64);
            let rows = positions.clone().flat_map(|position| together.row(position).to_vec());
            let expected = Rows::from_vec(together.cols(), rows.collect());
            compare::identical(&part, &expected)
                .unwrap_or_else(|error| panic!("positions {positions:?}: {error}"));
        }
    }
}

/// Weights of scores far apart: no overflow, no NaN, the largest alone counts.
#[test]
fn scores_of_any_size_are_finite() {
    let Some(mut device) = common::device() else { return };
    let random = &mut Random::new(9);
    for sharpness in [0.0, 1e4] {
        let all = Sequences::new(random, paged::shape(8, 2), &[130], true, sharpness);
        let step = [(0, 50..130)];
        let actual = prefill(&mut device, random, &all, &step, || 64);
        let expected = reference(random, &all, &step);
        // A score of 10^4 is 10^-3 off.
        let bound = if sharpness > 1.0 { 2e-2 } else { BOUND };
        check(&actual, &expected, bound, "130 positions");
    }
}
