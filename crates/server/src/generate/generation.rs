//! Requests under way: the replies to one prompt, as a stream of what happens to them.

use super::choice::{Choice, Delta, Ended};
use super::prepare::{Prepared, prepare, submit_error};
use super::task::Task;
use crate::engine_status::EngineStatus;
use crate::engine_thread::{EngineHandle, Rejection, Running, Update, What};
use crate::error::{ApiError, ErrorKind};
use crate::metrics::Metrics;
use crate::model::Model;
use calla_engine::{Failure, Request, Reuse};
use calla_text::ReplyAssembler;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What every request needs: the model, its engine, and the counters.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) model: Model,
    pub(crate) engine: EngineHandle,
    pub(crate) metrics: Arc<Metrics>,
    /// Requests that are being prepared: they wait, and the engine does not know of them yet.
    pub(crate) preparing: Arc<AtomicUsize>,
}

/// Counts a request as being prepared while it lives.
struct Preparing(Arc<AtomicUsize>);

impl Preparing {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What happened to a generation.
#[derive(Debug)]
pub(crate) enum Happening {
    /// So many prompt tokens are in the state, reused ones included.
    Prefill { done: usize, total: usize },
    /// A reply goes on.
    Delta { choice: usize, delta: Delta },
    /// A reply has ended. Behind the last one nothing comes.
    Ended { choice: usize, ended: Box<Ended> },
    /// It came to nothing, and nothing more comes.
    Failed(ApiError),
}

/// Counts of all replies to a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) reasoning_tokens: usize,
    /// Of the first reply; the others reuse its prompt.
    pub(crate) reuse: Reuse,
    pub(crate) timings: Timings,
}

/// Where the time went, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timings {
    /// Until the request had its place.
    pub(crate) queue: f64,
    /// From there to the first token.
    pub(crate) prefill: f64,
    /// From the first token to the last.
    pub(crate) decode: f64,
    /// Prompt tokens computed.
    pub(crate) prefill_tokens: usize,
    /// Tokens after the first.
    pub(crate) decode_tokens: usize,
    pub(crate) drafted_tokens: usize,
    pub(crate) accepted_tokens: usize,
}

impl Timings {
    /// Prompt tokens computed per second.
    pub(crate) fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill)
    }

    /// Tokens generated per second.
    pub(crate) fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode)
    }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// Replies to one prompt, under way. Dropping this cancels them.
pub(crate) struct Generation {
    service: Service,
    /// What the further replies are made from, until the first has computed the prompt that they share.
    further: Option<Further>,
    sender: UnboundedSender<Update>,
    updates: UnboundedReceiver<Update>,
    choices: Vec<Option<(Choice, Running)>>,
    stops: Vec<String>,
    one_call: bool,
    /// What is known and not told yet.
    waiting: VecDeque<Happening>,
    /// Replies that have not ended.
    open: usize,
    started: Instant,
    placed: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    summary: Summary,
    is_over: bool,
}

struct Further {
    request: Request,
    assembler: ReplyAssembler,
}

impl Service {
    /// What the engine's thread last told, with the requests that are still being prepared.
    pub(crate) fn status(&self) -> EngineStatus {
        let mut status = self.engine.status().get();
        status.waiting += self.preparing.load(Ordering::Relaxed);
        status
    }

    /// Prepares a task and hands it to the engine.
    ///
    /// # Errors
    /// If the task cannot be done, or not now.
    pub(crate) async fn generate(&self, task: Task, owner: &str) -> Result<Generation, ApiError> {
        let started = Instant::now();
        let result = self.begin(task, owner, started).await;
        if let Err(error) = &result {
            self.metrics.refused(error);
        }
        result
    }

    async fn begin(
        &self,
        task: Task,
        owner: &str,
        started: Instant,
    ) -> Result<Generation, ApiError> {
        let (model, owner) = (self.model.clone(), owner.to_owned());
        let counted = Preparing::new(&self.preparing);
        // Counted on that thread, which goes on when whoever asked has gone.
        let work = move || (prepare(&model, task, &owner), counted);
        let (prepared, counted) = self.blocking(work).await?;
        let prepared = prepared?;
        let Prepared { request, assembler, stop, choices, one_call } = prepared;
        let (sender, updates) = unbounded_channel();
        let further = (choices > 1)
            .then(|| Further { request: request.clone(), assembler: assembler.clone() });
        let (prompt_tokens, wants_logprobs) =
            (request.prompt.len(), request.top_logprobs.is_some());
        let running = self.submit(request, 0, &sender).await?;
        drop(counted);
        let first = Choice::new(assembler, one_call, wants_logprobs);
        let mut list = vec![Some((first, running))];
        list.resize_with(choices, || None);
        Ok(Generation {
            service: self.clone(),
            further,
            sender,
            updates,
            choices: list,
            stops: stop,
            one_call,
            waiting: VecDeque::new(),
            open: choices,
            started,
            placed: None,
            first_token: None,
            last_token: None,
            summary: Summary { prompt_tokens, ..Summary::default() },
            is_over: false,
        })
    }

    async fn submit(
        &self,
        request: Request,
        choice: usize,
        updates: &UnboundedSender<Update>,
    ) -> Result<Running, ApiError> {
        self.engine.submit(request, choice, updates.clone()).await.map_err(|rejection| {
            match rejection {
                Rejection::Submit(error) => submit_error(&error),
                Rejection::NotLoaded(reason) => {
                    let message = format!("the model could not be loaded: {reason}");
                    ApiError::new(ErrorKind::Unavailable, message).with_retry_after(30)
                }
                Rejection::Stopping => shutting_down(),
            }
        })
    }

    /// Runs work that takes milliseconds or more where no socket waits for it.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::task::spawn_blocking(work).await.map_err(|error| {
            tracing::error!("a request could not be prepared: {error}");
            ApiError::new(ErrorKind::Server, "the request could not be prepared: this is a bug")
        })
    }
}

impl Generation {
    /// The next thing that happens; `None` when all replies have ended or the whole has failed.
    pub(crate) async fn next(&mut self) -> Option<Happening> {
        loop {
            if let Some(happening) = self.waiting.pop_front() {
                return Some(happening);
            }
            if self.is_over {
                return None;
            }
            match self.updates.recv().await {
                Some(update) => self.take(update).await,
                // The generation holds a sender, so the channel stays open.
                None => return None,
            }
        }
    }

    /// Waits until all replies have ended.
    ///
    /// # Errors
    /// If the generation fails.
    pub(crate) async fn collect(&mut self) -> Result<Vec<Ended>, ApiError> {
        let mut replies: Vec<Option<Ended>> = vec![];
        replies.resize_with(self.choices.len(), || None);
        while let Some(happening) = self.next().await {
            match happening {
                Happening::Ended { choice, ended } => replies[choice] = Some(*ended),
                Happening::Failed(error) => return Err(error),
                Happening::Prefill { .. } | Happening::Delta { .. } => {}
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// Replies to the prompt.
    pub(crate) fn choices(&self) -> usize {
        self.choices.len()
    }

    /// Counts so far; whole once [`next`](Self::next) has given `None`.
    pub(crate) fn summary(&self) -> Summary {
        self.summary
    }

    async fn take(&mut self, update: Update) {
        let Update { choice, at, what } = update;
        match what {
            What::Prefill { done, total } if choice == 0 => {
                self.placed.get_or_insert(at);
                self.waiting.push_back(Happening::Prefill { done, total });
            }
            What::Prefill { .. } => {}
            What::Token(id, logprobs) => {
                let is_wanted =
                    self.choices[choice].as_ref().is_some_and(|(state, _)| !state.is_complete());
                if is_wanted {
                    self.token_came(at);
                }
                let tokenizer = &self.service.model.parts().tokenizer;
                if let Some((state, running)) = &mut self.choices[choice] {
                    let was_complete = state.is_complete();
                    let deltas = state.push(tokenizer, id, logprobs);
                    if state.is_complete() && !was_complete {
                        running.cancel();
                    }
                    let happenings =
                        deltas.into_iter().map(|delta| Happening::Delta { choice, delta });
                    self.waiting.extend(happenings);
                }
                self.start_further().await;
            }
            What::Finished(reason, usage) => {
                let Some((state, _running)) = self.choices[choice].take() else { return };
                let (deltas, ended) = state.finish(reason, usage, &self.stops);
                let happenings = deltas.into_iter().map(|delta| Happening::Delta { choice, delta });
                self.waiting.extend(happenings);
                self.ended(choice, ended);
                self.start_further().await;
            }
            What::Failed(failure) => self.fail(failure_error(&failure)),
            What::Cut => self.fail(shutting_down()),
        }
    }

    fn token_came(&mut self, at: Instant) {
        let metrics = &self.service.metrics;
        if self.first_token.is_none() {
            self.first_token = Some(at);
            metrics.first_token(at.saturating_duration_since(self.started));
        } else if let Some(last) = self.last_token {
            metrics.next_token(at.saturating_duration_since(last));
        }
        self.last_token = Some(at);
    }

    fn ended(&mut self, choice: usize, ended: Ended) {
        let Ended { usage, reasoning_tokens, .. } = &ended;
        let summary = &mut self.summary;
        summary.completion_tokens += usage.completion_tokens;
        summary.reasoning_tokens += reasoning_tokens;
        summary.timings.drafted_tokens += usage.drafted_tokens;
        summary.timings.accepted_tokens += usage.accepted_tokens;
        if choice == 0 {
            summary.reuse = usage.reuse;
        }
        self.service.metrics.reply_ended(&ended);
        self.waiting.push_back(Happening::Ended { choice, ended: Box::new(ended) });
        self.open -= 1;
        if self.open == 0 {
            self.is_over = true;
            self.summary.timings = self.timings();
            self.service.metrics.request_ended(&self.summary, self.started.elapsed());
        }
    }

    fn timings(&self) -> Timings {
        let between = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.saturating_duration_since(from),
            _ => Duration::ZERO,
        };
        let placed = self.placed.or(self.first_token);
        Timings {
            queue: between(Some(self.started), placed).as_secs_f64(),
            prefill: between(placed, self.first_token).as_secs_f64(),
            decode: between(self.first_token, self.last_token).as_secs_f64(),
            prefill_tokens: self.summary.prompt_tokens.saturating_sub(self.summary.reuse.reused),
            decode_tokens: self.summary.completion_tokens.saturating_sub(1),
            ..self.summary.timings
        }
    }

    /// Starts the further replies, once the prompt that they share is computed.
    async fn start_further(&mut self) {
        let Some(Further { request, assembler }) = self.further.take() else { return };
        let (one_call, wants_logprobs) = (self.one_call, request.top_logprobs.is_some());
        for choice in 1..self.choices.len() {
            let mut request = request.clone();
            // Draws of one seed are those of the first reply.
            request.sampling.seed = request.sampling.seed.wrapping_add(choice as u64);
            match self.service.submit(request, choice, &self.sender).await {
                Ok(running) => {
                    let state = Choice::new(assembler.clone(), one_call, wants_logprobs);
                    self.choices[choice] = Some((state, running));
                }
                Err(error) => return self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: ApiError) {
        self.service.metrics.refused(&error);
        self.is_over = true;
        // Dropped, and so cancelled.
        self.choices.iter_mut().for_each(|choice| *choice = None);
        self.waiting.push_back(Happening::Failed(error));
    }
}

fn shutting_down() -> ApiError {
    ApiError::new(ErrorKind::Unavailable, "the server is shutting down")
        .with_code("shutting_down")
        .with_retry_after(10)
}

fn failure_error(failure: &Failure) -> ApiError {
    match failure {
        Failure::Device(_) => {
            ApiError::new(ErrorKind::Server, failure.to_string()).with_code("device_failed")
        }
        Failure::Grammar(_) => ApiError::invalid("response_format", failure.to_string()),
        Failure::Match(_) => ApiError::new(ErrorKind::Unprocessable, failure.to_string())
            .with_param("response_format"),
    }
}
