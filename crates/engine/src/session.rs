//! An engine on one device, driven by one caller who waits for each reply.
//!
//! The command line uses this; a server drives [`Engine`] itself, so that many callers share it.

use crate::cuts::CutRule;
use crate::engine::{Engine, EngineConfig, Occupancy, Output, SubmitError, Usage};
use crate::sequence::{FinishReason, Request, RequestId};
use crate::step::{Arithmetic, StateOp, Step};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{Rows, Runner, StepError};

/// Rows of a step that prefill may use. Large enough that each weight is read once for many rows, small
/// enough that activations stay in cache and a cancel is heard soon.
const SLICE_ROWS: usize = 256;
/// A snapshot at least every so many tokens of a long prompt.
const SNAPSHOT_INTERVAL: usize = 2048;
/// Tokens of evicted prefixes that are remembered, to say why a prompt missed: 16 MB.
const REMEMBERED_TOKENS_MAX: usize = 4 << 20;

/// Why a request was refused or ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It was not accepted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The device failed or gave logits that are no numbers; the sequence's state is lost.
    #[error("{0}")]
    Failed(String),
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many prompt tokens are in the state.
    Prefill {
        /// Prompt tokens in the state, reused ones included.
        done: usize,
        /// Prompt tokens.
        total: usize,
    },
    /// The next token of the reply.
    Token(u32),
    /// Nothing more will come.
    Finished(FinishReason, Usage),
}

/// A device with its engine.
pub struct Session {
    engine: Engine,
    runner: Box<dyn Runner>,
    context: usize,
}

impl Session {
    /// Wraps a device whose decoding rounds like its prefill. `context` tokens are for prompt and reply;
    /// what the device holds beyond them keeps snapshots. `rule` says where prompts can be cut.
    #[must_use]
    pub fn new(runner: Box<dyn Runner>, context: usize, rule: CutRule) -> Self {
        let cache = runner.cache_size();
        let context = context.min(cache.pages * PAGE_TOKENS).min(runner.shape().max_positions);
        let engine = Engine::new(EngineConfig {
            cache,
            vocab_size: runner.shape().vocab_size,
            context,
            running_max: 1,
            queue_max: 1,
            slice_rows: SLICE_ROWS,
            rule,
            arithmetic: Arithmetic::Uniform,
            snapshot_interval: SNAPSHOT_INTERVAL,
            remembered_tokens_max: REMEMBERED_TOKENS_MAX,
        });
        Self { engine, runner, context }
    }

    /// Tokens that prompt and reply together may have.
    #[must_use]
    pub fn context_length(&self) -> usize {
        self.context
    }

    /// What the prefix cache holds.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.engine.occupancy()
    }

    /// Forgets all cached prefixes.
    pub fn reset(&mut self) {
        self.engine.drop_cache();
    }

    /// Starts a request. Nothing is computed until it is advanced.
    ///
    /// # Errors
    /// If the engine does not accept it.
    pub fn start(&mut self, request: Request) -> Result<Generation<'_>, SessionError> {
        let id = self.engine.submit(request)?;
        Ok(Generation { session: self, id, finished: None })
    }

    /// Runs a step, if there is one.
    fn step(&mut self) {
        if let Some(step) = self.engine.next_step()
            && let Some(result) = run_step(self.runner.as_mut(), &step)
        {
            self.engine.complete(result);
        }
    }
}

/// Runs a step on a device: its moves of state, then its batch. `None` for a step without a batch.
pub fn run_step(runner: &mut dyn Runner, step: &Step) -> Option<Result<Rows, StepError>> {
    for op in &step.state {
        match *op {
            StateOp::ClearSlot { slot } => runner.clear_slot(slot),
            StateOp::CopySlot { from, to } => runner.copy_slot(from, to),
            StateOp::CopyPage { from, to } => runner.copy_page(from, to),
        }
    }
    step.batch.as_ref().map(|batch| runner.step(batch))
}

/// A running request. Dropping it cancels it; what it has computed stays in the cache.
pub struct Generation<'a> {
    session: &'a mut Session,
    id: RequestId,
    finished: Option<(FinishReason, Usage)>,
}

impl Generation<'_> {
    /// Runs until something happens: a slice of the prompt is done, a token is chosen, the reply ends.
    ///
    /// # Errors
    /// If the device failed.
    pub fn advance(&mut self) -> Result<Progress, SessionError> {
        if let Some((reason, usage)) = self.finished {
            return Ok(Progress::Finished(reason, usage));
        }
        loop {
            // The session has one request at a time, so every output is of this one.
            match self.session.engine.poll() {
                Some(Output::Prefill { done, total, .. }) if done < total => {
                    return Ok(Progress::Prefill { done, total });
                }
                // The token that comes with the last slice says the same.
                Some(Output::Prefill { .. }) => {}
                Some(Output::Token { token, .. }) => return Ok(Progress::Token(token)),
                Some(Output::Finished { reason, usage, .. }) => {
                    self.finished = Some((reason, usage));
                    return Ok(Progress::Finished(reason, usage));
                }
                Some(Output::Failed { error, .. }) => {
                    self.finished = Some((FinishReason::Cancelled, Usage::default()));
                    return Err(SessionError::Failed(error));
                }
                None => self.session.step(),
            }
        }
    }

    /// Ends the request, if it has not ended by itself, and gives its counts.
    pub fn end(&mut self) -> Usage {
        self.session.engine.cancel(self.id);
        while let Some(output) = self.session.engine.poll() {
            if let Output::Finished { reason, usage, .. } = output {
                self.finished = Some((reason, usage));
            }
        }
        self.finished.map(|(_, usage)| usage).unwrap_or_default()
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
