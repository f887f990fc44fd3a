//! Sampling as first defined, without any care for speed, and its comparison with [`choose`] over random
//! inputs.

use super::{Allowed, History, Sampling, choose};
use crate::token_mask::TokenMask;
use std::collections::HashMap;

/// What a choice depends on, drawn from a seed.
struct Case {
    logits: Vec<f32>,
    vocab_used: usize,
    sampling: Sampling,
    prompt: Vec<u32>,
    output: Vec<u32>,
    mask: Option<TokenMask>,
    banned: Vec<u32>,
}

/// The token that the documented order gives, step by step.
fn expected(case: &Case) -> Option<u32> {
    let Case { sampling, .. } = case;
    let mut counts: HashMap<u32, u32> = case.prompt.iter().map(|&t| (t, 0)).collect();
    for &token in &case.output {
        *counts.entry(token).or_default() += 1;
    }
    let is_allowed = |token: u32| {
        case.mask.as_ref().is_none_or(|mask| mask.contains(token)) && !case.banned.contains(&token)
    };
    let logits: Vec<(u32, f32)> = (0..case.vocab_used as u32)
        .filter(|&token| is_allowed(token))
        .map(|token| {
            let mut logit = case.logits[token as usize];
            if let Some(bias) = sampling.logit_bias.get(&token) {
                logit += bias;
            }
            if let Some(&count) = counts.get(&token) {
                let factor = sampling.repetition_penalty;
                logit = if logit > 0.0 { logit / factor } else { logit * factor };
                if count > 0 {
                    logit -= sampling.presence_penalty + count as f32 * sampling.frequency_penalty;
                }
            }
            (token, logit)
        })
        .collect();
    let max = logits.iter().map(|l| l.1).max_by(f32::total_cmp)?;
    if sampling.temperature == 0.0 {
        return logits.iter().find(|l| l.1 == max).map(|l| l.0);
    }
    let mut candidates: Vec<(u32, f64)> = logits
        .iter()
        .map(|&(token, l)| (token, (f64::from(l - max) / f64::from(sampling.temperature)).exp()))
        .collect();
    // Stable: equal ones stay in the order of ids.
    candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
    if sampling.top_k > 0 {
        candidates.truncate(sampling.top_k);
    }
    if sampling.top_p < 1.0 {
        let total: f64 = candidates.iter().map(|c| c.1).sum();
        let mut sum = 0.0;
        let enough = candidates.iter().position(|c| {
            sum += c.1;
            sum >= f64::from(sampling.top_p) * total
        });
        candidates.truncate(enough.map_or(candidates.len(), |i| i + 1));
    }
    candidates.retain(|c| c.1 >= f64::from(sampling.min_p));
    let total: f64 = candidates.iter().map(|c| c.1).sum();
    let mut rest = uniform(sampling.seed, case.output.len() as u64) * total;
    for &(token, weight) in &candidates {
        rest -= weight;
        if rest < 0.0 {
            return Some(token);
        }
    }
    candidates.last().map(|c| c.0)
}

/// SplitMix64 over the seed, then over the counter.
fn uniform(seed: u64, counter: u64) -> f64 {
    let first = SplitMix(seed).next();
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let bits = SplitMix(first.wrapping_add(counter.wrapping_mul(step)).wrapping_sub(step)).next();
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Roughly normal with variance 1.
    fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.next() >> 11) as f64 / (1_u64 << 53) as f64).sum();
        (sum - 6.0) as f32
    }
}

impl Case {
    fn random(seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let len = random.of(&[1, 2, 7, 33, 500, 2000, 9000, 70_000]);
        let vocab_used = len - random.below(len.min(3));
        let (scale, grid) =
            random.of(&[(1.0, 0.0), (3.0, 0.0), (6.0, 0.0), (3.0, 0.25), (0.0, 0.0), (1e-17, 0.0)]);
        let mut logits: Vec<f32> = (0..len)
            .map(|_| {
                let logit = scale * random.normal();
                if grid > 0.0 { (logit / grid).round() * grid } else { logit }
            })
            .collect();
        for _ in 0..random.below(4) {
            logits[random.below(len)] += random.of(&[5.0, 20.0, 300.0]);
        }
        let tokens = |random: &mut SplitMix, n: usize| -> Vec<u32> {
            (0..random.below(n)).map(|_| random.below(len) as u32).collect()
        };
        let sampling = Sampling {
            temperature: random.of(&[0.0, 0.7, 1.0, 1.0, 0.01, 1e-30, 3.0]),
            top_k: random.of(&[0, 0, 1, 20, 400, 5000, 100_000]),
            top_p: random.of(&[1.0, 1.0, 0.95, 0.8, 0.5, 1e-6, 0.999_999]),
            min_p: random.of(&[0.0, 0.0, 0.05, 1e-4, 1.0, 1e-38]),
            repetition_penalty: random.of(&[1.0, 1.0, 1.3, 0.5]),
            presence_penalty: random.of(&[0.0, 0.0, 1.5, -2.0]),
            frequency_penalty: random.of(&[0.0, 0.0, 0.3]),
            logit_bias: tokens(&mut random, 4).into_iter().map(|t| (t, 2.5)).collect(),
            seed: random.next(),
        };
        let (prompt, output) = (tokens(&mut random, 50), tokens(&mut random, 50));
        let banned = if random.below(3) == 0 { tokens(&mut random, 4) } else { Vec::new() };
        let mask = (random.below(3) == 0).then(|| {
            let mut mask = TokenMask::none(vocab_used);
            let share = random.of(&[2, 100, 5000]);
            for token in 0..vocab_used as u32 {
                if random.below(share) == 0 {
                    mask.insert(token);
                }
            }
            mask
        });
        Self { logits, vocab_used, sampling, prompt, output, mask, banned }
    }
}

#[test]
fn every_choice_is_that_of_the_definition() {
    let (mut drawn, mut excluded) = (0, 0);
    for seed in 0..3000 {
        let case = Case::random(seed);
        let mut history = History::of_prompt(&case.prompt);
        for &token in &case.output {
            history.push(token);
        }
        let allowed = Allowed { mask: case.mask.as_ref(), banned: &case.banned };
        let found = choose(&case.logits, case.vocab_used, &case.sampling, &history, allowed).ok();
        assert_eq!(found, expected(&case), "case {seed}: {:?}", case.sampling);
        match found {
            Some(_) => drawn += 1,
            None => excluded += 1,
        }
    }
    assert!(drawn > 2000 && excluded > 0, "{drawn} drawn, {excluded} without an allowed token");
}
