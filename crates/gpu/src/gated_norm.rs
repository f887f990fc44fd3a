//! The gated norm of DeltaNet outputs: `kernels/gated_norm.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;
use calla_model::shape::DELTA_HEAD_DIM;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    heads: u32,
    eps: f32,
}

/// Heads of a threadgroup: one for each simdgroup.
const HEADS: u32 = 8;

/// RMS norm of each head of 128, times `silu(z)`: `gated_norm` of `calla_ops`.
///
/// `o`, `z`, `out`: bf16 `[n, value heads * 128]`; `scale`: f32 `[1, 128]`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn gated_norm(o: Tensor, z: Tensor, scale: Tensor, eps: f32, out: Tensor) -> Dispatch {
    let dim = DELTA_HEAD_DIM as u32;
    for tensor in [o, z, out] {
        tensor.check("o, z, out", o.rows, o.cols, Dtype::Bf16);
    }
    assert!(o.cols.is_multiple_of(dim), "heads of {dim} in {} columns", o.cols);
    scale.check_width("scale", dim, Dtype::F32);
    let heads = o.rows * (o.cols / dim);
    Dispatch::new(entries::GATED_NORM)
        .read(o)
        .read(z)
        .read(scale)
        .write(out)
        .params(&Params { heads, eps })
        .grid([heads.div_ceil(HEADS), 1, 1], [HEADS * 32, 1, 1])
        // Squares, norm, scale, SiLU and gate.
        .flops(u64::from(o.rows) * u64::from(o.cols) * 8)
}
