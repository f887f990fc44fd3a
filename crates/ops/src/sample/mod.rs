//! Choice of the next token from logits: the one definition of every sampling parameter.
//!
//! In this order (that of vLLM's sampler):
//! 1. Padding rows of the vocabulary, tokens outside the mask and banned tokens are excluded
//!    ([`Allowed`]).
//! 2. `logit_bias` is added (OpenAI API).
//! 3. Penalties: repetition, then presence and frequency.
//! 4. Temperature. 0 is greedy: the largest logit, of equal ones the lowest id; the rest is not done.
//! 5. `top_k`, `top_p`, `min_p`, each on what the one before left.
//! 6. One draw.
//!
//! The draw is a pure function of the seed and of the number of tokens generated so far, so a seed gives
//! the same text whatever else runs.
//!
//! [`logprobs`] are those of the model's own distribution, before any of this.

mod adjust;
mod choose;
mod logprobs;
mod parameters;
#[cfg(test)]
mod reference;
mod select;

pub use adjust::History;
pub use choose::{Allowed, BadLogits, ChooseError, choose};
pub use logprobs::{TOP_LOGPROBS_MAX, TokenLogprobs, logprobs};
pub use parameters::{LOGIT_BIAS_LEN_MAX, Sampling, SamplingError};
pub use select::argmax;
