//! The most likely token against the reference.

mod common;

use calla_gpu::Dtype;
use calla_gpu::argmax::argmax;
use calla_ops::Rows;
use calla_ops::sample;
use calla_testkit::Random;
use common::TestDevice;
use common::temporaries::Temporaries;

fn run(device: &mut TestDevice, logits: &Rows, vocab_used: usize) -> Vec<u32> {
    let input = common::f32s(device, logits);
    let out = common::output(device, logits.rows(), 1, Dtype::U32);
    let dispatches = argmax(input, vocab_used as u32, &mut Temporaries(device), out);
    common::run(device, &dispatches);
    common::integers(device, out)
}

fn expected(logits: &Rows, vocab_used: usize) -> Vec<u32> {
    logits.iter().map(|row| sample::argmax(&row[..vocab_used])).collect()
}

/// Values on a grid, so that many are equal.
fn coarse(random: &mut Random, rows: usize, cols: usize) -> Rows {
    let values = (0..rows * cols).map(|_| random.range(0..=40) as f32 / 4.0 - 7.0).collect();
    Rows::from_vec(cols, values)
}

#[test]
fn the_first_of_the_largest_wins_in_any_order_of_threads() {
    let Some(mut device) = common::device() else { return };
    for (seed, (rows, vocab, used)) in (0..).zip([
        (3, 1, 1),
        (5, 777, 777),
        (9, 777, 700),
        (4, 4096, 4096),
        (2, 4097, 4097),
        (3, 8200, 8193),
        (1, 248_320, 248_077),
    ]) {
        let mut random = Random::new(seed);
        for logits in [coarse(&mut random, rows, vocab), random.rows(rows, vocab, 5.0)] {
            for order in common::ORDERS {
                device.set_order(order);
                assert_eq!(run(&mut device, &logits, used), expected(&logits, used), "{vocab}");
            }
        }
    }
}

#[test]
fn nan_wins_only_if_there_is_nothing_else() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(20);
    let mut logits = coarse(&mut random, 6, 5000);
    logits.row_mut(0).fill(f32::NAN);
    logits.row_mut(1).fill(f32::NAN);
    logits.row_mut(1)[4500] = f32::NEG_INFINITY;
    logits.row_mut(2)[4999] = f32::INFINITY;
    for value in logits.row_mut(3).iter_mut().step_by(2) {
        *value = f32::NAN;
    }
    logits.row_mut(4).fill(f32::NEG_INFINITY);
    // Padding is larger than all, and does not count.
    logits.row_mut(5)[4990..].fill(1e9);
    assert_eq!(run(&mut device, &logits, 5000)[..5], expected(&logits, 5000)[..5]);
    assert_eq!(run(&mut device, &logits, 4990)[5], expected(&logits, 4990)[5]);
}
