//! Choice of experts: the largest `top_k` router logits and the softmax over them.

use crate::linear::RowPair;
use calla_ops::Rows;
use calla_ops::experts::ExpertInput;
use calla_ops::route::Routing;

/// As [`calla_ops::route::reference`], without sorting all logits.
pub(crate) fn top_k_softmax(logits: &Rows, top_k: usize) -> Routing {
    let mut routing = Routing { top_k, experts: vec![], weights: vec![] };
    let mut best: Vec<u32> = Vec::with_capacity(top_k + 1);
    for row in logits.iter() {
        best.clear();
        for (expert, logit) in row.iter().enumerate() {
            // Equal logits leave the lower expert in front.
            let rank = best.iter().rposition(|&b| row[b as usize].total_cmp(logit).is_ge());
            let rank = rank.map_or(0, |before| before + 1);
            if rank < top_k {
                best.insert(rank, expert as u32);
                best.truncate(top_k);
            }
        }
        let max = row[best[0] as usize];
        let first = routing.weights.len();
        routing.weights.extend(best.iter().map(|&e| (row[e as usize] - max).exp()));
        let sum: f32 = routing.weights[first..].iter().sum();
        for weight in &mut routing.weights[first..] {
            *weight /= sum;
        }
        routing.experts.extend_from_slice(&best);
    }
    routing
}

/// The rows of each expert that has any.
pub(crate) struct RowsByExpert {
    rows: Vec<RowPair>,
    /// Expert, and where its rows end in `rows`.
    ends: Vec<(usize, usize)>,
}

impl RowsByExpert {
    /// Sorts pairs `row * top_k + rank` by expert; each output row is its pair.
    pub(crate) fn new(routing: &Routing, input: ExpertInput, experts: usize) -> Self {
        let mut next = vec![0; experts + 1];
        for &expert in &routing.experts {
            next[expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            next[expert + 1] += next[expert];
        }
        let mut rows = vec![RowPair { input: 0, output: 0 }; routing.experts.len()];
        for (pair, &expert) in routing.experts.iter().enumerate() {
            let at = &mut next[expert as usize];
            let input = input.row(pair, routing.top_k) as u32;
            rows[*at] = RowPair { input, output: pair as u32 };
            *at += 1;
        }
        // Now `next[e]` is the end of expert e.
        let mut start = 0;
        let mut ends = vec![];
        for (expert, &end) in next[..experts].iter().enumerate() {
            if end > start {
                ends.push((expert, end));
            }
            start = end;
        }
        Self { rows, ends }
    }

    /// Each expert with its rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &[RowPair])> {
        let mut start = 0;
        self.ends.iter().map(move |&(expert, end)| {
            let rows = &self.rows[start..end];
            start = end;
            (expert, rows)
        })
    }
}
