//! Products of few rows against the reference.

mod common;

use calla_gpu::products::Product;
use calla_gpu::qmv::{Input, qmv, qmv_swiglu};
use calla_gpu::{Dispatch, Dtype, Tensor};
use calla_model::Matrix;
use calla_ops::{Rows, gated_norm, linear, rms_norm, swiglu};
use calla_testkit::{Random, compare};
use common::{TestDevice, quantised, tolerance};

/// Far larger than in models, so that it counts.
const EPS: f32 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Normed,
    Selected,
    Gated,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Normed, Kind::Selected, Kind::Gated];

/// Inputs of one kind.
struct Case {
    kind: Kind,
    x: Rows,
    z: Rows,
    scale: Vec<f32>,
    selection: Vec<u32>,
}

impl Case {
    /// `rows` of width `cols`.
    fn random(random: &mut Random, kind: Kind, rows: usize, cols: usize) -> Self {
        let stored = if kind == Kind::Selected { rows + 3 } else { rows };
        let scales = if kind == Kind::Gated { 128 } else { cols };
        Self {
            kind,
            x: random.rows(stored, cols, 3.0),
            z: random.rows(stored, cols, 2.0),
            scale: (0..scales).map(|_| random.uniform(0.5, 1.5)).collect(),
            selection: (0..rows).map(|_| random.range(0..=stored - 1) as u32).collect(),
        }
    }

    fn rows(&self) -> usize {
        self.selection.len()
    }

    /// One row by itself.
    fn row(&self, row: usize) -> Self {
        let one = |x: &Rows| Rows::from_vec(x.cols(), x.row(row).to_vec());
        let (x, z) = match self.kind {
            Kind::Selected => (self.x.clone(), self.z.clone()),
            _ => (one(&self.x), one(&self.z)),
        };
        let selection = vec![self.selection[row]];
        Self { kind: self.kind, x, z, scale: self.scale.clone(), selection }
    }

    /// What the matrices meet.
    fn reference(&self) -> Rows {
        match self.kind {
            Kind::Plain => self.x.clone(),
            Kind::Normed => rms_norm::reference(&self.x, &self.scale, EPS),
            Kind::Selected => {
                let all = rms_norm::reference(&self.x, &self.scale, EPS);
                let rows = self.selection.iter().flat_map(|&row| all.row(row as usize).to_vec());
                Rows::from_vec(all.cols(), rows.collect())
            }
            Kind::Gated => gated_norm::reference(&self.x, &self.z, &self.scale, EPS),
        }
    }

    fn upload(&self, device: &mut TestDevice) -> Input {
        let x = common::f32s(device, &self.x);
        let scale = common::vector(device, &self.scale);
        match self.kind {
            Kind::Plain => Input::Plain(x),
            Kind::Normed => Input::Normed { x, scale, eps: EPS },
            Kind::Selected => {
                let rows = common::u32s(device, &self.selection, 1);
                Input::Selected { x, rows, scale, eps: EPS }
            }
            Kind::Gated => {
                let z = common::f32s(device, &self.z);
                Input::GatedNormed { o: x, z, scale, eps: EPS }
            }
        }
    }

    /// What `qmv` gives for each matrix, with `before` in the outputs if it adds.
    fn multiply(
        &self,
        device: &mut TestDevice,
        matrices: &[Matrix],
        dtype: Dtype,
        before: Option<&[Rows]>,
    ) -> Vec<Rows> {
        let input = self.upload(device);
        let weights: Vec<_> =
            matrices.iter().map(|matrix| common::matrix(device, matrix)).collect();
        let outs: Vec<Tensor> = match before {
            Some(before) => before.iter().map(|rows| common::f32s(device, rows)).collect(),
            None => {
                let one = |m: &Matrix| common::output(device, self.rows(), m.rows(), dtype);
                matrices.iter().map(one).collect()
            }
        };
        let pairs = weights.iter().zip(&outs);
        let products: Vec<_> = pairs.map(|(weight, &out)| Product { weight, out }).collect();
        let dispatch = qmv(input, &products, before.is_some());
        common::run(device, &[dispatch]);
        outs.iter().map(|&out| common::rows(device, out)).collect()
    }

    fn gated(&self, device: &mut TestDevice, gate: &Matrix, up: &Matrix) -> Rows {
        let input = self.upload(device);
        let (gate, up) = (common::matrix(device, gate), common::matrix(device, up));
        let out = common::output(device, self.rows(), gate.rows as usize, Dtype::F32);
        let dispatch = qmv_swiglu(input, &gate, &up, out);
        common::run(device, &[dispatch]);
        common::rows(device, out)
    }
}

/// Rows, input width, outputs of each matrix, bits. A simdgroup takes 512 values at a time; threadgroup memory has 2048 of
/// one row, 512 of four.
fn cases() -> Vec<(usize, usize, Vec<usize>, usize)> {
    vec![
        (1, 2048, vec![64, 1, 17], 4),
        (1, 2048, vec![33], 8),
        (2, 256, vec![256, 4, 4, 64], 4),
        (3, 320, vec![777], 4),
        (4, 192, vec![15, 16, 31], 8),
        (7, 64, vec![5], 4),
        (8, 512, vec![40, 9], 8),
        (9, 1088, vec![20], 4),
        (1, 4160, vec![18], 4),
        (5, 4096, vec![16, 3], 8),
        (17, 128, vec![2, 2], 4),
        (33, 384, vec![7], 8),
    ]
}

fn matrices(random: &mut Random, outputs: &[usize], cols: usize, bits: usize) -> Vec<Matrix> {
    outputs.iter().map(|&rows| quantised::matrix(random, rows, cols, bits)).collect()
}

/// The relative error, or what is wrong.
fn close(actual: &Rows, expected: &Rows, bound: f32, case: &str) -> f32 {
    compare::within(actual, expected, bound)
        .unwrap_or_else(|error| panic!("{case}: {error}"))
        .max_relative
}

#[test]
fn products_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let mut worst = [0.0_f32; 4];
    for (seed, (rows, cols, outputs, bits)) in (0..).zip(cases()) {
        for (kind, worst) in KINDS.into_iter().zip(&mut worst) {
            if kind == Kind::Gated && cols % 128 != 0 {
                continue;
            }
            let mut random = Random::new(seed);
            let case = Case::random(&mut random, kind, rows, cols);
            let matrices = matrices(&mut random, &outputs, cols, bits);
            let what = format!("{kind:?} [{rows}, {cols}] x {outputs:?} of {bits} bits");
            let input = case.reference();
            for (actual, matrix) in
                case.multiply(&mut device, &matrices, Dtype::F32, None).iter().zip(&matrices)
            {
                let expected = linear::reference(&input, matrix);
                *worst = worst.max(close(actual, &expected, tolerance::QMV, &what));
            }
        }
    }
    println!("worst of {KINDS:?}: {}", worst.map(|w| format!("{w:.1e}")).join(", "));
}

#[test]
fn products_are_added_and_stored_in_bf16() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(20);
    for (rows, bits) in [(1, 4), (3, 8), (11, 4)] {
        let case = Case::random(&mut random, Kind::Normed, rows, 320);
        let matrices = matrices(&mut random, &[18, 33], 320, bits);
        let plain = case.multiply(&mut device, &matrices, Dtype::F32, None);
        let before: Vec<Rows> =
            matrices.iter().map(|matrix| random.rows(rows, matrix.rows(), 2.0)).collect();
        let added = case.multiply(&mut device, &matrices, Dtype::F32, Some(&before));
        for ((added, plain), before) in added.iter().zip(&plain).zip(&before) {
            let pairs = plain.as_slice().iter().zip(before.as_slice());
            let sums = Rows::from_vec(plain.cols(), pairs.map(|(a, b)| b + a).collect());
            compare::identical(added, &sums).unwrap_or_else(|error| panic!("{error}"));
        }
        let stored = case.multiply(&mut device, &matrices, Dtype::Bf16, None);
        for (stored, plain) in stored.iter().zip(&plain) {
            compare::identical(stored, &common::rounded(plain)).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn gated_products_are_the_references() {
    let Some(mut device) = common::device() else { return };
    let mut worst = 0.0_f32;
    for (seed, (rows, cols, outputs, [gate, up])) in (30..).zip([
        (1, 2048, 64, [4, 4]),
        (2, 256, 64, [8, 8]),
        (4, 320, 31, [4, 8]),
        (9, 192, 9, [8, 4]),
        (1, 64, 1, [4, 4]),
    ]) {
        let mut random = Random::new(seed);
        let case = Case::random(&mut random, Kind::Normed, rows, cols);
        let gate = quantised::matrix(&mut random, outputs, cols, gate);
        let up = quantised::matrix(&mut random, outputs, cols, up);
        let y = case.reference();
        let expected =
            swiglu::reference(&linear::reference(&y, &gate), &linear::reference(&y, &up));
        let actual = case.gated(&mut device, &gate, &up);
        let what = format!("[{rows}, {cols}] x {outputs}");
        worst = worst.max(close(&actual, &expected, tolerance::QMV_SWIGLU, &what));
    }
    println!("worst: {worst:.1e}");
}

#[test]
fn a_row_alone_and_any_order_of_threads_give_the_same_bits() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(40);
    let same = |actual: &Rows, expected: &[f32], what: &str| {
        let expected = Rows::from_vec(actual.cols(), expected.to_vec());
        compare::identical(actual, &expected).unwrap_or_else(|error| panic!("{what}: {error}"));
    };
    for (rows, cols, bits) in [(11, 2176, 4), (4, 640, 8), (2, 1152, 4)] {
        for kind in KINDS {
            let case = Case::random(&mut random, kind, rows, cols);
            let matrices = matrices(&mut random, &[6, 17], cols, bits);
            let all = case.multiply(&mut device, &matrices, Dtype::F32, None);
            let gated = case.gated(&mut device, &matrices[0], &matrices[0]);
            for order in common::ORDERS {
                device.set_order(order);
                let again = case.multiply(&mut device, &matrices, Dtype::F32, None);
                for (again, all) in again.iter().zip(&all) {
                    same(again, all.as_slice(), "another order");
                }
                let again = case.gated(&mut device, &matrices[0], &matrices[0]);
                same(&again, gated.as_slice(), "another order, gated");
            }
            for row in 0..rows {
                let one = case.row(row);
                let alone = one.multiply(&mut device, &matrices, Dtype::F32, None);
                for (alone, all) in alone.iter().zip(&all) {
                    same(alone, all.row(row), "alone");
                }
                let alone = one.gated(&mut device, &matrices[0], &matrices[0]);
                same(&alone, gated.row(row), "alone, gated");
            }
        }
    }
}

#[test]
fn a_matrix_counts_once_for_eight_rows() {
    let Some(mut device) = common::device() else { return };
    let mut random = Random::new(50);
    let matrix = quantised::matrix(&mut random, 20, 128, 4);
    let read = |device: &mut TestDevice, random: &mut Random, rows: usize| {
        let input = Case::random(random, Kind::Plain, rows, 128).upload(device);
        let weight = common::matrix(device, &matrix);
        let out = common::output(device, rows, 20, Dtype::F32);
        let dispatch: Dispatch = qmv(input, &[Product { weight: &weight, out }], false);
        dispatch.traffic.read - rows as u64 * 128 * 4
    };
    let bytes = 20 * (64 + 2 * 2 * 2);
    for (rows, times) in [(1, 1), (8, 1), (9, 2)] {
        assert_eq!(read(&mut device, &mut random, rows), times * bytes, "{rows} rows");
    }
}
