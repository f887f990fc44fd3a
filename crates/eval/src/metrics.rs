//! Agreement of one distribution over tokens with another, and its summary over many positions.
//!
//! All in f64 from f32 logits; `p` is the reference, `q` what is judged. The divergence is
//! `KL(p || q) = sum over tokens of p ln(p / q)`, in nats. Where only the reference's largest logits and
//! its log-sum-exp are known, all other tokens count as one: their joint probabilities are compared. That
//! is a lower bound of the exact divergence (merging outcomes never raises it), and a close one when the
//! listed tokens hold nearly all of the probability.

use crate::goldens::ReferenceLogits;
use calla_ops::Rows;
use serde::Serialize;

/// Agreement at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// The token that the reference ranks first.
    pub expected: u32,
    /// The token that is ranked first here.
    pub actual: u32,
    /// Log-probability of the reference's first token minus its second.
    pub margin: f64,
    /// Divergence from the reference in nats, at least 0.
    pub kl: f64,
    /// Largest difference of a log-probability, over the tokens that the reference lists.
    pub logprob_diff: f64,
    /// Log-probability of the next token here and in the reference, if there is a next token and the
    /// reference lists it.
    pub next: Option<(f64, f64)>,
}

impl Position {
    /// Whether both rank the same token first.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.expected == self.actual
    }

    /// Compares `actual` logits `[vocabulary]` with the reference at `position`; `next` is the token that
    /// follows.
    ///
    /// # Errors
    /// A description of the first logit that is not finite, or of a size that does not fit.
    pub fn compare(
        reference: &ReferenceLogits,
        position: usize,
        actual: &[f32],
        next: Option<u32>,
    ) -> Result<Self, String> {
        if let Some(token) = actual.iter().position(|l| !l.is_finite()) {
            return Err(format!("the logit of token {token} is {}", actual[token]));
        }
        match reference {
            ReferenceLogits::Top { top, lse } => {
                let listed: Vec<(u32, f64)> = top
                    .ids(position)
                    .iter()
                    .zip(top.values(position))
                    .map(|(&id, &v)| (id, f64::from(v) - f64::from(lse[position])))
                    .collect();
                Self::listed(&listed, actual, next)
            }
            ReferenceLogits::Full(logits) => Self::full(logits, position, actual, next),
        }
    }

    /// Against the reference's largest log-probabilities, in falling order.
    fn listed(listed: &[(u32, f64)], actual: &[f32], next: Option<u32>) -> Result<Self, String> {
        let vocab = actual.len();
        let mut is_listed = vec![false; vocab];
        for &(id, _) in listed {
            *is_listed.get_mut(id as usize).ok_or_else(|| {
                format!("the reference lists token {id} but there are {vocab} logits")
            })? = true;
        }
        let lse = log_sum_exp(actual.iter().copied());
        let q = |id: u32| f64::from(actual[id as usize]) - lse;
        let (mut kl, mut total, mut worst) = (0.0, 0.0, 0.0_f64);
        for &(id, p) in listed {
            kl += p.exp() * (p - q(id));
            total += p.exp();
            worst = worst.max((p - q(id)).abs());
        }
        // Computed from the unlisted logits themselves: 1 - total would cancel.
        let others = actual.iter().zip(&is_listed).filter(|&(_, &listed)| !listed).map(|(&l, _)| l);
        let q_rest = log_sum_exp(others) - lse;
        // The reference's own remainder can only be had by subtraction. Below 1e-5 it is noise of the
        // rounded log-sum-exp (f32 resolves 1e-6 at the sizes logits have) and left out.
        let p_rest = 1.0 - total;
        if p_rest > 1e-5 && q_rest.is_finite() {
            kl += p_rest * (p_rest.ln() - q_rest);
        }
        let next = next
            .and_then(|next| listed.iter().find(|&&(id, _)| id == next).map(|&(id, p)| (q(id), p)));
        Ok(Self {
            expected: listed[0].0,
            actual: arg_max(actual),
            margin: listed[0].1 - listed[1].1,
            kl: kl.max(0.0),
            logprob_diff: worst,
            next,
        })
    }

    /// Against all logits.
    fn full(
        logits: &Rows,
        position: usize,
        actual: &[f32],
        next: Option<u32>,
    ) -> Result<Self, String> {
        let expected = logits.row(position);
        if expected.len() != actual.len() {
            let (theirs, ours) = (expected.len(), actual.len());
            return Err(format!("the reference has {theirs} logits per position, here are {ours}"));
        }
        let (p_lse, q_lse) =
            (log_sum_exp(expected.iter().copied()), log_sum_exp(actual.iter().copied()));
        let (mut kl, mut worst) = (0.0, 0.0_f64);
        for (&p, &q) in expected.iter().zip(actual) {
            let (p, q) = (f64::from(p) - p_lse, f64::from(q) - q_lse);
            kl += p.exp() * (p - q);
            worst = worst.max((p - q).abs());
        }
        let first = arg_max(expected);
        let others = expected.iter().enumerate().filter(|&(i, _)| i != first as usize);
        let second = others.map(|(_, &l)| l).fold(f32::NEG_INFINITY, f32::max);
        let next = next.filter(|&next| (next as usize) < actual.len()).map(|next| {
            let next = next as usize;
            (f64::from(actual[next]) - q_lse, f64::from(expected[next]) - p_lse)
        });
        Ok(Self {
            expected: first,
            actual: arg_max(actual),
            margin: f64::from(expected[first as usize]) - f64::from(second),
            kl: kl.max(0.0),
            logprob_diff: worst,
            next,
        })
    }
}

/// `ln(sum of e^l)`, without overflow; negative infinity of nothing.
pub fn log_sum_exp(logits: impl Iterator<Item = f32> + Clone) -> f64 {
    let max = f64::from(logits.clone().fold(f32::NEG_INFINITY, f32::max));
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + logits.map(|l| (f64::from(l) - max).exp()).sum::<f64>().ln()
}

/// Index of the largest logit; of equal ones the first.
///
/// # Panics
/// If there are no logits.
#[must_use]
pub fn arg_max(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    assert!(!logits.is_empty(), "logits of an empty vocabulary");
    best as u32
}

/// Agreement over many positions, as `calla eval --json` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Metrics {
    /// Positions compared.
    pub positions: usize,
    /// Fraction of them where both rank the same token first.
    pub top1: f64,
    /// The same fraction of the positions where the reference's margin exceeds the threshold; `None` if
    /// there are none.
    pub top1_margin: Option<f64>,
    /// Mean divergence from the reference in nats.
    pub kl_mean: f64,
    /// Largest divergence of a position.
    pub kl_max: f64,
    /// Largest difference of a log-probability that the reference lists.
    pub logprob_max_abs_diff: f64,
    /// `exp` of the mean negative log-probability of the next token, over the positions whose next token
    /// the reference lists; `None` if there are none.
    pub perplexity: Option<f64>,
    /// The reference's, over the same positions.
    pub perplexity_reference: Option<f64>,
}

/// Sums positions up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    margin: f64,
    positions: usize,
    agreeing: usize,
    decided: usize,
    decided_agreeing: usize,
    kl_sum: f64,
    kl_max: f64,
    logprob_diff: f64,
    next: usize,
    next_sum: f64,
    next_sum_reference: f64,
}

impl Summary {
    /// Nothing yet; `margin` is the threshold of [`Metrics::top1_margin`].
    #[must_use]
    pub fn new(margin: f64) -> Self {
        Self { margin, ..Self::default() }
    }

    /// Counts a position.
    pub fn add(&mut self, position: &Position) {
        let agrees = usize::from(position.agrees());
        self.positions += 1;
        self.agreeing += agrees;
        if position.margin > self.margin {
            self.decided += 1;
            self.decided_agreeing += agrees;
        }
        self.kl_sum += position.kl;
        self.kl_max = self.kl_max.max(position.kl);
        self.logprob_diff = self.logprob_diff.max(position.logprob_diff);
        if let Some((actual, reference)) = position.next {
            self.next += 1;
            self.next_sum += actual;
            self.next_sum_reference += reference;
        }
    }

    /// The metrics, or `None` of no positions.
    #[must_use]
    pub fn metrics(&self) -> Option<Metrics> {
        let fraction = |part: usize, of: usize| (of > 0).then(|| part as f64 / of as f64);
        let perplexity = |sum: f64| (self.next > 0).then(|| (-sum / self.next as f64).exp());
        Some(Metrics {
            positions: self.positions,
            top1: fraction(self.agreeing, self.positions)?,
            top1_margin: fraction(self.decided_agreeing, self.decided),
            kl_mean: self.kl_sum / self.positions as f64,
            kl_max: self.kl_max,
            logprob_max_abs_diff: self.logprob_diff,
            perplexity: perplexity(self.next_sum),
            perplexity_reference: perplexity(self.next_sum_reference),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goldens::TopLogits;

    fn full(logits: &[f32]) -> ReferenceLogits {
        ReferenceLogits::Full(Rows::from_vec(logits.len(), logits.to_vec()))
    }

    #[test]
    fn equal_logits_agree_fully_up_to_a_constant() {
        let position =
            Position::compare(&full(&[1.0, 3.0, 2.0]), 0, &[11.0, 13.0, 12.0], Some(2)).unwrap();
        assert!(position.agrees() && position.kl < 1e-12 && position.logprob_diff < 1e-12);
        assert!((position.margin - 1.0).abs() < 1e-6);
        let (actual, reference) = position.next.unwrap();
        assert!((actual - reference).abs() < 1e-12 && actual < 0.0);
    }

    #[test]
    fn divergence_of_two_coins_is_known() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2).
        let p = [3_f32.ln(), 0.0];
        let position = Position::compare(&full(&p), 0, &[0.0, 0.0], None).unwrap();
        let expected = 0.75 * 1.5_f64.ln() + 0.25 * 0.5_f64.ln();
        assert!((position.kl - expected).abs() < 1e-6, "{}", position.kl);
        assert!((position.logprob_diff - 2_f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn listed_logits_lump_the_rest() {
        let logits = [4.0_f32, 3.0, 2.0, 1.0, 0.0];
        let lse = log_sum_exp(logits.iter().copied()) as f32;
        let top = TopLogits::new(2, vec![0, 1], vec![4.0, 3.0]).unwrap();
        let reference = ReferenceLogits::Top { top, lse: vec![lse] };
        // Shuffling what is not listed changes nothing.
        let same = Position::compare(&reference, 0, &[4.0, 3.0, 0.0, 2.0, 1.0], Some(4)).unwrap();
        assert!(same.agrees() && same.kl < 1e-6 && same.next.is_none());
        let other = [3.0, 4.0, 2.0, 1.0, 0.0];
        let lumped = Position::compare(&reference, 0, &other, None).unwrap();
        let exact = Position::compare(&full(&logits), 0, &other, None).unwrap();
        assert!(!lumped.agrees() && (lumped.kl - exact.kl).abs() < 1e-5);
    }

    #[test]
    fn nothing_that_is_not_finite_passes() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = Position::compare(&full(&[0.0, 1.0]), 0, &[0.0, bad], None).unwrap_err();
            assert!(error.contains("token 1"), "{error}");
        }
        assert!(Position::compare(&full(&[0.0, 1.0]), 0, &[0.0; 3], None).is_err());
    }

    #[test]
    fn a_summary_counts_decided_positions_apart() {
        let reference = full(&[0.0, 0.005]);
        let mut summary = Summary::new(0.01);
        assert_eq!(summary.metrics(), None);
        summary.add(&Position::compare(&reference, 0, &[1.0, 0.0], None).unwrap());
        let metrics = summary.metrics().unwrap();
        assert_eq!((metrics.top1, metrics.top1_margin, metrics.perplexity), (0.0, None, None));
        summary.add(&Position::compare(&full(&[0.0, 1.0]), 0, &[0.0, 1.0], Some(1)).unwrap());
        let metrics = summary.metrics().unwrap();
        assert_eq!((metrics.positions, metrics.top1, metrics.top1_margin), (2, 0.5, Some(1.0)));
        assert_eq!(metrics.perplexity, metrics.perplexity_reference);
    }
}
