//! Split, normalisation and gates in front of the DeltaNet recurrence.
//!
//! `q <- q / sqrt(sum q^2 + 1e-6) / sqrt(128)`, `k <- k / sqrt(sum k^2 + 1e-6)`,
//! `beta = sigmoid(b)`, `log decay = -exp(A_log) * softplus(a + dt_bias)`.

use crate::ops::DeltaTerms;
use crate::swiglu::{sigmoid, softplus};
use crate::tensor::Rows;
use calla_model::Shape;
use calla_model::network::{CheckpointParts, DeltaNet};
use calla_model::shape::{DELTA_HEAD_DIM, L2_NORM_EPS};

/// Terms of the recurrence from convolved `qkv`.
#[must_use]
pub fn reference(
    shape: &Shape,
    qkv: &Rows,
    b: &Rows,
    a: &Rows,
    weights: &DeltaNet<CheckpointParts>,
) -> DeltaTerms<Rows> {
    let (keys, values) = (shape.delta_key_dim(), shape.delta_value_dim());
    let (rows, heads) = (qkv.rows(), shape.delta_value_heads);
    let mut terms = DeltaTerms {
        q: Rows::zeros(rows, keys),
        k: Rows::zeros(rows, keys),
        v: Rows::zeros(rows, values),
        beta: Rows::zeros(rows, heads),
        log_decay: Rows::zeros(rows, heads),
    };
    for row in 0..rows {
        let (q, kv) = qkv.row(row).split_at(keys);
        let (k, v) = kv.split_at(keys);
        terms.q.row_mut(row).copy_from_slice(q);
        terms.k.row_mut(row).copy_from_slice(k);
        terms.v.row_mut(row).copy_from_slice(v);
        for head in terms.q.row_mut(row).chunks_exact_mut(DELTA_HEAD_DIM) {
            l2_normalize(head, 1.0 / (DELTA_HEAD_DIM as f32).sqrt());
        }
        for head in terms.k.row_mut(row).chunks_exact_mut(DELTA_HEAD_DIM) {
            l2_normalize(head, 1.0);
        }
        for head in 0..heads {
            terms.beta.row_mut(row)[head] = sigmoid(b.row(row)[head]);
            let rate = softplus(a.row(row)[head] + weights.dt_bias[head]);
            terms.log_decay.row_mut(row)[head] = -weights.a_log[head].exp() * rate;
        }
    }
    terms
}

/// `x <- x / sqrt(sum x^2 + 1e-6) * factor`.
pub fn l2_normalize(x: &mut [f32], factor: f32) {
    let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let scale = (1.0 / (squares + f64::from(L2_NORM_EPS)).sqrt()) as f32 * factor;
    for x in x {
        *x *= scale;
    }
}
