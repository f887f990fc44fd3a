//! Split, normalisation and gates in front of the DeltaNet recurrence.

use crate::simd::{AvailableIsa, Kernel, Simd, math};
use crate::threads::Threads;
use calla_model::Shape;
use calla_model::network::{CheckpointParts, DeltaNet};
use calla_model::shape::{DELTA_HEAD_DIM, L2_NORM_EPS};
use calla_ops::Rows;
use calla_ops::ops::DeltaTerms;
use calla_ops::swiglu::{sigmoid, softplus};

/// Normalises heads in place: `x / sqrt(sum x^2 + 1e-6) * factor`.
struct L2Norm<'a> {
    heads: &'a mut [f32],
    factor: f32,
}

impl Kernel for L2Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for head in self.heads.chunks_exact_mut(DELTA_HEAD_DIM) {
            let scale = self.factor / (math::dot(simd, head, head) + L2_NORM_EPS).sqrt();
            for x in head {
                *x *= scale;
            }
        }
    }
}

/// Terms of the recurrence from convolved `qkv`.
pub(crate) fn delta_prep(
    isa: AvailableIsa,
    threads: &Threads,
    shape: &Shape,
    qkv: &Rows,
    gates: (&Rows, &Rows),
    weights: &DeltaNet<CheckpointParts>,
) -> DeltaTerms<Rows> {
    let (keys, values) = (shape.delta_key_dim(), shape.delta_value_dim());
    let (rows, heads) = (qkv.rows(), shape.delta_value_heads);
    assert_eq!(qkv.cols(), 2 * keys + values, "channels of the convolution");
    let part = |from: usize, width: usize, factor: Option<f32>| {
        let mut y = Rows::zeros(rows, width);
        threads.for_each_chunk(y.as_mut_slice(), width, rows * width / 2, |row, y| {
            y.copy_from_slice(&qkv.row(row)[from..from + width]);
            if let Some(factor) = factor {
                isa.run(L2Norm { heads: y, factor });
            }
        });
        y
    };
    let (b, a) = gates;
    let mut beta = Rows::zeros(rows, heads);
    let mut log_decay = Rows::zeros(rows, heads);
    for row in 0..rows {
        for (head, beta) in beta.row_mut(row).iter_mut().enumerate() {
            *beta = sigmoid(b.row(row)[head]);
        }
        for (head, log_decay) in log_decay.row_mut(row).iter_mut().enumerate() {
            let rate = softplus(a.row(row)[head] + weights.dt_bias[head]);
            *log_decay = -weights.a_log[head].exp() * rate;
        }
    }
    DeltaTerms {
        q: part(0, keys, Some(1.0 / (DELTA_HEAD_DIM as f32).sqrt())),
        k: part(keys, keys, Some(1.0)),
        v: part(2 * keys, values, None),
        beta,
        log_decay,
    }
}
