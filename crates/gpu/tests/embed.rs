//! Token embedding against the reference.

mod common;

use calla_gpu::Dtype;
use calla_gpu::embed::embed;
use calla_ops::embed as ops_embed;
use calla_testkit::{Random, compare};
use common::{quantised, tolerance};

#[test]
fn rows_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let mut worst = 0.0_f32;
    for (seed, (tokens, vocab, width, bits)) in (0..).zip([
        (1, 777, 2048, 4),
        (9, 300, 256, 8),
        (65, 777, 192, 4),
        (3, 20, 2112, 8),
        (7, 4096, 64, 4),
    ]) {
        let mut random = Random::new(seed);
        let table = quantised::matrix(&mut random, vocab, width, bits);
        let mut ids = random.tokens(tokens, vocab);
        ids[0] = vocab as u32 - 1;
        let expected = ops_embed::reference(&table, &ids);
        let table = common::matrix(&mut device, &table);
        for order in common::ORDERS {
            device.set_order(order);
            let input = common::u32s(&mut device, &ids, 1);
            let out = common::output(&mut device, tokens, width, Dtype::F32);
            let dispatch = embed(&table, input, out);
            common::run(&mut device, &[dispatch]);
            let actual = common::rows(&mut device, out);
            let difference = compare::within(&actual, &expected, tolerance::EMBED)
                .unwrap_or_else(|error| panic!("{tokens} of {vocab}, width {width}: {error}"));
            worst = worst.max(difference.max_relative);
        }
    }
    println!("worst: {worst:.1e}");
}

#[test]
fn a_token_that_there_is_not_stays_within_the_table() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(7);
    let table = quantised::matrix(&mut random, 5, 64, 4);
    let expected = ops_embed::reference(&table, &[4, 2]);
    let table = common::matrix(&mut device, &table);
    let input = common::u32s(&mut device, &[u32::MAX, 2], 1);
    let out = common::output(&mut device, 2, 64, Dtype::F32);
    let dispatch = embed(&table, input, out);
    common::run(&mut device, &[dispatch]);
    let actual = common::rows(&mut device, out);
    compare::within(&actual, &expected, tolerance::EMBED).unwrap_or_else(|error| panic!("{error}"));
}
