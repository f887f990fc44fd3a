//! Logits as sampling sees them: what is excluded, biased and penalised.

use super::{Allowed, Sampling};
use std::borrow::Cow;
use std::collections::HashMap;

/// Tokens that penalties look at.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Occurrences in the output so far, per token; tokens of the prompt only are present with 0.
    counts: HashMap<u32, u32>,
    generated: u64,
}

impl History {
    /// History of a prompt.
    #[must_use]
    pub fn of_prompt(prompt: &[u32]) -> Self {
        Self { counts: prompt.iter().map(|&t| (t, 0)).collect(), generated: 0 }
    }

    /// Adds a generated token.
    pub fn push(&mut self, token: u32) {
        *self.counts.entry(token).or_default() += 1;
        self.generated += 1;
    }

    /// Tokens generated so far.
    #[must_use]
    pub fn generated(&self) -> u64 {
        self.generated
    }
}

/// Finite logits after exclusion, bias and penalties; those of excluded tokens are minus infinity, all
/// others stay finite. Copies only if something changes.
pub(super) fn adjusted<'a>(
    logits: &'a [f32],
    sampling: &Sampling,
    history: &History,
    allowed: &Allowed<'_>,
) -> Cow<'a, [f32]> {
    let mut logits = Cow::Borrowed(logits);
    if !sampling.logit_bias.is_empty() {
        let logits = logits.to_mut();
        for (&token, &bias) in &sampling.logit_bias {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = finite(*logit + bias);
        }
    }
    if sampling.penalizes() && !history.counts.is_empty() {
        penalize(logits.to_mut(), sampling, history);
    }
    // Excluded last, so that no bias can bring a token back; the others do not depend on the order.
    if let Some(mask) = allowed.mask {
        for (logit, token) in logits.to_mut().iter_mut().zip(0..) {
            if !mask.contains(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    for &token in allowed.banned {
        if (token as usize) < logits.len() {
            logits.to_mut()[token as usize] = f32::NEG_INFINITY;
        }
    }
    logits
}

fn penalize(logits: &mut [f32], sampling: &Sampling, history: &History) {
    for (&token, &count) in &history.counts {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        let factor = sampling.repetition_penalty;
        let mut penalized = if *logit > 0.0 { *logit / factor } else { *logit * factor };
        if count > 0 {
            penalized -= sampling.presence_penalty + count as f32 * sampling.frequency_penalty;
        }
        *logit = finite(penalized);
    }
}

/// Logits near the end of `f32` may overflow when changed; infinity would mean something else.
fn finite(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}
