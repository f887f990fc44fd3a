//! Log-probabilities of tokens under the model's own distribution.

use super::select::{for_each_at_least, largest, nth_largest};

/// Most tokens that [`TokenLogprobs::top`] can have (OpenAI API).
pub const TOP_LOGPROBS_MAX: usize = 20;

/// Natural-log probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// That of the chosen token; minus infinity if it is not in the vocabulary.
    pub logprob: f32,
    /// The most likely tokens, most likely first, of equal ones the lower id.
    pub top: Vec<(u32, f32)>,
}

/// Log-probabilities of the chosen token and of the `top` most likely ones (at most [`TOP_LOGPROBS_MAX`]): the
/// softmax of the first `vocab_used` logits at temperature 1, without penalties, bias and mask. The sum is
/// taken in `f64`. Logits that [`choose`](super::choose) refuses give NaN.
#[must_use]
pub fn logprobs(logits: &[f32], vocab_used: usize, token: u32, top: usize) -> TokenLogprobs {
    let logits = &logits[..vocab_used.min(logits.len())];
    let max = f64::from(largest(logits));
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let log_total = total.ln() + max;
    let logprob = |logit: f32| (f64::from(logit) - log_total) as f32;
    TokenLogprobs {
        logprob: logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| logprob(logit)),
        top: most_likely(logits, top.min(TOP_LOGPROBS_MAX))
            .into_iter()
            .map(|(token, logit)| (token, logprob(logit)))
            .collect(),
    }
}

fn most_likely(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    if n == 0 {
        return Vec::new();
    }
    let least = nth_largest(logits, n).unwrap_or(f32::MIN);
    let mut tokens = Vec::with_capacity(n);
    for_each_at_least(logits, least, |token, logit| tokens.push((token, logit)));
    // Adding zero makes both zeros one. The sort is stable, so equal ones stay in the order of ids.
    tokens.sort_by(|a, b| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)));
    tokens.truncate(n);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_logs_of_the_softmax_over_the_unpadded_vocabulary() {
        for len in [1_usize, 5, 40, 3000] {
            let logits: Vec<f32> =
                (0..len).map(|i| ((i * 7919) % 301) as f32 / 20.0 - 5.0).chain([99.0]).collect();
            let exps: Vec<f64> = logits[..len].iter().map(|&l| f64::from(l).exp()).collect();
            let total: f64 = exps.iter().sum();
            let expected = |token: u32| (exps[token as usize] / total).ln();
            let mut order: Vec<u32> = (0..len as u32).collect();
            order.sort_by(|&a, &b| exps[b as usize].total_cmp(&exps[a as usize]));
            for token in [0, len as u32 - 1] {
                let found = logprobs(&logits, len, token, 20);
                assert!((f64::from(found.logprob) - expected(token)).abs() < 1e-6);
                let tokens: Vec<u32> = found.top.iter().map(|t| t.0).collect();
                assert_eq!(tokens, order[..len.min(20)], "equal ones by id");
                for &(token, logprob) in &found.top {
                    assert!((f64::from(logprob) - expected(token)).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn numbers_are_bounded() {
        let logits = [0.0; 50];
        assert_eq!(logprobs(&logits, 50, 0, 1000).top.len(), TOP_LOGPROBS_MAX);
        assert_eq!(logprobs(&logits, 3, 0, 20).top.len(), 3);
        assert!(logprobs(&logits, 50, 0, 0).top.is_empty());
        assert_eq!(logprobs(&logits, 50, 50, 0).logprob, f32::NEG_INFINITY);
        let signed = [-0.0, 0.0, -0.0];
        assert_eq!(logprobs(&signed, 3, 0, 2).top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
        assert!(logprobs(&[f32::NAN; 40], 40, 0, 20).logprob.is_nan());
        assert_eq!(logprobs(&[3e38, -3e38], 2, 0, 1).logprob, 0.0);
    }
}
