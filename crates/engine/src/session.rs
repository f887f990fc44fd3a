//! One sequence on a device, kept from one request to the next.

use crate::generation::{Generation, Request};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::sample::SamplingError;
use calla_ops::{Batch, Rows, Runner, Span, StepError};

/// Rows of one prefill slice. Large enough that each weight is read once for many rows, small enough that
/// activations stay in cache and a cancel is heard soon.
pub const PREFILL_ROWS: usize = 256;

/// Why a request was refused or ended early.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
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
    /// A prompt token is not in the vocabulary.
    #[error("token {token} at position {position} is not below the vocabulary size {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// Its place in the prompt.
        position: usize,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The device failed; the sequence's state is lost.
    #[error(transparent)]
    Device(#[from] StepError),
}

/// A runner with the one sequence whose state it holds.
///
/// A request whose prompt continues that sequence computes only what is new. That is exact: on a backend
/// where decoding and prefill agree bit for bit, the state is the same however it was reached.
pub struct Session {
    runner: Box<dyn Runner>,
    /// Tokens whose state slot 0 and the pages hold.
    tokens: Vec<u32>,
}

impl Session {
    /// Wraps a runner that holds at least one sequence.
    #[must_use]
    pub fn new(runner: Box<dyn Runner>) -> Self {
        Self { runner, tokens: Vec::new() }
    }

    /// Tokens that prompt and reply together may have.
    #[must_use]
    pub fn context_length(&self) -> usize {
        let pages = self.runner.cache_size().pages * PAGE_TOKENS;
        pages.min(self.runner.shape().max_positions)
    }

    /// Tokens whose state is held.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.runner.clear_slot(0);
    }

    /// Starts a request. Nothing is computed until it is advanced.
    ///
    /// # Errors
    /// If the prompt is empty, too long or holds unknown tokens, or a sampling parameter is out of range.
    pub fn start(&mut self, request: Request) -> Result<Generation<'_>, EngineError> {
        request.sampling.validate()?;
        let (prompt, context) = (request.prompt.len(), self.context_length());
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(EngineError::ContextLength { prompt, context });
        }
        let vocab_size = self.runner.shape().vocab_size;
        if let Some(position) = request.prompt.iter().position(|&t| t as usize >= vocab_size) {
            let token = request.prompt[position];
            return Err(EngineError::Token { token, position, vocab_size });
        }
        // The last prompt token always runs: its logits choose the first token of the reply.
        if self.tokens.len() >= prompt || !request.prompt.starts_with(&self.tokens) {
            self.reset();
        }
        Ok(Generation::new(self, request))
    }

    /// Appends tokens to the sequence; with `want_logits`, returns the logits of the last.
    pub(crate) fn append(
        &mut self,
        tokens: &[u32],
        want_logits: bool,
    ) -> Result<Option<Rows>, EngineError> {
        let (rows, position) = (tokens.len(), self.tokens.len());
        let pages = (position + rows).div_ceil(PAGE_TOKENS);
        let span = Span { rows: 0..rows, position, slot: 0, pages: (0..pages).collect() };
        let outputs = if want_logits { vec![rows - 1] } else { vec![] };
        let (vocab_size, size) = (self.runner.shape().vocab_size, self.runner.cache_size());
        let batch = Batch::new(tokens.to_vec(), vec![span], outputs, vocab_size, size).expect(
            "start() checked prompt and context, and every chosen token is in the vocabulary",
        );
        match self.runner.step(&batch) {
            Ok(logits) => {
                self.tokens.extend_from_slice(tokens);
                Ok(want_logits.then_some(logits))
            }
            Err(error) => {
                self.reset();
                Err(error.into())
            }
        }
    }
}
