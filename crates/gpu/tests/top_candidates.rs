//! The most likely tokens against a plain sort.

mod common;

use calla_gpu::top_candidates::{CANDIDATES, Candidates, NO_TOKEN, top_candidates};
use calla_ops::Rows;
use calla_testkit::Random;
use common::TestDevice;
use common::temporaries::Temporaries;

/// Candidates of each row, and their logits.
fn run(device: &mut TestDevice, logits: &Rows, vocab_used: usize) -> Vec<Vec<(u32, f32)>> {
    let input = common::f32s(device, logits);
    let candidates = Candidates::new(&mut Temporaries(device), logits.rows() as u32);
    let dispatches =
        top_candidates(input, vocab_used as u32, &mut Temporaries(device), &candidates);
    common::run(device, &dispatches);
    let tokens = common::integers(device, candidates.tokens);
    let logits = common::rows(device, candidates.logits);
    let rows = tokens.chunks_exact(CANDIDATES as usize).zip(logits.iter());
    rows.map(|(tokens, logits)| tokens.iter().copied().zip(logits.iter().copied()).collect())
        .collect()
}

fn expected(logits: &Rows, vocab_used: usize) -> Vec<Vec<(u32, f32)>> {
    let row = |row: &[f32]| {
        let mut all: Vec<(u32, f32)> = (0..).zip(row[..vocab_used].iter().copied()).collect();
        if all.iter().any(|(_, logit)| !logit.is_finite()) {
            all.clear();
        }
        // Stable, so of equal ones the lower token comes first. Both zeros are equal.
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("finite logits"));
        all.resize(CANDIDATES as usize, (NO_TOKEN, 0.0));
        all
    };
    logits.iter().map(row).collect()
}

#[test]
fn candidates_are_those_of_a_sort_in_any_order_of_threads() {
    let Some(mut device) = common::device() else { return };
    for (seed, (rows, vocab, used)) in (0..).zip([
        (2, 5, 5),
        (2, 64, 63),
        (4, 777, 777),
        (3, 4096, 4096),
        (2, 4160, 4103),
        (2, 9000, 8999),
        (1, 248_320, 248_077),
    ]) {
        let mut random = Random::new(seed);
        let coarse = (0..rows * vocab).map(|_| random.range(0..=400) as f32 / 16.0 - 12.5);
        let coarse = Rows::from_vec(vocab, coarse.collect());
        let flat = Rows::from_vec(vocab, vec![-0.25; rows * vocab]);
        for logits in [coarse, flat, random.rows(rows, vocab, 5.0)] {
            for order in if vocab < 10_000 { &common::ORDERS[..] } else { &[0, 2] } {
                device.set_order(*order);
                assert_eq!(run(&mut device, &logits, used), expected(&logits, used), "{vocab}");
            }
        }
    }
}

#[test]
fn zeros_are_equal_and_extremes_are_in_order() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(20);
    let values = [0.0, -0.0, f32::MAX, f32::MIN, 1e-40, -1e-40, f32::MIN_POSITIVE];
    // About as many of each, so that the last candidate is a zero or next to one.
    let logits = Rows::from_vec(100, (0..1500).map(|_| *random.pick(&values)).collect());
    assert_eq!(run(&mut device, &logits, 100), expected(&logits, 100));
}

#[test]
fn a_row_of_noise_has_no_candidates() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(21);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
        let mut logits = random.rows(3, 5000, 2.0);
        logits.row_mut(1)[4700] = bad;
        // Padding may be anything.
        logits.row_mut(2)[4999] = bad;
        let actual = run(&mut device, &logits, 4999);
        assert_eq!(actual, expected(&logits, 4999));
        assert!(actual[1].iter().all(|&(token, _)| token == NO_TOKEN));
        assert!(actual[2].iter().all(|&(token, _)| token != NO_TOKEN));
    }
}
