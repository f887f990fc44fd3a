//! Attention of few rows against the reference.

mod common;

use calla_gpu::Dtype;
use calla_gpu::attention_decode::attention_decode;
use calla_ops::Rows;
use calla_testkit::{Random, compare};
use common::TestDevice;
use common::paged::{self, Layout, Sequences, gather, reference};
use common::temporaries::Temporaries;
use common::tolerance;
use std::ops::Range;

/// Rows of sequences, `(sequence, positions)` each; told of `more` positions than there are.
fn decode(
    device: &mut TestDevice,
    random: &mut Random,
    all: &Sequences,
    step: &[(usize, Range<usize>)],
    more: u32,
) -> Rows {
    let (sequences, positions): (Vec<usize>, Vec<Range<usize>>) = step.iter().cloned().unzip();
    let layout = Layout::new(random, &positions);
    let pool = paged::upload(device, &all.shape, &all.pool(&layout, &sequences));
    let tables = layout.tables(device, || 64);
    let q = common::f32s(device, &gather(&layout, &sequences, &all.q));
    let q_gate = common::f32s(device, &gather(&layout, &sequences, &all.q_gate));
    let out = common::output(device, layout.rows(), all.shape.query_dim(), Dtype::F32);
    let context = more + positions.iter().map(|range| range.end as u32).max().expect("a span");
    let scratch = &mut Temporaries(device);
    let dispatches = attention_decode(&all.shape, q, q_gate, &pool, &tables, context, scratch, out);
    common::run(device, &dispatches);
    common::rows(device, out)
}

/// Around the edges of pages and blocks, with spans of one row and of drafts. A head's rows are compared one by one.
#[test]
fn rows_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let ends = [1, 2, 63, 64, 65, 127, 128, 129, 130, 256, 257, 300];
    let heads = [(1, 1), (3, 1), (8, 2), (16, 2), (2, 1), (16, 1), (9, 1), (24, 2)];
    let mut worst = 0.0_f32;
    for (seed, (heads, kv_heads)) in (0..).zip(heads) {
        let random = &mut Random::new(seed);
        let sharpness = *random.pick(&[0.1, 1.0, 6.0]);
        let all = Sequences::new(random, paged::shape(heads, kv_heads), &ends, false, sharpness);
        let step: Vec<_> = (0..ends.len())
            .map(|i| (i, ends[i] - random.range(1..=ends[i].min(4))..ends[i]))
            .collect();
        let by_head = |rows: Rows| Rows::from_vec(256, rows.into_vec());
        let actual = by_head(decode(&mut device, random, &all, &step, 100));
        let expected = by_head(reference(random, &all, &step));
        let difference = compare::within(&actual, &expected, tolerance::ATTENTION_DECODE)
            .unwrap_or_else(|error| panic!("{heads}/{kv_heads} heads: {error}"));
        worst = worst.max(difference.max_relative);
    }
    println!("worst: {worst:.1e}");
}

/// From position 16,384 on, blocks are of two tiles.
#[test]
fn long_contexts_are_the_references() {
    let Some(mut device) = common::device() else { return };
    for (heads, lengths, step) in [
        (8, vec![1900], vec![(0, 1897..1900)]),
        (1, vec![16_600, 300], vec![(0, 16_382..16_386), (1, 299..300)]),
    ] {
        let random = &mut Random::new(40);
        let all = Sequences::new(random, paged::shape(heads, 1), &lengths, false, 1.0);
        let actual = decode(&mut device, random, &all, &step, 0);
        let expected = reference(random, &all, &step);
        let difference = compare::within(&actual, &expected, tolerance::ATTENTION_DECODE).unwrap();
        println!("worst: {:.1e}", difference.max_relative);
        // The first of the rows alone.
        let (sequence, positions) = step[0].clone();
        let first = [(sequence, positions.start..positions.start + 1)];
        let alone = decode(&mut device, random, &all, &first, 20_000);
        let expected = Rows::from_vec(actual.cols(), actual.row(0).to_vec());
        compare::identical(&alone, &expected).unwrap();
    }
}

/// Neighbours, spans, the number of blocks, where pages lie, and the order of threads do not matter.
#[test]
fn a_row_is_the_same_bits_whatever_it_is_computed_with() {
    let Some(mut device) = common::device() else { return };
    for (heads, kv_heads) in [(3, 1), (8, 1), (4, 2)] {
        let random = &mut Random::new(heads as u64);
        let all = Sequences::new(random, paged::shape(heads, kv_heads), &[300, 70, 1], false, 1.0);
        let step = [(0, 253..259), (1, 66..70), (2, 0..1)];
        let together = decode(&mut device, random, &all, &step, 300);
        for order in common::ORDERS {
            device.set_order(order);
            let again = decode(&mut device, random, &all, &step, 200 * order);
            compare::identical(&again, &together).unwrap();
        }
        let mut row = 0;
        for (sequence, positions) in step {
            for position in positions {
                let alone =
                    decode(&mut device, random, &all, &[(sequence, position..position + 1)], 0);
                let expected = Rows::from_vec(together.cols(), together.row(row).to_vec());
                compare::identical(&alone, &expected)
                    .unwrap_or_else(|error| panic!("position {position}: {error}"));
                row += 1;
            }
        }
    }
}

/// Weights of scores far apart: no overflow, no NaN, the largest alone counts.
#[test]
fn scores_of_any_size_are_finite() {
    let Some(mut device) = common::device() else { return };
    let random = &mut Random::new(9);
    for sharpness in [0.0, 1e4] {
        let all = Sequences::new(random, paged::shape(8, 2), &[260], false, sharpness);
        let step = [(0, 257..260)];
        let actual = decode(&mut device, random, &all, &step, 0);
        // A score of 10^4 is 10^-3 off.
        let bound = if sharpness > 1.0 { 2e-2 } else { tolerance::ATTENTION_DECODE };
        compare::within(&actual, &reference(random, &all, &step), bound).unwrap();
    }
}
