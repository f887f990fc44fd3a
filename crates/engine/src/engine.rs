//! The engine: requests, cancellations and finished work go in; steps, effects and tokens come out.
//!
//! Each step holds the rows of every decoding sequence and slices of prompts up to a budget of rows, taken
//! in turn, so a long prompt stalls nobody. An admitted sequence has KV pages reserved for its prompt and
//! its longest reply; all other memory holds snapshots, which give way, least recently used first.
//!
//! This file has the engine's interface; `admission` gives sequences their state, `compose` makes steps,
//! `results` takes what they gave, `multi_step` does both where the device chooses tokens, `snapshots` keeps
//! and gives up state.

mod admission;
mod compose;
mod multi_step;
mod results;
mod snapshots;

pub use snapshots::Share;

use crate::cuts::CutRule;
use crate::multi_step::{MultiStepConfig, MultiStepSizer};
use crate::pool::Pool;
use crate::prefix_cache::{PrefixCache, Reuse};
use crate::request::{FinishReason, Request, RequestId, SubmitError};
use crate::sequence::{Ending, Sequence, State, Structure, Work};
use crate::slices::SliceSizer;
use crate::speculation::{DepthChooser, Speculation};
use crate::step::{Arithmetic, Effect, FileId, StateOp, Ticket};
use crate::structure::{MatchError, Matcher};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::sample::{TOP_LOGPROBS_MAX, TokenLogprobs};
use calla_ops::{CacheSize, TokenMask};
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
    /// Most rows of a step that prefill may use.
    pub slice_rows: usize,
    /// Seconds that a step should take at most: prefill uses fewer rows where they are measured to take longer. `None`:
    /// however long it takes.
    pub slice_seconds: Option<f64>,
    /// Where prompts are cut.
    pub rule: CutRule,
    /// Whether decoding rounds like prefill.
    pub arithmetic: Arithmetic,
    /// Keep states that decoding reached in split arithmetic, although what is computed from them may differ
    /// in the last bits from a cold run; usage says where one was used.
    pub fast_cache: bool,
    /// A snapshot at least every so many tokens of a long prompt.
    pub snapshot_interval: usize,
    /// Tokens of prefixes that the cache remembers.
    pub remembered_tokens_max: usize,
    /// Drafts of the multi-token-prediction layer.
    pub speculation: Speculation,
    /// Slots set apart for the states between drafts; each draft under way needs one.
    pub checkpoint_slots: usize,
    /// Decode steps that follow one another without the host. `None`: the host chooses every token.
    pub multi_step: Option<MultiStepConfig>,
    /// Evicted snapshots of so many tokens are saved, in host memory or in files, and saved ones that go so many tokens beyond
    /// those in the device's memory are loaded. `None`: nothing is saved.
    pub file_tokens_min: Option<usize>,
}

/// Something that happened to a request.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// So many prompt tokens are in the state, reused ones included. The first one says that the request has
    /// its place, and what is reused.
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
        /// If they were asked for and the token was chosen, not forced.
        logprobs: Option<TokenLogprobs>,
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
    /// The request came to nothing; others go on.
    Failed {
        /// The request.
        id: RequestId,
        /// What went wrong.
        failure: Failure,
    },
}

/// What made a request fail after it was accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The device failed while it ran the request, or gave logits that are no numbers.
    #[error("{0}")]
    Device(String),
    /// Its grammar could not be compiled.
    #[error("{0}")]
    Grammar(String),
    /// Its reply could not be held to its grammar.
    #[error(transparent)]
    Match(#[from] MatchError),
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
    /// Tokens that were drafted for it.
    pub drafted_tokens: usize,
    /// Drafted tokens that are in the reply.
    pub accepted_tokens: usize,
}

/// What the step on the device is about.
#[derive(Debug)]
enum InFlight {
    /// Moves of state only.
    Moves,
    /// Rows, by request. `slots` hold the states after each row but the last of those with drafts.
    Batch(Vec<(RequestId, Work, Vec<usize>)>),
    /// Steps whose tokens the device chooses, by request.
    MultiStep { ids: Vec<RequestId>, steps: usize },
    /// Drafts, by request.
    Drafts(Vec<RequestId>),
}

/// A matcher that is lent out so that its mask is computed while the device runs.
pub struct MaskJob {
    id: RequestId,
    matcher: Box<dyn Matcher>,
    mask: Option<Result<TokenMask, MatchError>>,
}

impl MaskJob {
    /// Computes the mask.
    pub fn run(&mut self) {
        self.mask = Some(self.matcher.mask());
    }
}

/// The engine. It never runs anything itself: [`Engine::next_step`] says what to run and
/// [`Engine::complete`] takes the result; [`Engine::next_effect`] says what else is to be done.
pub struct Engine {
    config: EngineConfig,
    pages: Pool,
    slots: Pool,
    /// Slots for states between drafts that are not in use.
    checkpoints: Vec<usize>,
    cache: PrefixCache,
    queue: VecDeque<Sequence>,
    running: Vec<Sequence>,
    in_flight: Option<InFlight>,
    /// Moves of state that the next step begins with.
    state_ops: Vec<StateOp>,
    effects: VecDeque<Effect>,
    outputs: VecDeque<Output>,
    next_id: u64,
    next_ticket: u64,
    /// Running sequence whose prefill comes first in the next step.
    turn: usize,
    slice_sizer: SliceSizer,
    multi_step_sizer: MultiStepSizer,
    depth_chooser: DepthChooser,
    /// Seconds that the drafts of this round took, if that is known.
    draft_seconds: Option<f64>,
    counts: Counts,
}

/// What the engine has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that ended, in whatever way.
    pub requests: u64,
    /// Prompt tokens of requests that were started.
    pub prompt_tokens: u64,
    /// Prompt tokens that were reused.
    pub reused_tokens: u64,
    /// Prompt tokens that were reused from host memory behind the device's.
    pub host_tokens: u64,
    /// Prompt tokens that were reused from files.
    pub loaded_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens drafted.
    pub drafted_tokens: u64,
    /// Drafted tokens that were kept.
    pub accepted_tokens: u64,
    /// Snapshots given up.
    pub evictions: u64,
    /// Times that snapshots gave way because memory was short.
    pub gave_way: u64,
    /// Loads and saves that failed.
    pub file_errors: u64,
}

impl Engine {
    /// An engine without requests.
    ///
    /// # Panics
    /// If the configuration leaves no room for one sequence.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        assert!(config.running_max >= 1 && config.slice_rows >= 1 && config.queue_max >= 1);
        assert!(
            config.running_max + config.checkpoint_slots <= config.cache.slots,
            "each running sequence and each draft needs a slot"
        );
        assert!(config.context >= 2 && config.context <= config.cache.pages * PAGE_TOKENS);
        let mut slots = Pool::new(config.cache.slots);
        let checkpoints =
            (0..config.checkpoint_slots).map(|_| slots.take().expect("counted above")).collect();
        Self {
            pages: Pool::new(config.cache.pages),
            slots,
            checkpoints,
            cache: PrefixCache::new(config.remembered_tokens_max),
            queue: VecDeque::new(),
            running: Vec::new(),
            in_flight: None,
            state_ops: Vec::new(),
            effects: VecDeque::new(),
            outputs: VecDeque::new(),
            next_id: 0,
            next_ticket: 0,
            turn: 0,
            slice_sizer: SliceSizer::new(config.slice_rows, config.slice_seconds),
            multi_step_sizer: MultiStepSizer::new(config.multi_step),
            depth_chooser: DepthChooser::new(config.speculation),
            draft_seconds: Some(0.0),
            counts: Counts::default(),
            config,
        }
    }

    /// Accepts a request, or says why not.
    ///
    /// # Errors
    /// If the prompt is empty, too long or holds unknown tokens, a parameter is out of range, or the queue is
    /// full.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        self.check(&request)?;
        if self.queue.len() >= self.config.queue_max {
            return Err(SubmitError::QueueFull { waiting: self.queue.len() });
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        if let Some(grammar) = &request.grammar {
            self.effects.push_back(Effect::Compile { id, grammar: grammar.clone() });
        }
        self.queue.push_back(Sequence::new(id, request));
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        request.sampling.validate()?;
        let (prompt, context) = (request.prompt.len(), self.config.context);
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(SubmitError::ContextLength { prompt, context });
        }
        self.check_tokens("prompt", request.prompt.iter())?;
        request.sampling.validate_tokens(self.config.vocab_size.min(request.vocab_used))?;
        if let Some(value) = request.top_logprobs.filter(|&value| value > TOP_LOGPROBS_MAX) {
            return Err(SubmitError::TopLogprobs { value, max: TOP_LOGPROBS_MAX });
        }
        if let Some(thinking) = &request.thinking {
            self.check_tokens("forced end of thinking", thinking.forced_end.iter())?;
            self.check_tokens("separator after thinking", thinking.separator.iter())?;
            if thinking.forced_end.last() != Some(&thinking.end_id) {
                return Err(SubmitError::ThinkingEnd { end_id: thinking.end_id });
            }
        }
        Ok(())
    }

    fn check_tokens<'a>(
        &self,
        what: &'static str,
        tokens: impl Iterator<Item = &'a u32>,
    ) -> Result<(), SubmitError> {
        let vocab_size = self.config.vocab_size;
        match tokens.enumerate().find(|&(_, &token)| token as usize >= vocab_size) {
            Some((position, &token)) => {
                Err(SubmitError::Token { what, token, position, vocab_size })
            }
            None => Ok(()),
        }
    }

    /// Ends a request early. What its prefill has computed stays in the cache. Unknown or finished
    /// requests are ignored: the caller may have raced with their end.
    pub fn cancel(&mut self, id: RequestId) {
        self.end(id, Ending::Cancelled);
    }

    /// Ends a request now, or, if the device or a file works for it, when that is done.
    fn end(&mut self, id: RequestId, ending: Ending) {
        if let Some(i) = self.queue.iter().position(|s| s.id == id) {
            let sequence = self.queue.remove(i).expect("just found");
            self.conclude(sequence, ending);
        } else if let Some(i) = self.running.iter().position(|s| s.id == id) {
            let is_loading = matches!(self.running[i].state, State::Loading { .. });
            if is_loading || self.is_in_flight(id) {
                self.running[i].ending.get_or_insert(ending);
            } else {
                let sequence = self.running.remove(i);
                self.conclude(sequence, ending);
            }
        }
    }

    fn is_in_flight(&self, id: RequestId) -> bool {
        match &self.in_flight {
            None | Some(InFlight::Moves) => false,
            Some(InFlight::Batch(work)) => work.iter().any(|(flying, ..)| *flying == id),
            Some(InFlight::MultiStep { ids, .. } | InFlight::Drafts(ids)) => ids.contains(&id),
        }
    }

    /// Takes the result of [`Effect::Compile`]. A request that is gone is ignored.
    pub fn compiled(&mut self, id: RequestId, result: Result<Box<dyn Matcher>, String>) {
        match result {
            Err(error) => self.end(id, Ending::Failed(Failure::Grammar(error))),
            Ok(matcher) => {
                let mut all = self.queue.iter_mut().chain(&mut self.running);
                if let Some(sequence) = all.find(|s| s.id == id) {
                    sequence.structure = Structure::Ready { matcher, mask: None };
                }
            }
        }
    }

    /// Matchers whose masks the running step's logits will need. Whoever runs them beside the device gives
    /// them back with [`Engine::return_masks`] before [`Engine::complete`]; masks that nobody computes are
    /// computed then.
    pub fn mask_jobs(&mut self) -> Vec<MaskJob> {
        let Some(InFlight::Batch(work)) = &self.in_flight else { return vec![] };
        let ids: Vec<RequestId> =
            work.iter().filter(|(_, work, _)| work.outputs > 0).map(|&(id, ..)| id).collect();
        let mut jobs = vec![];
        for sequence in self.running.iter_mut().filter(|s| ids.contains(&s.id)) {
            let is_wanted = matches!(sequence.structure, Structure::Ready { mask: None, .. });
            if sequence.is_structured()
                && is_wanted
                && let Structure::Ready { matcher, .. } =
                    std::mem::replace(&mut sequence.structure, Structure::Lent)
            {
                jobs.push(MaskJob { id: sequence.id, matcher, mask: None });
            }
        }
        jobs
    }

    /// Takes matchers back.
    pub fn return_masks(&mut self, jobs: Vec<MaskJob>) {
        for MaskJob { id, matcher, mask } in jobs {
            if let Some(sequence) = self.running.iter_mut().find(|s| s.id == id) {
                sequence.structure = Structure::Ready { matcher, mask };
            }
        }
    }

    /// The next thing that happened.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next thing to be done besides steps.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
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
            saved: self.cache.files(),
            pages_used: self.pages.len() - self.pages.free(),
            pages: self.pages.len(),
            slots_used: self.slots.len() - self.slots.free() - self.config.checkpoint_slots,
            slots: self.slots.len() - self.config.checkpoint_slots,
        }
    }

    /// Rows of prompts that the next step may take. One cut's worth runs even if it is more.
    #[must_use]
    pub fn slice_rows(&self) -> usize {
        self.slice_sizer.rows()
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn index_of(&self, id: RequestId) -> usize {
        self.running.iter().position(|s| s.id == id).expect("a running request")
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket - 1)
    }

    /// Tells of a saved prefix from an earlier run. One that is known already is to be removed.
    pub fn add_file(&mut self, file: FileId, key: &crate::CacheKey, tokens: &[u32]) {
        let is_known = tokens.iter().all(|&token| (token as usize) < self.config.vocab_size);
        if !is_known || !self.cache.add_file(file, key, tokens) {
            self.effects.push_back(Effect::Remove { file });
        }
    }

    /// Takes the result of [`StateOp::Save`].
    pub fn saved(&mut self, ticket: Ticket, file: Option<FileId>) {
        self.counts.file_errors += u64::from(file.is_none());
        match file {
            // The cache was cleared while the file was being written.
            Some(file) if !self.cache.is_saving(ticket) => {
                self.effects.push_back(Effect::Remove { file });
            }
            file => self.cache.written(ticket, file),
        }
    }

    /// A saved prefix is no more, for age, room or want of memory.
    pub fn file_removed(&mut self, file: FileId) {
        self.cache.file_removed(file);
    }
}

/// What the engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Snapshots in the cache.
    pub snapshots: usize,
    /// Prefixes that are saved, wherever that is.
    pub saved: usize,
    /// KV pages held by sequences and snapshots.
    pub pages_used: usize,
    /// All KV pages.
    pub pages: usize,
    /// State slots held by sequences and snapshots.
    pub slots_used: usize,
    /// All state slots but those set apart for drafts.
    pub slots: usize,
}
