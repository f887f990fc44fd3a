//! The choice of experts against the reference.

mod common;

use calla_gpu::top_k::top_k;
use calla_ops::{Rows, route};
use calla_testkit::{Random, compare};
use common::{TestDevice, routed, tolerance};

/// Experts, and how many of them a row has.
const COUNTS: [(usize, usize); 8] =
    [(32, 8), (256, 8), (20, 5), (512, 16), (1, 1), (33, 16), (16, 16), (31, 1)];

fn choose(device: &mut TestDevice, logits: &Rows, top: usize) -> route::Routing {
    let shape = routed::shape(logits.cols(), top);
    let routing = routed::undefined(device, logits.rows(), top);
    let logits = common::f32s(device, logits);
    common::run(device, &[top_k(&shape, logits, &routing)]);
    routed::read(device, &routing)
}

fn bits(routing: &route::Routing) -> Vec<u32> {
    routing.weights.iter().map(|weight| weight.to_bits()).collect()
}

#[test]
fn experts_are_the_references_and_weights_close() {
    let Some(mut device) = common::device() else { return };
    let mut worst = 0.0_f32;
    for (seed, (experts, top)) in (0..).zip(COUNTS) {
        for rows in [1, 4, 7, 65, 200] {
            let logits = Random::new(seed).rows(rows, experts, 2.0);
            let actual = choose(&mut device, &logits, top);
            let expected = route::reference(&logits, top);
            assert_eq!(actual.experts, expected.experts, "{rows} rows, {top} of {experts}");
            compare::routing(&actual, &logits, top, 0.0, tolerance::ROUTING)
                .unwrap_or_else(|error| panic!("{rows} rows, {top} of {experts}: {error}"));
            let off = actual.weights.iter().zip(&expected.weights).map(|(a, e)| (a - e).abs());
            worst = off.fold(worst, f32::max);
        }
    }
    println!("worst weight: {worst:.1e}");
}

#[test]
fn of_equal_logits_the_lower_expert_comes_first() {
    let Some(mut device) = common::device() else { return };
    for (seed, (experts, top)) in (0..).zip(COUNTS) {
        let mut random = Random::new(seed);
        let values = [-1.5, -0.0, 0.0, 2.0];
        let logits = (0..40 * experts).map(|_| *random.pick(&values)).collect();
        let logits = Rows::from_vec(experts, logits);
        let expected = route::reference(&logits, top);
        assert_eq!(choose(&mut device, &logits, top).experts, expected.experts);
    }
}

#[test]
fn infinities_and_nan_have_their_place_in_the_order() {
    let Some(mut device) = common::device() else { return };
    let special = [
        f32::NAN,
        -f32::NAN,
        f32::from_bits(0xffff_ffff),
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE / 2.0,
        0.0,
        -0.0,
    ];
    for (seed, (experts, top)) in (0..).zip(COUNTS) {
        let mut random = Random::new(seed);
        let logits = (0..60 * experts).map(|_| *random.pick(&special)).collect();
        let logits = Rows::from_vec(experts, logits);
        let actual = choose(&mut device, &logits, top);
        assert_eq!(actual.experts, route::reference(&logits, top).experts);
    }
    // The worst is that all are equally bad: experts then still differ.
    let logits = Rows::from_vec(40, vec![f32::from_bits(0xffff_ffff); 40]);
    assert_eq!(choose(&mut device, &logits, 8).experts, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_row_alone_and_any_order_of_threads_give_the_same_bits() {
    let Some(mut device) = common::device() else { return };
    for (experts, top) in COUNTS {
        let logits = Random::new(7).rows(33, experts, 2.0);
        let all = choose(&mut device, &logits, top);
        for order in common::ORDERS {
            device.set_order(order);
            let again = choose(&mut device, &logits, top);
            assert_eq!((&again.experts, bits(&again)), (&all.experts, bits(&all)));
        }
        for (row, values) in logits.iter().enumerate() {
            let one = choose(&mut device, &Rows::from_vec(experts, values.to_vec()), top);
            let own = row * top..(row + 1) * top;
            assert_eq!(one.experts, all.experts[own.clone()]);
            assert_eq!(bits(&one), bits(&all)[own]);
        }
    }
}
