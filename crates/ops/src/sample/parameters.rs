//! Parameters of sampling and their ranges.

use std::collections::BTreeMap;

/// Most entries of [`Sampling::logit_bias`].
pub const LOGIT_BIAS_LEN_MAX: usize = 1024;

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
    /// Added to the logits of single tokens before penalties (OpenAI API), each from -100 to 100. Logits
    /// of this model differ by tens, so in practice -100 bans a token and 100 forces it, but neither is a
    /// promise: what must never be chosen belongs into [`Allowed`](super::Allowed), and a token that it
    /// excludes stays excluded at any bias.
    pub logit_bias: BTreeMap<u32, f32>,
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
            logit_bias: BTreeMap::new(),
            seed: 0,
        }
    }

    /// Whether logits are not drawn from as they are: there is a bias, or a penalty that is not the identity bit for bit.
    #[must_use]
    pub fn adjusts_logits(&self) -> bool {
        !self.logit_bias.is_empty() || self.penalizes()
    }

    /// Whether a penalty is not the identity bit for bit.
    pub(super) fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Checks every value against its range. Whether the tokens of `logit_bias` exist is for
    /// [`Sampling::validate_tokens`].
    ///
    /// # Errors
    /// Names the first parameter out of range, its bounds and its value.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let scalars = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0),
        ];
        for (name, value, min, max) in scalars {
            // Written so that NaN fails.
            if !(min..=max).contains(&value) {
                return Err(SamplingError::Range { name, value, min, max });
            }
        }
        if self.logit_bias.len() > LOGIT_BIAS_LEN_MAX {
            return Err(SamplingError::BiasLen { len: self.logit_bias.len() });
        }
        for (&token, &value) in &self.logit_bias {
            if !(-100.0..=100.0).contains(&value) {
                return Err(SamplingError::Bias { token, value });
            }
        }
        Ok(())
    }

    /// Checks that every token of `logit_bias` is below `vocab_used`, the tokens that the vocabulary has
    /// without padding.
    ///
    /// # Errors
    /// Names the largest token that is not.
    pub fn validate_tokens(&self, vocab_used: usize) -> Result<(), SamplingError> {
        match self.logit_bias.last_key_value() {
            Some((&token, _)) if token as usize >= vocab_used => {
                Err(SamplingError::BiasToken { token, vocab_used })
            }
            _ => Ok(()),
        }
    }
}

/// A sampling parameter is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A number is out of its range.
    #[error("{name} must be from {min} to {max} but is {value}")]
    Range {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// Smallest allowed value.
        min: f32,
        /// Largest allowed value.
        max: f32,
    },
    /// `logit_bias` has too many entries.
    #[error("logit_bias may have at most {LOGIT_BIAS_LEN_MAX} entries but has {len}")]
    BiasLen {
        /// Its entries.
        len: usize,
    },
    /// A bias is out of range.
    #[error("logit_bias of token {token} must be from -100 to 100 but is {value}")]
    Bias {
        /// The token.
        token: u32,
        /// Its bias.
        value: f32,
    },
    /// A bias is for a token that does not exist.
    #[error("logit_bias names token {token}, but the vocabulary ends at token {}", vocab_used.saturating_sub(1))]
    BiasToken {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary without padding.
        vocab_used: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let warm = || Sampling { temperature: 1.0, ..Sampling::greedy() };
        let error = Sampling { top_p: 1.5, ..warm() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "top_p must be from 0 to 1 but is 1.5");
        assert!(Sampling { temperature: f32::NAN, ..warm() }.validate().is_err());
        assert!(warm().validate().is_ok());
    }

    #[test]
    fn biases_are_bounded_in_value_number_and_token() {
        let with = |bias: &[(u32, f32)]| Sampling {
            logit_bias: bias.iter().copied().collect(),
            ..Sampling::greedy()
        };
        assert_eq!(with(&[(0, -100.0), (9, 100.0)]).validate(), Ok(()));
        for bad in [f32::NAN, f32::INFINITY, 100.5, -101.0] {
            let error = with(&[(3, 1.0), (7, bad)]).validate().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("logit_bias of token 7 must be from -100 to 100 but is {bad}")
            );
        }
        let many: Vec<(u32, f32)> = (0..1025).map(|token| (token, 1.0)).collect();
        assert_eq!(with(&many[..1024]).validate(), Ok(()));
        let error = with(&many).validate().unwrap_err();
        assert_eq!(error.to_string(), "logit_bias may have at most 1024 entries but has 1025");
        assert_eq!(with(&[(9, 1.0)]).validate_tokens(10), Ok(()));
        let error = with(&[(1, 1.0), (10, 1.0)]).validate_tokens(10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "logit_bias names token 10, but the vocabulary ends at token 9"
        );
    }
}
