//! RMS norm of rows or heads.

use crate::simd::{AvailableIsa, Kernel, Simd, math};
use crate::threads::Threads;
use calla_ops::Rows;

/// `x / sqrt(mean(x^2) + eps) * scale` of one vector.
#[inline(always)]
pub(crate) fn normalize<S: Simd>(simd: S, x: &[f32], scale: &[f32], eps: f32, y: &mut [f32]) {
    let inverse = 1.0 / (math::dot(simd, x, x) / x.len() as f32 + eps).sqrt();
    for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
        *y = x * inverse * scale;
    }
}

/// As [`normalize`].
#[inline(always)]
pub(crate) fn normalize_in_place<S: Simd>(simd: S, x: &mut [f32], scale: &[f32], eps: f32) {
    let inverse = 1.0 / (math::dot(simd, x, x) / x.len() as f32 + eps).sqrt();
    for (x, &scale) in x.iter_mut().zip(scale) {
        *x = *x * inverse * scale;
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    scale: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        normalize(simd, self.x, self.scale, self.eps, self.y);
    }
}

/// Norms each row.
pub(crate) fn rms_norm(
    isa: AvailableIsa,
    threads: &Threads,
    x: &Rows,
    scale: &[f32],
    eps: f32,
) -> Rows {
    assert_eq!(x.cols(), scale.len(), "length of the norm's scale");
    let mut y = Rows::zeros(x.rows(), x.cols());
    threads.for_each_chunk(y.as_mut_slice(), x.cols(), x.as_slice().len() / 4, |row, y| {
        isa.run(RmsNorm { x: x.row(row), scale, eps, y });
    });
    y
}
