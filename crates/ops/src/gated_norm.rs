//! Gated RMS norm of DeltaNet outputs: norm each head of 128, then gate by `silu(z)`.
//!
//! The scale is plain (never zero-centred) and shared by the heads; the epsilon is that of RMS norm.

use crate::rms_norm::normalize;
use crate::swiglu::silu;
use crate::tensor::Rows;
use calla_model::shape::DELTA_HEAD_DIM;

/// `o`, `z`: `[rows, value heads * 128]`.
#[must_use]
pub fn reference(o: &Rows, z: &Rows, scale: &[f32], eps: f32) -> Rows {
    let mut y = o.clone();
    for (y, z) in y.iter_mut().zip(z.iter()) {
        for head in y.chunks_exact_mut(DELTA_HEAD_DIM) {
            normalize(head, scale, eps);
        }
        for (y, &z) in y.iter_mut().zip(z) {
            *y *= silu(z);
        }
    }
    y
}
