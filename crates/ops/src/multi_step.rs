//! Multi-step decode: decode steps that follow one another on the device, each on the tokens that the one before chose.
//!
//! The host reads tokens once for all of the steps, so it is out of the way of every step but the first. It can choose
//! no token meanwhile: rows whose next token depends on more than logits and draws (a grammar, penalties, a ban) are
//! stepped one by one.

use crate::batch::Batch;
use crate::sample::Sampling;

/// What a device can do without the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiStepLimits {
    /// Most steps that follow one another, at least 1.
    pub steps_max: usize,
    /// Most tokens that `top_k` may keep. `top_k` of 0 keeps all, so it cannot be drawn from.
    pub top_k_max: usize,
}

impl MultiStepLimits {
    /// Whether the device can choose tokens as `sampling` says: the most likely, or one of the `top_k` most likely, of
    /// logits that nothing adjusts.
    #[must_use]
    pub fn can_sample(&self, sampling: &Sampling) -> bool {
        let has_top_k = (1..=self.top_k_max).contains(&sampling.top_k);
        !sampling.adjusts_logits() && (sampling.temperature == 0.0 || has_top_k)
    }
}

/// How the next tokens of a row are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSampler {
    /// The parameters.
    pub sampling: Sampling,
    /// Tokens of the reply so far: the first step's draw is that of [`choose`](crate::sample::choose) with so many, the
    /// next one's with one more.
    pub generated: u64,
}

/// Steps to run. Whoever runs them checks them.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiStep {
    /// The first step: decodes of one row, all of them outputs. Their page tables have the pages of all steps.
    pub batch: Batch,
    /// For each row how its tokens are chosen.
    pub samplers: Vec<RowSampler>,
    /// Ids below this one may be chosen: the vocabulary without its padding.
    pub vocab_used: usize,
    /// Number of steps.
    pub steps: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_logits_and_few_candidates_are_sampled_by_a_device() {
        let limits = MultiStepLimits { steps_max: 16, top_k_max: 64 };
        let warm = || Sampling { temperature: 1.0, top_k: 20, ..Sampling::greedy() };
        let free = Sampling { top_p: 0.9, min_p: 0.1, seed: 3, ..warm() };
        for sampling in [Sampling::greedy(), warm(), Sampling { top_k: 64, ..warm() }, free] {
            assert!(limits.can_sample(&sampling), "{sampling:?}");
        }
        let held = [
            Sampling { top_k: 0, ..warm() },
            Sampling { top_k: 65, ..warm() },
            Sampling { presence_penalty: 0.1, ..warm() },
            Sampling { frequency_penalty: 0.1, ..Sampling::greedy() },
            Sampling { repetition_penalty: 1.1, ..warm() },
            Sampling { logit_bias: [(1, 2.0)].into(), ..Sampling::greedy() },
        ];
        for sampling in held {
            assert!(!limits.can_sample(&sampling), "{sampling:?}");
        }
    }
}
