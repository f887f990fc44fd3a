//! Functions made of vector operations: exponential, sigmoid, SiLU, sums over slices.

use super::{Block, LANES, Simd};

/// `e^x`, relative error below 2^-22 where the result is normal; NaN stays NaN, large arguments give
/// infinity, very negative ones 0. Cody-Waite reduction and the polynomial of Cephes `expf`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    // Adding 1.5 * 2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    // Beyond these bounds the result is 0 and infinity anyway.
    let x = simd.min(simd.splat(89.0), simd.max(simd.splat(-104.0), x));
    let round = simd.splat(ROUND);
    let n = simd.sub(simd.mul_add(x, simd.splat(std::f32::consts::LOG2_E), round), round);
    let r = simd.mul_add(n, simd.splat(-LN2_HIGH), x);
    let r = simd.mul_add(n, simd.splat(-LN2_LOW), r);
    let mut p = simd.splat(COEFFICIENTS[0]);
    for c in &COEFFICIENTS[1..] {
        p = simd.mul_add(p, r, simd.splat(*c));
    }
    let p = simd.mul_add(p, simd.mul(r, r), r);
    simd.scale_by_power_of_two(simd.add(p, simd.splat(1.0)), n)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::V) -> S::V {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(simd: S, x: S::V) -> S::V {
    simd.div(x, simd.add(simd.splat(1.0), exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// The last, incomplete block of a slice, filled up with zeros.
#[inline(always)]
pub(crate) fn pad(tail: &[f32]) -> Block {
    let mut block = [0.0; LANES];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// Dot product in sixteen chains of fused multiply-adds.
#[inline(always)]
pub(crate) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let (a, a_tail) = a.as_chunks();
    let (b, b_tail) = b.as_chunks();
    let mut acc = simd.splat(0.0);
    for (a, b) in a.iter().zip(b) {
        acc = simd.mul_add(simd.load(a), simd.load(b), acc);
    }
    if !a_tail.is_empty() {
        acc = simd.mul_add(simd.load(&pad(a_tail)), simd.load(&pad(b_tail)), acc);
    }
    simd.sum(acc)
}

/// `y[i] = f(y[i], z[i])` for functions of vectors; the tail runs in a padded block.
macro_rules! map_blocks {
    ($y:expr, $z:expr, |$a:ident, $b:ident, $simd:ident| $body:expr) => {{
        let (y, y_tail) = $y.as_chunks_mut::<{ crate::simd::LANES }>();
        let (z, z_tail) = $z.as_chunks::<{ crate::simd::LANES }>();
        for (y, z) in y.iter_mut().zip(z) {
            let ($a, $b) = ($simd.load(y), $simd.load(z));
            $simd.store($body, y);
        }
        if !y_tail.is_empty() {
            let mut padded = crate::simd::math::pad(y_tail);
            let ($a, $b) = ($simd.load(&padded), $simd.load(&crate::simd::math::pad(z_tail)));
            $simd.store($body, &mut padded);
            y_tail.copy_from_slice(&padded[..y_tail.len()]);
        }
    }};
}
pub(crate) use map_blocks;
