//! The gated norm of DeltaNet outputs against the reference.

mod common;

use calla_gpu::Dtype;
use calla_gpu::gated_norm::gated_norm;
use calla_ops::Rows;
use calla_testkit::{Random, compare};
use common::{TestDevice, delta, tolerance};

fn normed(device: &mut TestDevice, o: &Rows, z: &Rows, scale: &[f32], eps: f32) -> Rows {
    let out = common::output(device, o.rows(), o.cols(), Dtype::Bf16);
    let (o, z) = (common::bf16s(device, o), common::bf16s(device, z));
    let scale = common::vector(device, scale);
    common::run(device, &[gated_norm(o, z, scale, eps, out)]);
    common::rows(device, out)
}

#[test]
fn matches_the_reference() {
    let Some(mut device) = common::device() else { return };
    let cases = [(1, 1), (7, 3), (8, 4), (9, 4), (33, 1), (64, 32), (200, 5)];
    for (seed, (rows, heads)) in (1..).zip(cases) {
        let mut random = Random::new(seed);
        let mut o = random.rows(rows, heads * 128, 0.3);
        // A head of nothing: epsilon alone keeps it finite. A gate far out on each side.
        o.as_mut_slice()[..128].fill(0.0);
        let mut z = random.rows(rows, heads * 128, 2.0);
        z.row_mut(rows - 1)[..2].copy_from_slice(&[-300.0, 300.0]);
        let (o, z) = (common::rounded(&o), common::rounded(&z));
        let scale: Vec<f32> = (0..128).map(|_| 1.0 + 0.2 * random.normal()).collect();
        let eps = *random.pick(&[1e-6, 1e-5]);
        let found = normed(&mut device, &o, &z, &scale, eps);
        let due = calla_ops::gated_norm::reference(&o, &z, &scale, eps);
        let due = common::beyond_rounding(&found, &due, tolerance::BF16);
        let (found, due) = (delta::by_head(&found), delta::by_head(&due));
        let off = compare::within(&found, &due, tolerance::GATED_NORM)
            .unwrap_or_else(|error| panic!("case {seed}: {error}"));
        println!("case {seed}: {:.1e}", off.max_relative);
    }
}

#[test]
fn neighbours_and_order_do_not_matter() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(11);
    let (o, z) = (random.rows(13, 3 * 128, 1.0), random.rows(13, 3 * 128, 1.0));
    let scale = vec![1.5; 128];
    let all = normed(&mut device, &o, &z, &scale, 1e-6);
    for order in common::ORDERS {
        device.set_order(order);
        compare::identical(&normed(&mut device, &o, &z, &scale, 1e-6), &all).unwrap();
    }
    for row in [0, 5, 12] {
        let part = |all: &Rows| delta::part(all, row..row + 1);
        let alone = normed(&mut device, &part(&o), &part(&z), &scale, 1e-6);
        compare::identical(&alone, &part(&all)).unwrap();
    }
}
