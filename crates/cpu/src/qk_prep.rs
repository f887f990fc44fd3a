//! Norm and rotary embedding of attention queries and keys.

use crate::rms_norm::normalize_in_place;
use crate::simd::{AvailableIsa, Kernel, Simd};
use crate::threads::Threads;
use calla_model::Shape;
use calla_model::network::{Attention, CheckpointParts};
use calla_model::shape::HEAD_DIM;
use calla_ops::ops::QueriesKeys;
use calla_ops::qk_prep::Rotation;
use calla_ops::{Batch, Rows};

/// Rotations of all positions seen so far: sines are dearer than everything else here.
#[derive(Default)]
pub(crate) struct Rotations(Vec<Rotation>);

impl Rotations {
    /// Makes sure that positions `0..end` are there.
    fn extend_to(&mut self, end: usize, threads: &Threads, theta: f32) {
        let known = self.0.len();
        if end <= known {
            return;
        }
        // In blocks, so that decoding does not come here at every token.
        let mut new: Vec<Option<Rotation>> = Vec::new();
        new.resize_with((end - known).next_multiple_of(64), || None);
        let nanoseconds = new.len() * 2000;
        threads.for_each_mut(&mut new, nanoseconds, |i, rotation| {
            *rotation = Some(Rotation::new(known + i, theta));
        });
        self.0.extend(new.into_iter().flatten());
    }
}

/// Norms and rotates the heads of one row in place.
struct Heads<'a> {
    heads: &'a mut [f32],
    scale: &'a [f32],
    eps: f32,
    rotation: &'a Rotation,
}

impl Kernel for Heads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for head in self.heads.chunks_exact_mut(HEAD_DIM) {
            normalize_in_place(simd, head, self.scale, self.eps);
            self.rotation.apply(head);
        }
    }
}

/// Queries (taken out of `q_gate`) and keys.
pub(crate) fn qk_prep(
    isa: AvailableIsa,
    threads: &Threads,
    shape: &Shape,
    rotations: &mut Rotations,
    inputs: (&Rows, &Rows),
    weights: &Attention<CheckpointParts>,
    batch: &Batch,
) -> QueriesKeys<Rows> {
    let (q_gate, k) = inputs;
    let positions: Vec<usize> = batch
        .spans()
        .iter()
        .flat_map(|span| span.rows.clone().map(|row| span.position_of(row)))
        .collect();
    let end = positions.iter().max().map_or(0, |last| last + 1);
    rotations.extend_to(end, threads, shape.rope_theta);
    let eps = shape.rms_norm_eps;
    let mut q = Rows::zeros(q_gate.rows(), shape.query_dim());
    let (cols, nanoseconds) = (q.cols(), q.as_slice().len() / 2);
    threads.for_each_chunk(q.as_mut_slice(), cols, nanoseconds, |row, q| {
        let heads = q_gate.row(row).chunks_exact(2 * HEAD_DIM);
        for (q, q_gate) in q.chunks_exact_mut(HEAD_DIM).zip(heads) {
            q.copy_from_slice(&q_gate[..HEAD_DIM]);
        }
        let rotation = &rotations.0[positions[row]];
        isa.run(Heads { heads: q, scale: &weights.q_norm, eps, rotation });
    });
    let mut k = k.clone();
    let (cols, nanoseconds) = (k.cols(), k.as_slice().len() / 2);
    threads.for_each_chunk(k.as_mut_slice(), cols, nanoseconds, |row, k| {
        let rotation = &rotations.0[positions[row]];
        isa.run(Heads { heads: k, scale: &weights.k_norm, eps, rotation });
    });
    QueriesKeys { q, k }
}
