//! Log-probabilities as chat completions, completions and responses write them.

use crate::generate::{ContentLogprob, LogprobToken};
use serde::Serialize;
use utoipa::ToSchema;

/// `logprobs` of a choice.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ChoiceLogprobs {
    content: Vec<TokenLogprob>,
    #[schema(value_type = Option<Vec<TokenLogprob>>)]
    refusal: Option<()>,
}

/// A token of the answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    token: String,
    /// Natural logarithm of its probability; -9999 for a token that had none.
    logprob: f64,
    /// Its bytes, which need not be whole characters.
    bytes: Vec<u8>,
    top_logprobs: Vec<TopLogprob>,
}

/// One of the most likely tokens at a place.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl From<&LogprobToken> for TopLogprob {
    fn from(token: &LogprobToken) -> Self {
        Self { token: token.text(), logprob: token.logprob.into(), bytes: token.bytes.clone() }
    }
}

impl From<&ContentLogprob> for TokenLogprob {
    fn from(entry: &ContentLogprob) -> Self {
        Self {
            token: entry.token.text(),
            logprob: entry.token.logprob.into(),
            bytes: entry.token.bytes.clone(),
            top_logprobs: entry.top.iter().map(TopLogprob::from).collect(),
        }
    }
}

impl From<&[ContentLogprob]> for ChoiceLogprobs {
    fn from(list: &[ContentLogprob]) -> Self {
        Self { content: list.iter().map(TokenLogprob::from).collect(), refusal: None }
    }
}
