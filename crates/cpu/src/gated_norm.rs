//! Gated RMS norm of DeltaNet outputs, head by head.

use crate::rms_norm::normalize_in_place;
use crate::simd::{AvailableIsa, Kernel, Simd, math};
use crate::threads::Threads;
use calla_model::shape::DELTA_HEAD_DIM;
use calla_ops::Rows;

struct GatedNorm<'a> {
    y: &'a mut [f32],
    z: &'a [f32],
    scale: &'a [f32],
    eps: f32,
}

impl Kernel for GatedNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let heads = self.y.chunks_exact_mut(DELTA_HEAD_DIM);
        for (y, z) in heads.zip(self.z.chunks_exact(DELTA_HEAD_DIM)) {
            normalize_in_place(simd, y, self.scale, self.eps);
            math::map_blocks!(y, z, |y, z, simd| simd.mul(y, math::silu(simd, z)));
        }
    }
}

/// `norm(o) * scale * silu(z)` per head of 128; `scale` is shared by the heads.
pub(crate) fn gated_norm(
    isa: AvailableIsa,
    threads: &Threads,
    o: &Rows,
    z: &Rows,
    scale: &[f32],
    eps: f32,
) -> Rows {
    assert_eq!((o.cols(), scale.len()), (z.cols(), DELTA_HEAD_DIM), "widths of the gated norm");
    let mut y = o.clone();
    threads.for_each_chunk(y.as_mut_slice(), o.cols(), 2 * o.as_slice().len(), |row, y| {
        isa.run(GatedNorm { y, z: z.row(row), scale, eps });
    });
    y
}
