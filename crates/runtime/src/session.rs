//! An engine on one device, driven by one caller who waits for each reply.
//!
//! The command line uses this; a server drives a [`Driver`] itself, so that many callers share it.

use crate::driver::{Driver, Turn};
use crate::saves::SavedUse;
use calla_engine::Usage;
use calla_engine::engine::{Counts, Occupancy};
use calla_engine::{Failure, FinishReason, Output, Request, RequestId, SubmitError, TokenLogprobs};

/// Why a request was refused or ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It was not accepted.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// It came to nothing.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// So many prompt tokens are in the state.
    Prefill {
        /// Prompt tokens in the state, reused ones included.
        done: usize,
        /// Prompt tokens.
        total: usize,
    },
    /// The next token of the reply, with log-probabilities if they were asked for.
    Token(u32, Option<TokenLogprobs>),
    /// Nothing more will come.
    Finished(FinishReason, Usage),
}

/// A driver with one caller.
pub struct Session {
    driver: Driver,
    context: usize,
}

impl Session {
    /// Takes a driver that nobody else uses; `context` is what its engine was set up with.
    #[must_use]
    pub fn new(driver: Driver, context: usize) -> Self {
        Self { driver, context }
    }

    /// Tokens that prompt and reply together may have.
    #[must_use]
    pub fn context_length(&self) -> usize {
        self.context
    }

    /// What the prefix cache holds in the device's memory.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.driver.view().occupancy()
    }

    /// What is saved besides the device's memory.
    #[must_use]
    pub fn saved(&self) -> SavedUse {
        self.driver.saved()
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.driver.view().counts()
    }

    /// Forgets all cached prefixes in memory; those on disk stay.
    pub fn reset(&mut self) {
        self.driver.forget_memory();
    }

    /// Writes to disk what is worth it, if there is a disk cache: before the program ends.
    pub fn save(&mut self) {
        self.driver.save_all();
    }

    /// The same, without waiting for the disk: between two requests.
    pub fn save_meanwhile(&mut self) {
        self.driver.save_meanwhile();
    }

    /// Starts a request. Nothing is computed until it is advanced.
    ///
    /// # Errors
    /// If the engine does not accept it.
    pub fn start(&mut self, request: Request) -> Result<Generation<'_>, SessionError> {
        let id = self.driver.engine().submit(request)?;
        Ok(Generation { session: self, id, finished: None })
    }
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
    /// If the request came to nothing.
    pub fn advance(&mut self) -> Result<Progress, SessionError> {
        if let Some((reason, usage)) = self.finished {
            return Ok(Progress::Finished(reason, usage));
        }
        loop {
            // The session has one request at a time, so every output is of this one.
            match self.session.driver.engine().poll() {
                Some(Output::Prefill { done, total, .. }) if done < total => {
                    return Ok(Progress::Prefill { done, total });
                }
                // The token that comes with the last slice says the same.
                Some(Output::Prefill { .. }) => {}
                Some(Output::Token { token, logprobs, .. }) => {
                    return Ok(Progress::Token(token, logprobs));
                }
                Some(Output::Finished { reason, usage, .. }) => {
                    self.finished = Some((reason, usage));
                    return Ok(Progress::Finished(reason, usage));
                }
                Some(Output::Failed { failure, .. }) => {
                    self.finished = Some((FinishReason::Cancelled, Usage::default()));
                    return Err(failure.into());
                }
                None => {
                    let turn = self.session.driver.turn(true);
                    assert!(
                        turn != Turn::Idle || self.session.driver.view().running() == 0,
                        "a request runs but nothing is left to do"
                    );
                }
            }
        }
    }

    /// Ends the request, if it has not ended by itself, and gives its counts. One that waits for a file ends
    /// when it is read.
    pub fn end(&mut self) -> Usage {
        self.session.driver.engine().cancel(self.id);
        loop {
            while let Some(output) = self.session.driver.engine().poll() {
                if let Output::Finished { reason, usage, .. } = output {
                    self.finished = Some((reason, usage));
                }
            }
            if self.session.driver.view().running() == 0 {
                return self.finished.map(|(_, usage)| usage).unwrap_or_default();
            }
            self.session.driver.turn(true);
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
