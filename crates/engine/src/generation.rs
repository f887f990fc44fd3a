//! One request as a state machine: prefill slices, then a token a step.

use crate::session::{EngineError, PREFILL_ROWS, Session};
use calla_ops::sample::{History, Sampling, choose};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Tokens that end the reply; they are not part of it.
    pub stop_ids: Vec<u32>,
    /// Ids below this can be chosen; rows of the vocabulary beyond it are padding.
    pub vocab_used: usize,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many prompt tokens have been computed.
    Prefill {
        /// Prompt tokens in the state, reused ones included.
        done: usize,
        /// Prompt tokens.
        total: usize,
    },
    /// The next token of the reply.
    Token(u32),
    /// Nothing more will come.
    Finished(FinishReason),
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    ContextFull,
}

/// A running request. Drop it to cancel: its progress stays in the session.
pub struct Generation<'a> {
    session: &'a mut Session,
    request: Request,
    history: History,
    reused: usize,
    generated: usize,
    /// Chosen but not yet run through the network.
    pending: Option<u32>,
    finished: Option<FinishReason>,
}

impl<'a> Generation<'a> {
    pub(crate) fn new(session: &'a mut Session, request: Request) -> Self {
        let history = History::of_prompt(&request.prompt);
        let reused = session.tokens().len();
        let finished = (request.max_tokens == 0).then_some(FinishReason::Length);
        Self { session, request, history, reused, generated: 0, pending: None, finished }
    }

    /// Prompt tokens that did not have to be computed.
    #[must_use]
    pub fn reused_tokens(&self) -> usize {
        self.reused
    }

    /// Runs one step: a slice of the prompt, or one token.
    ///
    /// # Errors
    /// If the device failed.
    pub fn advance(&mut self) -> Result<Progress, EngineError> {
        if let Some(reason) = self.finished {
            return Ok(Progress::Finished(reason));
        }
        let total = self.request.prompt.len();
        let done = self.session.tokens().len();
        // The prompt's last token is left to the step that chooses the first token.
        if done + 1 < total {
            let end = total.min(done + PREFILL_ROWS + 1) - 1;
            self.session.append(&self.request.prompt[done..end], false)?;
            return Ok(Progress::Prefill { done: end, total });
        }
        let input = self.pending.unwrap_or(self.request.prompt[total - 1]);
        if self.session.tokens().len() == self.session.context_length() {
            return Ok(self.finish(FinishReason::ContextFull));
        }
        let logits = self.session.append(&[input], true)?.expect("asked for");
        let Request { sampling, vocab_used, .. } = &self.request;
        let token = choose(logits.row(0), *vocab_used, sampling, &self.history);
        if self.request.stop_ids.contains(&token) {
            return Ok(self.finish(FinishReason::Stop));
        }
        self.history.push(token);
        self.pending = Some(token);
        self.generated += 1;
        if self.generated == self.request.max_tokens {
            self.finished = Some(FinishReason::Length);
        }
        Ok(Progress::Token(token))
    }

    fn finish(&mut self, reason: FinishReason) -> Progress {
        self.finished = Some(reason);
        Progress::Finished(reason)
    }
}
