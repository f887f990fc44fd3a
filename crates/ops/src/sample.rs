//! Choice of the next token from logits: the one definition of every sampling parameter.
//!
//! In this order: padding rows of the vocabulary are excluded; penalties; temperature; `top_k`; `top_p`;
//! `min_p`; one draw. Temperature 0 is greedy: the largest logit, of equal ones the lowest id.
//!
//! The draw is a pure function of the seed and of the number of tokens generated so far, so a seed gives
//! the same text whatever else runs.

use std::collections::HashMap;

/// Parameters of sampling. [`Sampling::validate`] says which values are allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens whose probabilities reach this sum (Holtzman et al. 2020).
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the most likely one.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al.
    /// 2019); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from logits of tokens that the output already has; 0 is off (OpenAI API).
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output; 0 is off (OpenAI API).
    pub frequency_penalty: f32,
    /// Seed of the draws.
    pub seed: u64,
}

impl Sampling {
    /// Greedy, without penalties.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// Names the first parameter out of range, its bounds and its value.
    pub fn validate(&self) -> Result<(), SamplingError> {
        for (name, value, min, max) in [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0),
        ] {
            // Written so that NaN fails.
            if !(min..=max).contains(&value) {
                return Err(SamplingError { name, value, min, max });
            }
        }
        Ok(())
    }
}

/// A sampling parameter is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} must be from {min} to {max} but is {value}")]
pub struct SamplingError {
    /// The parameter.
    pub name: &'static str,
    /// Its value.
    pub value: f32,
    /// Smallest allowed value.
    pub min: f32,
    /// Largest allowed value.
    pub max: f32,
}

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

/// Chooses the next token. Only ids below `vocab_used` can be chosen: rows beyond are padding.
///
/// # Errors
/// If a logit is NaN or infinite, or none is given: whatever were chosen would be noise.
pub fn choose(
    logits: &[f32],
    vocab_used: usize,
    sampling: &Sampling,
    history: &History,
) -> Result<u32, BadLogits> {
    let mut logits = logits[..vocab_used.min(logits.len())].to_vec();
    let bad = logits.iter().filter(|logit| !logit.is_finite()).count();
    if bad > 0 || logits.is_empty() {
        return Err(BadLogits { bad, count: logits.len() });
    }
    penalize(&mut logits, sampling, history);
    if sampling.temperature == 0.0 {
        return Ok(argmax(&logits));
    }
    let mut candidates = candidates(&logits, sampling);
    keep_top_p(&mut candidates, sampling.top_p);
    keep_min_p(&mut candidates, sampling.min_p);
    Ok(draw(&candidates, uniform(sampling.seed, history.generated)))
}

/// Index of the largest value, the first of equals; NaN never wins.
///
/// # Panics
/// If there are no values.
#[must_use]
pub fn argmax(logits: &[f32]) -> u32 {
    assert!(!logits.is_empty(), "argmax of no logits");
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || logits[best].is_nan() {
            best = i;
        }
    }
    best as u32
}

fn penalize(logits: &mut [f32], sampling: &Sampling, history: &History) {
    for (&token, &count) in &history.counts {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        let factor = sampling.repetition_penalty;
        *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
        if count > 0 {
            *logit -= sampling.presence_penalty + count as f32 * sampling.frequency_penalty;
        }
    }
}

/// A token with its unnormalised probability (1 for the most likely).
struct Candidate {
    token: u32,
    weight: f64,
}

/// The `top_k` most likely tokens with their weights, most likely first, of equal ones the lower id.
fn candidates(logits: &[f32], sampling: &Sampling) -> Vec<Candidate> {
    let max = logits[argmax(logits) as usize];
    let mut all: Vec<Candidate> = logits
        .iter()
        .zip(0..)
        .map(|(&logit, token)| {
            let exponent = f64::from(logit - max) / f64::from(sampling.temperature);
            Candidate { token, weight: exponent.exp() }
        })
        .collect();
    let by_weight =
        |a: &Candidate, b: &Candidate| b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token));
    let k = sampling.top_k;
    if k > 0 && k < all.len() {
        all.select_nth_unstable_by(k - 1, by_weight);
        all.truncate(k);
    }
    all.sort_unstable_by(by_weight);
    all
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
        choose(&LOGITS, 5, sampling, history).unwrap()
    }

    fn warm() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::greedy() }
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_never_padding() {
        assert_eq!(pick(&Sampling::greedy(), &History::default()), 1);
        let padded = [0.0, 1.0, 9.0];
        assert_eq!(choose(&padded, 2, &Sampling::greedy(), &History::default()), Ok(1));
        assert_eq!(argmax(&[f32::NAN, -1.0, f32::NAN]), 1);
    }

    #[test]
    fn noise_is_refused_but_not_in_padding() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for sampling in [Sampling::greedy(), warm()] {
                let history = History::default();
                let error = choose(&[1.0, bad, 2.0], 3, &sampling, &history).unwrap_err();
                assert_eq!(error, BadLogits { bad: 1, count: 3 });
                assert!(choose(&[1.0, 2.0, bad], 2, &sampling, &history).is_ok());
            }
        }
        assert!(choose(&[], 0, &Sampling::greedy(), &History::default()).is_err());
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
    fn values_out_of_range_are_named() {
        let error = Sampling { top_p: 1.5, ..warm() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "top_p must be from 0 to 1 but is 1.5");
        assert!(Sampling { temperature: f32::NAN, ..warm() }.validate().is_err());
        assert!(warm().validate().is_ok());
    }
}
