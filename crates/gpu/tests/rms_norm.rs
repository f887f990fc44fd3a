//! RMS norm of rows against the reference.

mod common;

use calla_gpu::Dtype;
use calla_gpu::rms_norm::rms_norm;
use calla_ops::{Rows, rms_norm as ops_rms_norm};
use calla_testkit::{Random, compare};
use common::TestDevice;
use common::tolerance;

/// Far larger than in models, so that it counts.
const EPS: f32 = 0.5;

fn norm(device: &mut TestDevice, x: &Rows, scale: &[f32], dtype: Dtype) -> Rows {
    let out = common::output(device, x.rows(), x.cols(), dtype);
    let dispatch = rms_norm(common::f32s(device, x), common::vector(device, scale), EPS, out);
    common::run(device, &[dispatch]);
    common::rows(device, out)
}

/// A thread has 16 values of rows of up to 4096, and takes what is beyond from memory again.
#[test]
fn rows_are_the_references_in_any_order_and_alone() {
    let Some(mut device) = common::device() else { return };
    let mut worst = 0.0_f32;
    for (seed, (rows, cols)) in
        (0..).zip([(1, 2048), (7, 256), (33, 192), (3, 4), (200, 64), (2, 4160), (1, 8192)])
    {
        let mut random = Random::new(seed);
        let x = random.rows(rows, cols, 3.0);
        let scale: Vec<f32> = (0..cols).map(|_| random.uniform(0.5, 1.5)).collect();
        let expected = ops_rms_norm::reference(&x, &scale, EPS);
        let actual = norm(&mut device, &x, &scale, Dtype::F32);
        let difference = compare::within(&actual, &expected, tolerance::RMS_NORM)
            .unwrap_or_else(|error| panic!("[{rows}, {cols}]: {error}"));
        worst = worst.max(difference.max_relative);
        let same = |other: &Rows, expected: &Rows| {
            compare::identical(other, expected).unwrap_or_else(|error| panic!("{error}"));
        };
        for order in common::ORDERS {
            device.set_order(order);
            same(&norm(&mut device, &x, &scale, Dtype::F32), &actual);
        }
        let last = Rows::from_vec(cols, x.row(rows - 1).to_vec());
        let alone = norm(&mut device, &last, &scale, Dtype::F32);
        same(&alone, &Rows::from_vec(cols, actual.row(rows - 1).to_vec()));
        let stored = norm(&mut device, &x, &scale, Dtype::Bf16);
        same(&stored, &common::rounded(&actual));
    }
    println!("worst: {worst:.1e}");
}
