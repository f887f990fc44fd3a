//! The engine: requests, cancellations and finished steps go in; steps and tokens come out.
//!
//! Each step holds one row of every decoding sequence and slices of prompts up to a budget of rows, taken
//! in turn, so a long prompt stalls nobody. An admitted sequence has KV pages reserved for its prompt and
//! its longest reply; all other memory holds snapshots, which give way, least recently used first.

use crate::cuts::CutRule;
use crate::pool::Pool;
use crate::prefix_cache::{CacheKey, Lookup, PrefixCache, Reuse, Snapshot};
use crate::sequence::{
    FinishReason, Request, RequestId, Sequence, SequenceState, Work, snapshot_positions,
};
use crate::step::{Arithmetic, StateOp, Step};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::sample::{Allowed, ChooseError, SamplingError, choose};
use calla_ops::{Batch, CacheSize, Rows, Span, SpanKind, StepError};
use std::collections::VecDeque;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// State that the device holds.
    pub cache: CacheSize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Tokens that prompt and reply together may have.
    pub context: usize,
    /// Sequences that run at once; each needs a slot.
    pub running_max: usize,
    /// Requests that may wait.
    pub queue_max: usize,
    /// Rows of a step that prefill may use.
    pub slice_rows: usize,
    /// Where prompts are cut.
    pub rule: CutRule,
    /// Whether decoding rounds like prefill.
    pub arithmetic: Arithmetic,
    /// A snapshot at least every so many tokens of a long prompt.
    pub snapshot_interval: usize,
    /// Tokens of prefixes that the cache remembers.
    pub remembered_tokens_max: usize,
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
    /// Too many requests wait.
    #[error("{waiting} requests are waiting, the most that the queue holds; try again later")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
}

/// Something that happened to a request.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// So many prompt tokens are in the state, reused ones included.
    Prefill {
        /// The request.
        id: RequestId,
        /// Tokens in the state.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The next token of the reply.
    Token {
        /// The request.
        id: RequestId,
        /// The token.
        token: u32,
    },
    /// The reply is complete.
    Finished {
        /// The request.
        id: RequestId,
        /// Why.
        reason: FinishReason,
        /// Its counts.
        usage: Usage,
    },
    /// The device failed while it ran this request, or gave logits that are no numbers; others go on.
    Failed {
        /// The request.
        id: RequestId,
        /// What went wrong.
        error: String,
    },
}

/// Counts of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were reused, and why not more.
    pub reuse: Reuse,
    /// Tokens of the reply.
    pub completion_tokens: usize,
}

/// The engine. It never runs anything itself: [`Engine::next_step`] says what to run and
/// [`Engine::complete`] takes the result.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    pages: Pool,
    slots: Pool,
    cache: PrefixCache,
    queue: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// Rows of the step that is being run, by request.
    in_flight: Option<Vec<(RequestId, Work)>>,
    /// Moves of state that the next step begins with.
    state_ops: Vec<StateOp>,
    outputs: VecDeque<Output>,
    next_id: u64,
    /// Running sequence whose prefill comes first in the next step.
    turn: usize,
}

impl Engine {
    /// An engine without requests.
    ///
    /// # Panics
    /// If the configuration leaves no room for one sequence.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        assert!(config.running_max >= 1 && config.slice_rows >= 1 && config.queue_max >= 1);
        assert!(config.running_max <= config.cache.slots, "each running sequence needs a slot");
        assert!(config.context >= 2 && config.context <= config.cache.pages * PAGE_TOKENS);
        Self {
            pages: Pool::new(config.cache.pages),
            slots: Pool::new(config.cache.slots),
            cache: PrefixCache::new(config.remembered_tokens_max),
            queue: VecDeque::new(),
            running: Vec::new(),
            in_flight: None,
            state_ops: Vec::new(),
            outputs: VecDeque::new(),
            next_id: 0,
            turn: 0,
            config,
        }
    }

    /// Accepts a request, or says why not.
    ///
    /// # Errors
    /// If the prompt is empty, too long or holds unknown tokens, a sampling parameter is out of range, or
    /// the queue is full.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        request.sampling.validate()?;
        let (prompt, context) = (request.prompt.len(), self.config.context);
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(SubmitError::ContextLength { prompt, context });
        }
        let vocab_size = self.config.vocab_size;
        if let Some(position) = request.prompt.iter().position(|&t| t as usize >= vocab_size) {
            let token = request.prompt[position];
            return Err(SubmitError::Token { token, position, vocab_size });
        }
        if self.queue.len() >= self.config.queue_max {
            return Err(SubmitError::QueueFull { waiting: self.queue.len() });
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.queue.push_back(Sequence::new(id, request));
        Ok(id)
    }

    /// Ends a request early. What its prefill has computed stays in the cache. Unknown or finished
    /// requests are ignored: the caller may have raced with their end.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(i) = self.queue.iter().position(|s| s.id == id) {
            let sequence = self.queue.remove(i).expect("just found");
            self.finish(sequence, FinishReason::Cancelled);
        } else if let Some(i) = self.running.iter().position(|s| s.id == id) {
            let flying = self.in_flight.iter().flatten().any(|(flying, _)| *flying == id);
            if flying {
                // Its rows are on the device; it ends when they come back.
                self.running[i].cancelled = true;
            } else {
                let sequence = self.running.remove(i);
                self.finish(sequence, FinishReason::Cancelled);
            }
        }
    }

    /// The next thing that happened.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Requests that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Snapshots, pages and slots in use.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        Occupancy {
            snapshots: self.cache.len(),
            pages_used: self.pages.len() - self.pages.free(),
            pages: self.pages.len(),
            slots_used: self.slots.len() - self.slots.free(),
        }
    }

    /// Gives up every snapshot, for memory or for tests of balance.
    pub fn drop_cache(&mut self) {
        while self.evict_one() {}
    }

    /// What to run next; `None` when there is nothing to do.
    ///
    /// # Panics
    /// If the step before has not been completed.
    pub fn next_step(&mut self) -> Option<Step> {
        assert!(self.in_flight.is_none(), "one step at a time");
        self.admit();
        let work = self.compose();
        let state = std::mem::take(&mut self.state_ops);
        if work.is_empty() {
            return (!state.is_empty()).then_some(Step { state, batch: None });
        }
        let batch = self.batch(&work);
        self.in_flight = Some(work);
        Some(Step { state, batch: Some(batch) })
    }

    /// Takes the result of the step that [`Engine::next_step`] gave: the logits of its output rows. A step
    /// without a batch needs no completion.
    ///
    /// # Panics
    /// If no step is running.
    pub fn complete(&mut self, result: Result<Rows, StepError>) {
        let work = self.in_flight.take().expect("a step was running");
        match result {
            Ok(logits) => {
                let mut row = 0;
                for (id, work) in work {
                    let logits = work.output.then(|| logits.row(row));
                    row += usize::from(work.output);
                    self.advance(id, work, logits);
                }
            }
            Err(error) => {
                for (id, _) in work {
                    self.fail(id, &error.to_string());
                }
            }
        }
    }

    fn index_of(&self, id: RequestId) -> usize {
        self.running.iter().position(|s| s.id == id).expect("a running request")
    }

    // Admission.

    fn admit(&mut self) {
        while self.running.len() < self.config.running_max {
            let Some(next) = self.queue.front() else { return };
            let context = self.config.context;
            let reserved: usize = self.running.iter().map(|s| s.pages_max(context)).sum();
            if reserved + next.pages_max(context) > self.pages.len() {
                return;
            }
            let mut sequence = self.queue.pop_front().expect("just seen");
            self.start(&mut sequence);
            self.running.push(sequence);
        }
    }

    /// Gives a sequence its state: a copy of the deepest snapshot, or none of its tokens.
    fn start(&mut self, sequence: &mut Sequence) {
        let key = &sequence.request.key;
        let mut cuts = self.config.rule.cuts(&sequence.tokens);
        let arithmetic = self.config.arithmetic;
        let Lookup { snapshot, reuse } =
            self.cache.lookup(key, &sequence.tokens, &self.config.rule, |depth| match arithmetic {
                Arithmetic::Uniform => true,
                Arithmetic::Split => cuts.binary_search_by_key(&depth, |c| c.position).is_ok(),
            });
        sequence.reuse = reuse;
        let reused = reuse.reused;
        cuts.retain(|cut| cut.position > reused);
        sequence.snapshots =
            snapshot_positions(&cuts, reused, reuse.common, self.config.snapshot_interval);
        sequence.cuts = cuts.into();
        let mut pages = Vec::new();
        if let Some(snapshot) = &snapshot {
            // Held before anything is evicted to make room.
            for &page in &snapshot.pages {
                self.pages.share(page);
            }
            pages.clone_from(&snapshot.pages);
        }
        let slot = self.take_slot();
        self.state_ops.push(match &snapshot {
            Some(snapshot) => StateOp::CopySlot { from: snapshot.slot, to: slot },
            None => StateOp::ClearSlot { slot },
        });
        if !reused.is_multiple_of(PAGE_TOKENS) {
            // The last page is partial and this sequence will write to it.
            let last = pages.last_mut().expect("a prefix with tokens has pages");
            *last = self.own_page(*last);
        }
        sequence.state = Some(SequenceState { slot, pages, done: reused });
    }

    fn take_slot(&mut self) -> usize {
        loop {
            if let Some(slot) = self.slots.take() {
                return slot;
            }
            assert!(self.evict_one(), "running sequences alone never use all slots");
        }
    }

    fn take_page(&mut self) -> usize {
        loop {
            if let Some(page) = self.pages.take() {
                return page;
            }
            assert!(self.evict_one(), "admitted sequences have their pages reserved");
        }
    }

    /// Turns shared ownership of a page into a page of one's own: a copy, or, when making room for one has
    /// dropped all other owners, the page itself.
    fn own_page(&mut self, page: usize) -> usize {
        loop {
            if self.pages.owners(page) == 1 {
                return page;
            }
            if let Some(copy) = self.pages.take() {
                self.state_ops.push(StateOp::CopyPage { from: page, to: copy });
                self.pages.release(page);
                return copy;
            }
            assert!(self.evict_one(), "admitted sequences have their pages reserved");
        }
    }

    fn evict_one(&mut self) -> bool {
        let Some(snapshot) = self.cache.evict() else { return false };
        self.release_parts(snapshot.slot, &snapshot.pages);
        true
    }

    fn release_parts(&mut self, slot: usize, pages: &[usize]) {
        self.slots.release(slot);
        for &page in pages {
            self.pages.release(page);
        }
    }

    fn release(&mut self, state: Option<SequenceState>) {
        if let Some(state) = state {
            self.release_parts(state.slot, &state.pages);
        }
    }

    // Composition of a step.

    /// One row of every decoding sequence, then slices of prompts in turn.
    fn compose(&mut self) -> Vec<(RequestId, Work)> {
        let mut work: Vec<(RequestId, Work)> = self
            .running
            .iter()
            .filter(|s| !s.in_prefill())
            .map(|s| (s.id, s.next_work(1)))
            .collect();
        let mut rows_left = self.config.slice_rows;
        let count = self.running.len();
        let first = self.turn;
        for i in 0..count {
            let at = (first + i) % count;
            let sequence = &self.running[at];
            if !sequence.in_prefill() {
                continue;
            }
            if rows_left == 0 {
                // It missed this step, so it comes first in the next.
                self.turn = at;
                break;
            }
            let next = sequence.next_work(rows_left);
            rows_left = rows_left.saturating_sub(next.end - next.start);
            work.push((sequence.id, next));
            self.turn = at + 1;
        }
        if count > 0 {
            self.turn %= count;
        }
        work
    }

    fn batch(&mut self, work: &[(RequestId, Work)]) -> Batch {
        let (mut tokens, mut spans, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for (id, work) in work {
            let i = self.index_of(*id);
            while self.running[i].state.as_ref().expect("running").pages.len() * PAGE_TOKENS
                < work.end
            {
                let page = self.take_page();
                self.running[i].state.as_mut().expect("running").pages.push(page);
            }
            let sequence = &self.running[i];
            let state = sequence.state.as_ref().expect("running");
            let start = tokens.len();
            tokens.extend_from_slice(&sequence.tokens[work.start..work.end]);
            spans.push(Span {
                kind: if sequence.in_prefill() { SpanKind::Prefill } else { SpanKind::Decode },
                rows: start..tokens.len(),
                position: work.start,
                slot: state.slot,
                pages: state.pages[..work.end.div_ceil(PAGE_TOKENS)].to_vec(),
                checkpoints: vec![],
            });
            if work.output {
                outputs.push(tokens.len() - 1);
            }
        }
        Batch::new(tokens, spans, outputs, self.config.vocab_size, self.config.cache)
            .expect("the engine keeps what a batch proves")
    }

    // Results.

    fn advance(&mut self, id: RequestId, work: Work, logits: Option<&[f32]>) {
        let i = self.index_of(id);
        let was_prefill = self.running[i].in_prefill();
        self.running[i].advance_to(work.end);
        if was_prefill {
            let total = self.running[i].prompt_len();
            self.outputs.push_back(Output::Prefill { id, done: work.end, total });
        }
        if self.running[i].snapshots.front() == Some(&work.end) {
            self.running[i].snapshots.pop_front();
            self.take_snapshot(i);
        }
        let reason = if self.running[i].cancelled {
            Ok(Some(FinishReason::Cancelled))
        } else {
            logits.map_or(Ok(None), |logits| self.sample(i, logits))
        };
        match reason {
            Ok(None) => {}
            Ok(Some(reason)) => {
                let sequence = self.running.remove(i);
                self.finish(sequence, reason);
            }
            Err(error) => self.fail(id, &error.to_string()),
        }
    }

    /// Ends a running sequence whose state is worth nothing.
    fn fail(&mut self, id: RequestId, error: &str) {
        let i = self.index_of(id);
        let sequence = self.running.remove(i);
        self.release(sequence.state);
        self.outputs.push_back(Output::Failed { id, error: error.to_owned() });
    }

    /// Chooses the next token; says if and why the reply ends.
    fn sample(&mut self, i: usize, logits: &[f32]) -> Result<Option<FinishReason>, ChooseError> {
        let sequence = &mut self.running[i];
        let request = &sequence.request;
        if request.max_tokens == 0 {
            return Ok(Some(FinishReason::Length));
        }
        let (sampling, history) = (&request.sampling, &sequence.history);
        let token = choose(logits, request.vocab_used, sampling, history, Allowed::all())?;
        if request.stop_ids.contains(&token) {
            return Ok(Some(FinishReason::Stop));
        }
        sequence.history.push(token);
        sequence.tokens.push(token);
        self.outputs.push_back(Output::Token { id: sequence.id, token });
        Ok(if sequence.generated() == sequence.request.max_tokens {
            Some(FinishReason::Length)
        } else if sequence.tokens.len() > self.config.context {
            Some(FinishReason::ContextFull)
        } else {
            None
        })
    }

    /// Copies the state of running sequence `i` into the cache, if a slot can be had for it.
    fn take_snapshot(&mut self, i: usize) {
        let slot = match self.slots.take() {
            Some(slot) => slot,
            None if self.evict_one() => match self.slots.take() {
                Some(slot) => slot,
                None => return,
            },
            None => return,
        };
        let sequence = &self.running[i];
        let state = sequence.state.as_ref().expect("running");
        let pages = state.pages[..state.done.div_ceil(PAGE_TOKENS)].to_vec();
        for &page in &pages {
            self.pages.share(page);
        }
        self.state_ops.push(StateOp::CopySlot { from: state.slot, to: slot });
        let tokens = state.done;
        let key = sequence.request.key.clone();
        let prefix = sequence.tokens[..tokens].to_vec();
        self.keep(&key, &prefix, Snapshot { slot, pages, tokens });
    }

    fn keep(&mut self, key: &CacheKey, prefix: &[u32], snapshot: Snapshot) {
        if let Err(snapshot) = self.cache.insert(key, prefix, snapshot) {
            self.release_parts(snapshot.slot, &snapshot.pages);
        }
    }

    /// Ends a sequence; its state becomes a snapshot where that is exact.
    fn finish(&mut self, mut sequence: Sequence, reason: FinishReason) {
        if let Some(state) = sequence.state.take() {
            self.retire(&sequence, state);
        }
        let usage = Usage {
            prompt_tokens: sequence.prompt_len(),
            reuse: sequence.reuse,
            completion_tokens: sequence.generated(),
        };
        self.outputs.push_back(Output::Finished { id: sequence.id, reason, usage });
    }

    fn retire(&mut self, sequence: &Sequence, state: SequenceState) {
        let SequenceState { slot, mut pages, done } = state;
        let exact = match self.config.arithmetic {
            Arithmetic::Uniform => true,
            // A prefill that stopped at a cut is exact; a state reached by decoding is not.
            Arithmetic::Split => {
                done <= sequence.reuse.reused
                    || self
                        .config
                        .rule
                        .cuts(&sequence.request.prompt)
                        .iter()
                        .any(|cut| cut.position == done)
            }
        };
        if done == 0 || !exact {
            self.release_parts(slot, &pages);
            return;
        }
        for page in pages.split_off(done.div_ceil(PAGE_TOKENS)) {
            self.pages.release(page);
        }
        let prefix = sequence.tokens[..done].to_vec();
        self.keep(&sequence.request.key, &prefix, Snapshot { slot, pages, tokens: done });
    }
}

/// What the engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Snapshots in the cache.
    pub snapshots: usize,
    /// KV pages held by sequences and snapshots.
    pub pages_used: usize,
    /// All KV pages.
    pub pages: usize,
    /// State slots held by sequences and snapshots.
    pub slots_used: usize,
}
