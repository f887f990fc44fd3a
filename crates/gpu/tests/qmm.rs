//! Products of many rows with quantised matrices against the reference.

mod common;

use calla_gpu::products::Product;
use calla_gpu::qmm::{RowTile, qmm, qmm_swiglu};
use calla_gpu::{Dtype, GpuMatrix, Tensor};
use calla_model::Matrix;
use calla_ops::{Rows, linear, swiglu};
use calla_testkit::{Random, compare};
use common::{TestDevice, quantised, tolerance};
use half::bf16;

const TILES: [RowTile; 2] = [RowTile::R32, RowTile::R64];

/// Rows, input width, output widths of the products, bits.
type Case = (usize, usize, &'static [usize], usize);

/// Around the edges of tiles; widths of one, of no power of two, of the router, of one tile and one more.
const CASES: [Case; 14] = [
    (1, 64, &[1], 4),
    (7, 192, &[20], 8),
    (8, 64, &[64, 65], 4),
    (9, 128, &[1, 32, 63], 8),
    (31, 320, &[20], 4),
    (32, 256, &[65, 1, 20, 64], 4),
    (33, 192, &[129], 8),
    (63, 64, &[777], 4),
    (64, 256, &[33], 8),
    (65, 128, &[20, 20, 20, 20], 4),
    (200, 192, &[65], 4),
    (200, 64, &[130, 7], 8),
    (65, 2048, &[48], 4),
    (1000, 64, &[40], 4),
];

struct Products {
    x: Rows,
    weights: Vec<Matrix>,
}

impl Products {
    fn random(seed: u64, (rows, width, outputs, bits): Case) -> Self {
        let mut random = Random::new(seed);
        let x = common::rounded(&random.rows(rows, width, 1.0));
        let matrix = |&output: &usize| quantised::matrix(&mut random, output, width, bits);
        Self { x, weights: outputs.iter().map(matrix).collect() }
    }

    /// What the kernel adds to `before`, or writes where that is `None`.
    fn run(
        &self,
        device: &mut TestDevice,
        tile: RowTile,
        dtype: Dtype,
        before: Option<&[Rows]>,
    ) -> Vec<Rows> {
        let x = common::bf16s(device, &self.x);
        let weights: Vec<GpuMatrix> =
            self.weights.iter().map(|weight| common::matrix(device, weight)).collect();
        let outs: Vec<Tensor> = match before {
            Some(before) => before.iter().map(|before| common::f32s(device, before)).collect(),
            None => self
                .weights
                .iter()
                .map(|weight| common::output(device, self.x.rows(), weight.rows(), dtype))
                .collect(),
        };
        let products: Vec<Product<'_>> =
            weights.iter().zip(&outs).map(|(weight, &out)| Product { weight, out }).collect();
        common::run(device, &[qmm(x, &products, before.is_some(), tile)]);
        outs.into_iter().map(|out| common::rows(device, out)).collect()
    }
}

/// The rows of a range.
fn part(x: &Rows, rows: std::ops::Range<usize>) -> Rows {
    Rows::from_vec(x.cols(), x.as_slice()[rows.start * x.cols()..rows.end * x.cols()].to_vec())
}

fn identical(found: &[Rows], due: &[Rows], what: &str) {
    assert_eq!(found.len(), due.len());
    for (found, due) in found.iter().zip(due) {
        compare::identical(found, due).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[test]
fn products_match_the_reference() {
    let Some(mut device) = common::device() else { return };
    let mut worst = 0.0_f32;
    for (seed, case) in (1..).zip(CASES) {
        let products = Products::random(seed, case);
        let tile = TILES[seed as usize % 2];
        let found = products.run(&mut device, tile, Dtype::F32, None);
        for (found, weight) in found.iter().zip(&products.weights) {
            let due = linear::reference(&products.x, weight);
            let off = compare::within(found, &due, tolerance::QMM)
                .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            worst = worst.max(off.max_relative);
        }
    }
    println!("worst: {worst:.1e}");
}

#[test]
fn tiles_and_outputs_agree_bit_for_bit() {
    let Some(mut device) = common::device() else { return };
    for (seed, case) in (21..).zip(CASES) {
        let products = Products::random(seed, case);
        let [found, other] = TILES.map(|tile| products.run(&mut device, tile, Dtype::F32, None));
        identical(&other, &found, "64 rows a tile");
        let tile = TILES[seed as usize % 2];
        let rounded: Vec<Rows> = found.iter().map(common::rounded).collect();
        identical(&products.run(&mut device, tile, Dtype::Bf16, None), &rounded, "bf16");
        let mut random = Random::new(seed);
        let before: Vec<Rows> =
            found.iter().map(|found| random.rows(found.rows(), found.cols(), 1.0)).collect();
        let sums: Vec<Rows> = before
            .iter()
            .zip(&found)
            .map(|(before, found)| {
                let pairs = before.as_slice().iter().zip(found.as_slice());
                Rows::from_vec(found.cols(), pairs.map(|(b, f)| b + f).collect())
            })
            .collect();
        identical(&products.run(&mut device, tile, Dtype::F32, Some(&before)), &sums, "added");
    }
}

#[test]
fn neighbours_and_order_do_not_matter() {
    let Some(mut device) = common::device() else { return };
    let all = Products::random(41, (70, 128, &[70, 20], 4));
    let due = all.run(&mut device, RowTile::R64, Dtype::F32, None);
    for order in common::ORDERS {
        device.set_order(order);
        for tile in TILES {
            identical(&all.run(&mut device, tile, Dtype::F32, None), &due, "order");
        }
    }
    for rows in [0..1, 31..33, 5..70, 69..70, 1..65] {
        let alone = Products { x: part(&all.x, rows.clone()), weights: all.weights.clone() };
        let due: Vec<Rows> = due.iter().map(|due| part(due, rows.clone())).collect();
        for tile in TILES {
            identical(&alone.run(&mut device, tile, Dtype::F32, None), &due, "fewer rows");
        }
    }
    // A product alone, without the one beside it.
    let alone = Products { x: all.x.clone(), weights: all.weights[1..].to_vec() };
    identical(&alone.run(&mut device, RowTile::R32, Dtype::F32, None), &due[1..], "alone");
    // A row that is not a number stays one.
    let mut x = all.x.clone();
    x.row_mut(12).fill(f32::NAN);
    let spoilt = Products { x, weights: all.weights.clone() };
    for tile in TILES {
        for (found, due) in spoilt.run(&mut device, tile, Dtype::F32, None).iter().zip(&due) {
            assert!(found.row(12).iter().all(|value| value.is_nan()));
            for rows in [0..12, 13..70] {
                compare::identical(&part(found, rows.clone()), &part(due, rows)).unwrap();
            }
        }
    }
}

fn run_swiglu(device: &mut TestDevice, x: &Rows, weights: &[Matrix; 2], tile: RowTile) -> Rows {
    let [gate, up] = [0, 1].map(|i| common::matrix(device, &weights[i]));
    let out = common::output(device, x.rows(), weights[0].rows(), Dtype::Bf16);
    let x = common::bf16s(device, x);
    common::run(device, &[qmm_swiglu(x, &gate, &up, out, tile)]);
    common::rows(device, out)
}

#[test]
fn swiglu_matches_the_reference() {
    let Some(mut device) = common::device() else { return };
    let cases =
        [(1, 64, 1, 4), (9, 192, 64, 8), (32, 128, 33, 4), (33, 320, 20, 8), (65, 256, 65, 4)];
    let (mut exact, mut all) = (0, 0);
    for (seed, (rows, width, output, bits)) in (61..).zip(cases) {
        let mut random = Random::new(seed);
        let x = common::rounded(&random.rows(rows, width, 1.0));
        // The second may have other bits.
        let up_bits = if seed.is_multiple_of(2) { bits } else { 12 - bits };
        let weights =
            [bits, up_bits].map(|bits| quantised::matrix(&mut random, output, width, bits));
        let found = run_swiglu(&mut device, &x, &weights, RowTile::R32);
        let [gate, up] = [0, 1].map(|i| linear::reference(&x, &weights[i]));
        let due = swiglu::reference(&gate, &up);
        // Rounding is monotone: what is rounded lies between the roundings of the bounds.
        for (found, due) in found.as_slice().iter().zip(due.as_slice()) {
            let off = tolerance::QMM_SWIGLU * due.abs().max(1.0);
            let [low, high] = [due - off, due + off].map(|v| bf16::from_f32(v).to_f32());
            assert!((low..=high).contains(found), "{rows} rows: {found} instead of {due}");
            exact += u32::from(*found == bf16::from_f32(*due).to_f32());
            all += 1;
        }
        for order in common::ORDERS {
            device.set_order(order);
            let other = run_swiglu(&mut device, &x, &weights, RowTile::R64);
            compare::identical(&other, &found).unwrap();
        }
        device.set_order(0);
        let last = part(&x, rows - 1..rows);
        let alone = run_swiglu(&mut device, &last, &weights, RowTile::R64);
        compare::identical(&alone, &part(&found, rows - 1..rows)).unwrap();
    }
    println!("{exact} of {all} are the rounded reference");
}

#[test]
fn traffic_counts_each_weight_once() {
    let Some(mut device) = common::device() else { return };
    let Products { x, weights } = Products::random(81, (200, 192, &[65, 1], 4));
    let [first, second] = [0, 1].map(|i| common::matrix(&mut device, &weights[i]));
    let x = common::bf16s(&mut device, &x);
    let outs = [65, 1].map(|cols| common::output(&mut device, 200, cols, Dtype::F32));
    let products =
        [Product { weight: &first, out: outs[0] }, Product { weight: &second, out: outs[1] }];
    let dispatch = qmm(x, &products, false, RowTile::R64);
    let weights = first.size_bytes() + second.size_bytes();
    assert_eq!(dispatch.traffic.read, 200 * 192 * 2 + weights);
    assert_eq!(dispatch.traffic.written, 200 * 66 * 4);
    assert_eq!(dispatch.flops, 2 * 200 * 192 * 66);
    assert_eq!(dispatch.grid, [4, 3, 1]);
}
