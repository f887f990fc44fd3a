//! What a caller asks for, and how a request can be refused or end.

use crate::prefix_cache::CacheKey;
use crate::structure::Grammar;
use calla_ops::sample::{Sampling, SamplingError};

/// Identifies a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Who may share its prefixes.
    pub key: CacheKey,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most. KV pages for prompt and reply are reserved at admission.
    pub max_tokens: usize,
    /// Before so many tokens, no stop token is chosen.
    pub min_tokens: usize,
    /// Tokens that end the reply; they are not part of it.
    pub stop_ids: Vec<u32>,
    /// Whether stop tokens are never chosen, so that only length, a grammar or the caller ends the reply.
    pub ignore_eos: bool,
    /// Tokens that are never chosen.
    pub banned_ids: Vec<u32>,
    /// Ids below this can be chosen; rows of the vocabulary beyond it are padding.
    pub vocab_used: usize,
    /// With each token, its log-probability and those of so many most likely tokens.
    pub top_logprobs: Option<usize>,
    /// Set if the reply begins inside thinking that the prompt has opened.
    pub thinking: Option<Thinking>,
    /// What the reply has to match, from its start or from the end of thinking on.
    pub grammar: Option<Grammar>,
}

/// Thinking that a prompt has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// The token that ends it.
    pub end_id: u32,
    /// After so many tokens of thinking it is ended by force.
    pub budget: Option<usize>,
    /// What ends it by force; its last token is `end_id`.
    pub forced_end: Vec<u32>,
    /// What comes between thinking and a reply that is held to a grammar.
    pub separator: Vec<u32>,
}

impl Request {
    /// A greedy reply of at most `max_tokens`, without stop tokens, in a vocabulary without padding.
    #[must_use]
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            key: CacheKey::default(),
            sampling: Sampling::greedy(),
            max_tokens,
            min_tokens: 0,
            stop_ids: vec![],
            ignore_eos: false,
            banned_ids: vec![],
            vocab_used: usize::MAX,
            top_logprobs: None,
            thinking: None,
            grammar: None,
        }
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen, or the grammar is at its end.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The caller cancelled it.
    Cancelled,
}

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The prompt has no token.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not leave room for one token of reply.
    #[error(
        "the prompt has {prompt} tokens but the context holds {context}; \
         shorten it or raise the context length"
    )]
    ContextLength {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// A token is not in the vocabulary.
    #[error("{what}: token {token} at {position} is not below the vocabulary size {vocab_size}")]
    Token {
        /// Where it was given.
        what: &'static str,
        /// The token.
        token: u32,
        /// Its place there.
        position: usize,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// More log-probabilities than are given.
    #[error("top_logprobs must be from 0 to {max} but is {value}")]
    TopLogprobs {
        /// What was asked for.
        value: usize,
        /// The most there are.
        max: usize,
    },
    /// Thinking would be ended by something that does not end it.
    #[error("what ends thinking by force has to end with token {end_id}")]
    ThinkingEnd {
        /// The token that ends thinking.
        end_id: u32,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Too many requests wait.
    #[error("{waiting} requests are waiting, the most that the queue holds; try again later")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
}
