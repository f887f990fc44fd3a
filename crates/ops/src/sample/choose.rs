//! The choice of a token: truncation and the draw.
//!
//! [`plain`] is the definition: weigh all tokens, sort them, truncate, draw. A vocabulary has 248,320 logits, so
//! [`Ranking`] gets the same token while it weighs and sorts only the most likely ones; where it cannot be
//! sure to the last bit, it says so and `plain` decides.

use super::adjust::{History, adjusted};
use super::parameters::Sampling;
use super::select::{
    TOTAL_ERROR, all_finite, argmax, for_each_at_least, largest, nth_largest, softmax_total,
};
use crate::token_mask::TokenMask;

/// What restricts a choice. Padding rows are never chosen, whatever stands here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed<'a> {
    /// Tokens that structure allows; none given allows all. Tokens from its length on are not allowed.
    pub mask: Option<&'a TokenMask>,
    /// Tokens that must not be chosen, as stop ids before the least number of tokens.
    pub banned: &'a [u32],
}

impl Allowed<'_> {
    /// No restriction.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }
}

/// The network gave logits that nothing can be chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bad} of {count} logits are not finite numbers: the checkpoint is damaged \
     (`calla info --verify` finds the tensor), or the device has failed"
)]
pub struct BadLogits {
    /// Logits that are NaN or infinite.
    pub bad: usize,
    /// Logits that could be chosen.
    pub count: usize,
}

/// No token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// The logits are noise.
    #[error(transparent)]
    BadLogits(#[from] BadLogits),
    /// Every token is outside the mask or banned.
    #[error("no token may come next: structure and stop ids exclude all of the vocabulary")]
    NothingAllowed,
}

/// Chooses the next token. Only ids below `vocab_used` can be chosen: rows beyond are padding.
///
/// # Errors
/// If a logit is NaN or infinite, or none is given: whatever were chosen would be noise. If `allowed` leaves
/// no token.
pub fn choose(
    logits: &[f32],
    vocab_used: usize,
    sampling: &Sampling,
    history: &History,
    allowed: Allowed<'_>,
) -> Result<u32, ChooseError> {
    let logits = &logits[..vocab_used.min(logits.len())];
    if logits.is_empty() || !all_finite(logits) {
        let bad = logits.iter().filter(|logit| !logit.is_finite()).count();
        return Err(BadLogits { bad, count: logits.len() }.into());
    }
    let logits = adjusted(logits, sampling, history, &allowed);
    let best = argmax(&logits);
    let max = logits[best as usize];
    if max == f32::NEG_INFINITY {
        return Err(ChooseError::NothingAllowed);
    }
    if sampling.temperature == 0.0 {
        return Ok(best);
    }
    let uniform = uniform(sampling.seed, history.generated());
    let ranking = Ranking { logits: &logits, max, temperature: sampling.temperature };
    Ok(ranking.choose(sampling, uniform).unwrap_or_else(|| plain(&logits, sampling, uniform)))
}

/// The definition of sampling from adjusted logits, of which one at least is finite; those that are minus
/// infinity are excluded.
pub(super) fn plain(logits: &[f32], sampling: &Sampling, uniform: f64) -> u32 {
    let max = largest(logits);
    let mut candidates: Vec<Candidate> = (0..)
        .zip(logits)
        .filter(|&(_, &logit)| logit > f32::NEG_INFINITY)
        .map(|(token, &logit)| Candidate::new(token, logit, max, sampling.temperature))
        .collect();
    let k = sampling.top_k;
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, Candidate::cmp);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(Candidate::cmp);
    keep_top_p(&mut candidates, sampling.top_p);
    keep_min_p(&mut candidates, sampling.min_p);
    draw(&candidates, uniform)
}

/// A token with its unnormalised probability (1 for the most likely).
struct Candidate {
    token: u32,
    weight: f64,
}

impl Candidate {
    fn new(token: u32, logit: f32, max: f32, temperature: f32) -> Self {
        let exponent = f64::from(logit - max) / f64::from(temperature);
        Self { token, weight: exponent.exp() }
    }

    /// Most likely first, of equal ones the lower id.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.weight.total_cmp(&self.weight).then(self.token.cmp(&other.token))
    }
}

fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    if top_p >= 1.0 {
        return;
    }
    let total: f64 = candidates.iter().map(|c| c.weight).sum();
    let mut sum = 0.0;
    let enough = candidates.iter().position(|c| {
        sum += c.weight;
        sum >= f64::from(top_p) * total
    });
    candidates.truncate(enough.map_or(candidates.len(), |i| i + 1));
}

fn keep_min_p(candidates: &mut Vec<Candidate>, min_p: f32) {
    let least = f64::from(min_p) * candidates[0].weight;
    candidates.retain(|c| c.weight >= least);
}

fn draw(candidates: &[Candidate], uniform: f64) -> u32 {
    let total: f64 = candidates.iter().map(|c| c.weight).sum();
    let mut rest = uniform * total;
    for candidate in candidates {
        rest -= candidate.weight;
        if rest < 0.0 {
            return candidate.token;
        }
    }
    // Only rounding can leave a rest: the draw was at the very end.
    candidates[candidates.len() - 1].token
}

/// A number in [0, 1) from a seed and a counter: SplitMix64 (Steele et al. 2014) over both.
fn uniform(seed: u64, counter: u64) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let bits = mix(mix(seed.wrapping_add(step)).wrapping_add(counter.wrapping_mul(step)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Adjusted logits of which only the most likely are weighed.
///
/// The order of tokens is that of their weights, and distinct logits can have equal weights: differences
/// below the rounding of `exp` vanish. Exponents that differ by [`Ranking::MARGIN`] give different weights in
/// the right order with any sensible `exp`, unless both underflow; so every set here reaches that much
/// lower than it must, and is then cut by the weights themselves.
struct Ranking<'a> {
    logits: &'a [f32],
    max: f32,
    temperature: f32,
}

/// Where a running sum of weights reaches a target that is known up to [`TOTAL_ERROR`].
enum Crossing {
    At(usize),
    Beyond,
    /// At one index or another: the target is not known well enough.
    Unclear,
}

impl Ranking<'_> {
    const MARGIN: f64 = 1e-9;
    /// Below this exponent weights lose digits, and at last all are 0.
    const UNDERFLOW: f64 = -700.0;
    /// Numbers of most likely tokens to try without `top_k`: a trained model's draw mostly ends in the first.
    const PREFIXES: [usize; 3] = [256, 2048, 16_384];

    /// What [`plain`] gives, or `None` if only that can tell.
    fn choose(&self, sampling: &Sampling, uniform: f64) -> Option<u32> {
        let Sampling { top_k, top_p, min_p, .. } = *sampling;
        if top_k > 0 {
            let mut candidates = self.top(top_k)?;
            keep_top_p(&mut candidates, top_p);
            keep_min_p(&mut candidates, min_p);
            return Some(draw(&candidates, uniform));
        }
        if top_p >= 1.0 && min_p > 0.0 {
            let mut candidates = self.at_least(f64::from(min_p).ln());
            keep_min_p(&mut candidates, min_p);
            return Some(draw(&candidates, uniform));
        }
        let total = softmax_total(self.logits, self.max, self.temperature);
        for n in Self::PREFIXES {
            let mut candidates = self.top(n)?;
            if top_p < 1.0 {
                match crossing(&candidates, f64::from(top_p) * total) {
                    Crossing::At(i) => candidates.truncate(i + 1),
                    // `min_p` cuts before `top_p` would.
                    Crossing::Beyond if candidates[n - 1].weight < f64::from(min_p) => {}
                    Crossing::Beyond => continue,
                    Crossing::Unclear => return None,
                }
                keep_min_p(&mut candidates, min_p);
                return Some(draw(&candidates, uniform));
            }
            match crossing(&candidates, uniform * total) {
                Crossing::At(i) => return Some(candidates[i].token),
                Crossing::Beyond => {}
                Crossing::Unclear => return None,
            }
        }
        None
    }

    /// The `n` first tokens of the order, in order; `None` if so many are not allowed, or they are so large
    /// a part that sorting all is as fast, or weights underflow.
    fn top(&self, n: usize) -> Option<Vec<Candidate>> {
        if n > self.logits.len() / 4 {
            return None;
        }
        let nth = nth_largest(self.logits, n)?;
        let exponent = f64::from(nth - self.max) / f64::from(self.temperature);
        if exponent < Self::UNDERFLOW {
            return None;
        }
        let mut candidates = self.at_least(exponent);
        candidates.truncate(n);
        Some(candidates)
    }

    /// All tokens whose exponent is at least this, and perhaps some below, in order.
    fn at_least(&self, exponent: f64) -> Vec<Candidate> {
        // The difference to the largest was rounded to `f32`: a millionth covers that.
        let reach = (Self::MARGIN - exponent) * f64::from(self.temperature) * (1.0 + 1e-6);
        let least = ((f64::from(self.max) - reach) as f32).next_down().max(f32::MIN);
        let mut candidates = Vec::new();
        for_each_at_least(self.logits, least, |token, logit| {
            candidates.push(Candidate::new(token, logit, self.max, self.temperature));
        });
        candidates.sort_unstable_by(Candidate::cmp);
        candidates
    }
}

/// Finds the first candidate up to which the weights sum to `target`. Rounding in the sums of [`keep_top_p`]
/// and [`draw`] is relative to the target and, with 2^18 terms, under 3e-11: far inside the error allowed.
fn crossing(candidates: &[Candidate], target: f64) -> Crossing {
    let mut sum = 0.0;
    for (i, candidate) in candidates.iter().enumerate() {
        sum += candidate.weight;
        if sum >= target * (1.0 + TOTAL_ERROR) {
            return Crossing::At(i);
        }
        if sum >= target * (1.0 - TOTAL_ERROR) {
            return Crossing::Unclear;
        }
    }
    Crossing::Beyond
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

    /// Shares of each token over many draws.
    fn shares(sampling: &Sampling) -> [f64; 5] {
        let mut counts = [0.0; 5];
        for seed in 0..20_000 {
            let sampling = Sampling { seed, ..sampling.clone() };
            counts[pick(&sampling, &History::default()) as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn pick(sampling: &Sampling, history: &History) -> u32 {
        choose(&LOGITS, 5, sampling, history, Allowed::all()).unwrap()
    }

    fn warm() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::greedy() }
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_never_padding() {
        assert_eq!(pick(&Sampling::greedy(), &History::default()), 1);
        let padded = [0.0, 1.0, 9.0];
        let (greedy, history) = (Sampling::greedy(), History::default());
        assert_eq!(choose(&padded, 2, &greedy, &history, Allowed::all()), Ok(1));
        let mut mask = TokenMask::none(3);
        mask.insert(2);
        let only_padding = Allowed { mask: Some(&mask), banned: &[] };
        let result = choose(&padded, 2, &greedy, &history, only_padding);
        assert_eq!(result, Err(ChooseError::NothingAllowed));
    }

    #[test]
    fn noise_is_refused_but_not_in_padding() {
        let history = History::default();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for sampling in [Sampling::greedy(), warm()] {
                let choose = |logits: &[f32], vocab_used| {
                    choose(logits, vocab_used, &sampling, &history, Allowed::all())
                };
                let error = choose(&[1.0, bad, 2.0], 3).unwrap_err();
                assert_eq!(error, ChooseError::BadLogits(BadLogits { bad: 1, count: 3 }));
                assert!(choose(&[1.0, 2.0, bad], 2).is_ok());
                assert!(choose(&[], 0).is_err());
            }
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let total: f64 = LOGITS.iter().map(|&l| f64::from(l).exp()).sum();
        for (share, &logit) in shares(&warm()).iter().zip(&LOGITS) {
            assert!((share - f64::from(logit).exp() / total).abs() < 0.02);
        }
    }

    #[test]
    fn truncations_keep_what_they_say() {
        let kept = |sampling: Sampling| -> Vec<usize> {
            (0..5).filter(|&i| shares(&sampling)[i] > 0.0).collect()
        };
        assert_eq!(kept(Sampling { top_k: 3, ..warm() }), [1, 2, 3]);
        assert_eq!(kept(Sampling { top_k: 1, ..warm() }), [1]);
        assert_eq!(kept(Sampling { top_p: 0.5, ..warm() }), [1, 3]);
        assert_eq!(kept(Sampling { top_p: 0.0, ..warm() }), [1]);
        assert_eq!(kept(Sampling { min_p: 0.3, ..warm() }), [1, 2, 3]);
        assert_eq!(kept(Sampling { min_p: 1.0, ..warm() }), [1, 3]);
    }

    #[test]
    fn a_seed_and_a_step_fix_the_draw() {
        let draws = |seed| -> Vec<u32> {
            let mut history = History::default();
            (0..50)
                .map(|_| {
                    let token = pick(&Sampling { seed, ..warm() }, &history);
                    history.push(token);
                    token
                })
                .collect()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn penalties_change_the_choice() {
        let mut history = History::of_prompt(&[1]);
        let repetition = Sampling { repetition_penalty: 2.0, ..Sampling::greedy() };
        assert_eq!(pick(&repetition, &history), 3);
        let presence = Sampling { presence_penalty: 1.5, ..Sampling::greedy() };
        assert_eq!(pick(&presence, &history), 1, "the prompt does not count");
        history.push(1);
        history.push(3);
        assert_eq!(pick(&presence, &history), 2);
        history.push(2);
        let frequency = Sampling { frequency_penalty: 0.4, ..Sampling::greedy() };
        history.push(1);
        history.push(1);
        assert_eq!(pick(&frequency, &history), 3);
    }

    #[test]
    fn a_bias_forces_or_bans_and_comes_before_penalties() {
        let history = History::of_prompt(&[4]);
        let biased = |bias: &[(u32, f32)]| Sampling {
            logit_bias: bias.iter().copied().collect(),
            ..Sampling::greedy()
        };
        assert_eq!(pick(&biased(&[(4, 100.0)]), &history), 4);
        assert_eq!(pick(&biased(&[(1, -100.0), (3, -100.0)]), &history), 2);
        // -1 + 5 = 4, halved as a positive logit: 2 < 3. Penalised first it would be -2 + 5 = 3.
        let both =
            Sampling { repetition_penalty: 2.0, ..biased(&[(4, 5.0), (1, -9.0), (3, -0.5)]) };
        assert_eq!(pick(&both, &history), 3);
        let with_bias = Sampling { temperature: 1.0, ..biased(&[(4, 100.0)]) };
        assert_eq!(shares(&with_bias)[4].round(), 1.0);
    }

    #[test]
    fn a_mask_and_bans_exclude_whatever_the_bias() {
        let history = History::default();
        let mut mask = TokenMask::none(5);
        for token in [0, 1, 4] {
            mask.insert(token);
        }
        for temperature in [0.0, 1.0] {
            let logit_bias = [(3, 100.0), (1, 100.0)].into_iter().collect();
            let biased = Sampling { temperature, logit_bias, ..Sampling::greedy() };
            let pick = |banned: &[u32]| {
                choose(&LOGITS, 5, &biased, &history, Allowed { mask: Some(&mask), banned })
            };
            assert_eq!(pick(&[2]), Ok(1));
            assert!([0, 4].contains(&pick(&[1, 99]).unwrap()));
            assert_eq!(pick(&[1, 0, 4]), Err(ChooseError::NothingAllowed));
        }
    }
}
