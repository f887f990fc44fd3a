//! Norms, and products with quantised matrices.

use super::{On, Verdict};
use crate::check::Check;
use crate::{delta, quantised, tolerance, values};
use calla_gpu::gated_norm::gated_norm;
use calla_gpu::products::Product;
use calla_gpu::qmm::{RowTile, qmm, qmm_swiglu};
use calla_gpu::qmv::{Input, qmv, qmv_swiglu};
use calla_gpu::rms_norm::rms_norm;
use calla_gpu::{Dtype, GpuMatrix, Tensor};
use calla_model::Matrix;
use calla_ops::{Rows, linear, swiglu};
use calla_testkit::Random;

/// Far larger than in models, so that it counts.
const EPS: f32 = 0.5;

fn scale(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.uniform(0.5, 1.5)).collect()
}

pub(super) fn rms_norm_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::RMS_NORM);
    let mut random = Random::new(10);
    for (rows, cols) in [(7, 2048), (33, 192)] {
        let x = random.rows(rows, cols, 3.0);
        let scale = scale(&mut random, cols);
        let expected = calla_ops::rms_norm::reference(&x, &scale, EPS);
        let (x, scale) = (values::f32s(device, &x), values::vector(device, &scale));
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let out = values::output(device, rows, cols, dtype);
            values::run(device, &[rms_norm(x, scale, EPS, out)]);
            let actual = values::rows(device, out);
            match dtype {
                Dtype::F32 => check.within("f32", &actual, &expected),
                _ => check.stored("bf16", &actual, &expected),
            }
        }
    }
    check.done()
}

pub(super) fn gated_norm_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::GATED_NORM);
    let mut random = Random::new(11);
    let [o, z] = [0.3, 2.0].map(|size| values::rounded(&random.rows(33, 4 * 128, size)));
    let scale = scale(&mut random, 128);
    let expected = calla_ops::gated_norm::reference(&o, &z, &scale, 1e-6);
    let out = values::output(device, o.rows(), o.cols(), Dtype::Bf16);
    let (o, z) = (values::bf16s(device, &o), values::bf16s(device, &z));
    let scale = values::vector(device, &scale);
    values::run(device, &[gated_norm(o, z, scale, 1e-6, out)]);
    let actual = delta::by_head(&values::rows(device, out));
    check.stored("heads", &actual, &delta::by_head(&expected));
    check.done()
}

/// Products side by side: their matrices, and where results go.
fn products<'a>(weights: &'a [GpuMatrix], outs: &[Tensor]) -> Vec<Product<'a>> {
    weights.iter().zip(outs).map(|(weight, &out)| Product { weight, out }).collect()
}

fn upload(device: On<'_>, matrices: &[Matrix]) -> Vec<GpuMatrix> {
    matrices.iter().map(|matrix| values::matrix(device, matrix)).collect()
}

fn outputs(device: On<'_>, rows: usize, matrices: &[Matrix]) -> Vec<Tensor> {
    matrices.iter().map(|m| values::output(device, rows, m.rows(), Dtype::F32)).collect()
}

pub(super) fn qmm_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::QMM);
    let mut random = Random::new(12);
    for (rows, width, bits) in [(33, 192, 4), (65, 256, 8), (97, 2048, 4)] {
        let x = values::rounded(&random.rows(rows, width, 1.0));
        let matrices = [65, 20].map(|cols| quantised::matrix(&mut random, cols, width, bits));
        let (input, weights) = (values::bf16s(device, &x), upload(device, &matrices));
        for tile in [RowTile::R32, RowTile::R64] {
            let outs = outputs(device, rows, &matrices);
            values::run(device, &[qmm(input, &products(&weights, &outs), false, tile)]);
            for (&out, matrix) in outs.iter().zip(&matrices) {
                let what = format!("{rows} rows of {width}, {bits} bits, tiles of {}", tile.rows());
                let due = linear::reference(&x, matrix);
                check.within(&what, &values::rows(device, out), &due);
            }
        }
    }
    let gated = qmm_swiglu_case(device, &mut random)?;
    let products = check.done()?;
    // Of the two, what is nearer to its bound.
    let share = |a: crate::Agreement| a.off / a.allowed;
    Ok(if share(gated) > share(products) { gated } else { products })
}

fn qmm_swiglu_case(device: On<'_>, random: &mut Random) -> Verdict {
    let mut check = Check::new(tolerance::QMM_SWIGLU);
    let (rows, width) = (65, 320);
    let x = values::rounded(&random.rows(rows, width, 1.0));
    let [gate, up] = [4, 8].map(|bits| quantised::matrix(random, 40, width, bits));
    let due = swiglu::reference(&linear::reference(&x, &gate), &linear::reference(&x, &up));
    let input = values::bf16s(device, &x);
    let [gate, up] = [gate, up].map(|matrix| values::matrix(device, &matrix));
    for tile in [RowTile::R32, RowTile::R64] {
        let out = values::output(device, rows, 40, Dtype::Bf16);
        values::run(device, &[qmm_swiglu(input, &gate, &up, out, tile)]);
        let what = format!("SwiGLU, tiles of {}", tile.rows());
        check.rounded(&what, &values::rows(device, out), &due);
    }
    check.done()
}

pub(super) fn qmv_case(device: On<'_>) -> Verdict {
    // The bound of a product is that of SwiGLU's two.
    let mut check = Check::new(tolerance::QMV_SWIGLU);
    let mut random = Random::new(13);
    for (rows, width, bits) in [(1, 2048, 4), (2, 256, 8), (4, 320, 4), (9, 1088, 4), (17, 128, 8)]
    {
        let x = random.rows(rows, width, 3.0);
        let scale = scale(&mut random, width);
        let normed = calla_ops::rms_norm::reference(&x, &scale, EPS);
        let matrices = [33, 33].map(|cols| quantised::matrix(&mut random, cols, width, bits));
        let due: Vec<Rows> = matrices.iter().map(|m| linear::reference(&normed, m)).collect();
        let weights = upload(device, &matrices);
        let (x, scale) = (values::f32s(device, &x), values::vector(device, &scale));
        let input = || Input::Normed { x, scale, eps: EPS };
        let outs = outputs(device, rows, &matrices);
        let gated = values::output(device, rows, 33, Dtype::F32);
        let dispatches = [
            qmv(input(), &products(&weights, &outs), false),
            qmv_swiglu(input(), &weights[0], &weights[1], gated),
        ];
        values::run(device, &dispatches);
        let what = format!("{rows} rows of {width}, {bits} bits");
        for (&out, due) in outs.iter().zip(&due) {
            check.within(&what, &values::rows(device, out), due);
        }
        let due = swiglu::reference(&due[0], &due[1]);
        check.within(&format!("SwiGLU, {what}"), &values::rows(device, gated), &due);
    }
    check.done()
}
