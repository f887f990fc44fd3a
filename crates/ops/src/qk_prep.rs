//! Norm and rotary embedding of attention queries and keys.
//!
//! Each head of 256 is RMS-normed, then its dimensions 0..64 are rotated in pairs (i, i + 32) by the angle
//! `position * theta^(-2 i / 64)`; the other dimensions pass through. The gate halves and the values are
//! not touched. For text the three streams of multimodal RoPE are equal, so this is all of it.

use crate::batch::Batch;
use crate::ops::QueriesKeys;
use crate::rms_norm::normalize;
use crate::tensor::Rows;
use calla_model::Shape;
use calla_model::network::{Attention, CheckpointParts};
use calla_model::shape::{HEAD_DIM, ROTARY_DIM};

/// Queries (taken out of `q_gate`) and keys.
#[must_use]
pub fn reference(
    shape: &Shape,
    q_gate: &Rows,
    k: &Rows,
    weights: &Attention<CheckpointParts>,
    batch: &Batch,
) -> QueriesKeys<Rows> {
    let mut q = Rows::zeros(q_gate.rows(), shape.query_dim());
    let mut k = k.clone();
    for span in batch.spans() {
        for row in span.rows.clone() {
            let turn = Rotation::new(span.position_of(row), shape.rope_theta);
            let heads = q_gate.row(row).chunks_exact(2 * HEAD_DIM);
            for (q, q_gate) in q.row_mut(row).chunks_exact_mut(HEAD_DIM).zip(heads) {
                q.copy_from_slice(&q_gate[..HEAD_DIM]);
                normalize(q, &weights.q_norm, shape.rms_norm_eps);
                turn.apply(q);
            }
            for k in k.row_mut(row).chunks_exact_mut(HEAD_DIM) {
                normalize(k, &weights.k_norm, shape.rms_norm_eps);
                turn.apply(k);
            }
        }
    }
    QueriesKeys { q, k }
}

/// The rotation of one position.
pub struct Rotation {
    /// (cos, sin) of each pair.
    angles: [(f32, f32); ROTARY_DIM / 2],
}

impl Rotation {
    /// Angles of `position`, computed in f64: at position 262,143 an f32 angle would be off by 0.01.
    #[must_use]
    pub fn new(position: usize, theta: f32) -> Self {
        let angle = |i: usize| {
            let exponent = -2.0 * i as f64 / ROTARY_DIM as f64;
            let (sin, cos) = (position as f64 * f64::from(theta).powf(exponent)).sin_cos();
            (cos as f32, sin as f32)
        };
        Self { angles: std::array::from_fn(angle) }
    }

    /// Cosine and sine of each pair's angle.
    #[must_use]
    pub fn angles(&self) -> &[(f32, f32); ROTARY_DIM / 2] {
        &self.angles
    }

    /// Rotates one head in place.
    pub fn apply(&self, head: &mut [f32]) {
        let (first, second) = head[..ROTARY_DIM].split_at_mut(ROTARY_DIM / 2);
        for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(self.angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_keeps_lengths_and_makes_scores_relative() {
        let head: Vec<f32> = (0..HEAD_DIM).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
        let other: Vec<f32> = (0..HEAD_DIM).map(|i| ((i * 53) % 7) as f32 - 3.0).collect();
        let score = |p: usize, q: usize| {
            let (mut a, mut b) = (head.clone(), other.clone());
            Rotation::new(p, 1e7).apply(&mut a);
            Rotation::new(q, 1e7).apply(&mut b);
            crate::linear::dot(&a, &b)
        };
        assert!((score(5, 3) - score(105, 103)).abs() < 1e-2);
        assert!((score(5, 3) - score(5, 4)).abs() > 1.0);
        let mut same = head.clone();
        Rotation::new(0, 1e7).apply(&mut same);
        assert_eq!(same, head);
    }
}
