//! Matrix products by expert, and the weighted sum of the experts' outputs.

use crate::linear;
use crate::route::Routing;
use crate::swiglu::sigmoid;
use crate::tensor::Rows;
use calla_model::Experts;

/// Which input row belongs to pair `row * top_k + rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInput {
    /// Row `row`: every chosen expert sees the same input (gate and up projections).
    PerRow,
    /// Row `row * top_k + rank`: each expert has its own input (down projections).
    PerPair,
}

impl ExpertInput {
    /// Input row of `pair`.
    #[must_use]
    pub fn row(self, pair: usize, top_k: usize) -> usize {
        match self {
            Self::PerRow => pair / top_k,
            Self::PerPair => pair,
        }
    }
}

/// `y[pair] = weights[expert of pair] x[input row of pair]`: `[rows * top_k, out]`.
#[must_use]
pub fn expert_linear(x: &Rows, input: ExpertInput, routing: &Routing, weights: &Experts) -> Rows {
    let mut y = Rows::zeros(routing.experts.len(), weights.rows());
    for expert in 0..weights.count() {
        let pairs: Vec<usize> = routing.pairs_of(expert).collect();
        if pairs.is_empty() {
            continue;
        }
        let mut own = Rows::zeros(pairs.len(), x.cols());
        for (i, &pair) in pairs.iter().enumerate() {
            own.row_mut(i).copy_from_slice(x.row(input.row(pair, routing.top_k)));
        }
        let own = linear::reference(&own, weights.get(expert));
        for (i, &pair) in pairs.iter().enumerate() {
            y.row_mut(pair).copy_from_slice(own.row(i));
        }
    }
    y
}

/// `x[row] += sum over ranks of weight * routed[row, rank] + sigmoid(shared_gate[row]) * shared[row]`.
/// The sum runs in the order of ranks, then the shared expert.
pub fn combine(x: &mut Rows, routed: &Rows, routing: &Routing, shared: &Rows, shared_gate: &Rows) {
    for row in 0..x.rows() {
        let mut sum = vec![0.0_f32; x.cols()];
        for pair in row * routing.top_k..(row + 1) * routing.top_k {
            let weight = routing.weights[pair];
            for (s, y) in sum.iter_mut().zip(routed.row(pair)) {
                *s = weight.mul_add(*y, *s);
            }
        }
        let gate = sigmoid(shared_gate.row(row)[0]);
        for ((x, s), y) in x.row_mut(row).iter_mut().zip(&sum).zip(shared.row(row)) {
            *x += gate.mul_add(*y, *s);
        }
    }
}
