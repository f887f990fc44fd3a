//! Causal attention over paged keys and values, and its output gate.
//!
//! Grouped queries: query head h reads kv head `h / (heads / kv heads)`. Scores are scaled by 1/16, the
//! softmax is in f32 or better, and a row sees every position up to its own.

use crate::cache::KvPool;
use crate::linear::dot;
use crate::span::Span;
use crate::swiglu::sigmoid;
use crate::tensor::Rows;
use calla_model::Shape;
use calla_model::shape::HEAD_DIM;

/// 1 / sqrt(256).
pub const SCORE_SCALE: f32 = 1.0 / 16.0;
const _: () = assert!(16 * 16 == HEAD_DIM);

/// Attention of one span's rows into `o` `[rows, heads * 256]`.
pub fn reference(shape: &Shape, q: &Rows, span: &Span, kv: &KvPool, o: &mut Rows) {
    let kv_head = |position: usize, head: usize| {
        let head = head / (shape.attention_heads / shape.kv_heads);
        let at = span.kv_index(position) * shape.kv_dim() + head * HEAD_DIM;
        at..at + HEAD_DIM
    };
    for row in span.rows.clone() {
        let positions = 0..=span.position_of(row);
        for head in 0..shape.attention_heads {
            let q = &q.row(row)[head * HEAD_DIM..][..HEAD_DIM];
            let scores: Vec<f64> = positions
                .clone()
                .map(|p| dot(q, &kv.keys[kv_head(p, head)]) * f64::from(SCORE_SCALE))
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = [0.0_f64; HEAD_DIM];
            for (p, weight) in positions.clone().zip(&weights) {
                let values = &kv.values[kv_head(p, head)];
                for (sum, &v) in sum.iter_mut().zip(values) {
                    *sum += weight * f64::from(v);
                }
            }
            let o = &mut o.row_mut(row)[head * HEAD_DIM..][..HEAD_DIM];
            for (o, sum) in o.iter_mut().zip(sum) {
                *o = (sum / total) as f32;
            }
        }
    }
}

/// Copies keys and values of one span into its pages.
pub fn append(k: &Rows, v: &Rows, span: &Span, kv: &mut KvPool) {
    let width = k.cols();
    for row in span.rows.clone() {
        let at = span.kv_index(span.position_of(row)) * width;
        kv.keys[at..at + width].copy_from_slice(k.row(row));
        kv.values[at..at + width].copy_from_slice(v.row(row));
    }
}

/// `o * sigmoid(gate)`; the gate of head h is `q_gate[.., 512 h + 256 ..]`.
#[must_use]
pub fn gate(o: &Rows, q_gate: &Rows) -> Rows {
    let mut y = o.clone();
    for (y, q_gate) in y.iter_mut().zip(q_gate.iter()) {
        let heads = y.chunks_exact_mut(HEAD_DIM).zip(q_gate.chunks_exact(2 * HEAD_DIM));
        for (y, q_gate) in heads {
            for (y, &g) in y.iter_mut().zip(&q_gate[HEAD_DIM..]) {
                *y *= sigmoid(g);
            }
        }
    }
    y
}
