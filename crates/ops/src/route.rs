//! Choice of experts: softmax over all router logits, the largest `top_k`, renormalised to sum 1.

use crate::tensor::Rows;

/// Experts and weights of each row, in order of falling probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Experts per row.
    pub top_k: usize,
    /// Expert of each pair `row * top_k + rank`.
    pub experts: Vec<u32>,
    /// Its weight; a row's weights sum to 1.
    pub weights: Vec<f32>,
}

impl Routing {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.experts.len() / self.top_k
    }

    /// Pairs that go to an expert, in increasing order.
    pub fn pairs_of(&self, expert: usize) -> impl Iterator<Item = usize> {
        self.experts
            .iter()
            .enumerate()
            .filter(move |&(_, &e)| e as usize == expert)
            .map(|(pair, _)| pair)
    }
}

/// Chooses experts from router logits `[rows, experts]`. Of equal logits the lower expert comes first.
///
/// Softmax over all, then top-k, then division by their sum equals a softmax over the chosen logits alone,
/// which is what is computed (Qwen3.5-MoE in transformers 5 does the former).
#[must_use]
pub fn reference(logits: &Rows, top_k: usize) -> Routing {
    let mut routing = Routing { top_k, experts: vec![], weights: vec![] };
    for row in logits.iter() {
        let mut order: Vec<u32> = (0..row.len() as u32).collect();
        // Stable, and total even for NaN: a NaN logit must not make the sort panic.
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        order.truncate(top_k);
        let max = row[order[0] as usize];
        let weights: Vec<f32> = order.iter().map(|&e| (row[e as usize] - max).exp()).collect();
        let sum: f32 = weights.iter().sum();
        routing.weights.extend(weights.iter().map(|w| w / sum));
        routing.experts.extend(order);
    }
    routing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_the_softmax_of_the_chosen() {
        let logits = Rows::from_vec(4, vec![0.0, 2.0, 1.0, 2.0]);
        let routing = reference(&logits, 3);
        assert_eq!(routing.experts, [1, 3, 2]);
        let all: f32 = [0.0_f32, 2.0, 1.0, 2.0].iter().map(|l| l.exp()).sum();
        let p = [2_f32.exp() / all, 2_f32.exp() / all, 1_f32.exp() / all];
        let sum: f32 = p.iter().sum();
        for (w, p) in routing.weights.iter().zip(p) {
            assert!((w - p / sum).abs() < 1e-6);
        }
        assert_eq!(routing.pairs_of(3).collect::<Vec<_>>(), [1]);
    }
}
