//! A toy hybrid backend: hashes instead of a network, with a recurrent state and paged keys and values.
//!
//! A row's result depends on every token before it (through the state and through every KV page it reads),
//! on nothing else, and, in split arithmetic, on whether it was computed by prefill from the last cut or by
//! decoding. So a wrong page, slot, position, cut or checkpoint changes the logits.

use calla_engine::step::{Arithmetic, Outcome, Run, StateOp, Step, StepFailure, Ticket};
use calla_engine::{CutRule, EngineConfig, Speculation};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::sample::{Allowed, History, argmax, choose};
use calla_ops::{Batch, CacheSize, Draft, MultiStep, MultiStepLimits, Rows, Span, SpanKind};
use calla_ops::{RowSampler, StepError};
use std::collections::HashMap;

pub(crate) const VOCAB: usize = 48;
/// Tokens 0 and 1 open turns.
pub(crate) const MARKERS: [u32; 2] = [0, 1];
/// Token 2 ends a reply.
pub(crate) const STOP: u32 = 2;
/// A token that some requests ban.
pub(crate) const BANNED: u32 = 11;
/// What the toy can do without the host.
pub(crate) const LIMITS: MultiStepLimits = MultiStepLimits { steps_max: 16, top_k_max: 20 };
/// Token 3 ends thinking.
pub(crate) const THINK_END: u32 = 3;

/// An engine's settings for one request at a time, whose slices end at the next cut, without snapshots on the way, drafts
/// and files.
pub(crate) fn one_at_a_time(
    cache: CacheSize,
    context: usize,
    arithmetic: Arithmetic,
) -> EngineConfig {
    EngineConfig {
        cache,
        vocab_size: VOCAB,
        context,
        running_max: 1,
        queue_max: 1,
        slice_rows: 1,
        slice_seconds: None,
        rule: CutRule::new(MARKERS.to_vec()),
        arithmetic,
        fast_cache: false,
        snapshot_interval: 1 << 20,
        remembered_tokens_max: 0,
        speculation: Speculation::Off,
        checkpoint_slots: 0,
        multi_step: None,
        file_tokens_min: None,
    }
}

pub(crate) struct Toy {
    size: CacheSize,
    arithmetic: Arithmetic,
    /// Per slot: the state, as of all tokens seen.
    slots: Vec<u64>,
    /// Per token place of the pool: what attention would read.
    kv: Vec<u64>,
    /// State that was read from files and waits to be put back.
    pub(crate) loaded: HashMap<Ticket, State>,
    /// State that was read out and waits to be written.
    pub(crate) read_out: Vec<(Box<calla_engine::step::Save>, State)>,
    /// Times that free state was given back.
    pub(crate) given_back: u64,
}

/// State in a file.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) slot: u64,
    pub(crate) pages: Vec<Vec<u64>>,
}

/// What goes wrong with a step.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// The run fails after state was moved.
    Run,
    /// Moving state fails.
    State,
    /// One row's logits are no numbers, from some step on.
    Noise,
}

impl Toy {
    pub(crate) fn new(size: CacheSize, arithmetic: Arithmetic) -> Self {
        // Poison, so that reading what was never written shows.
        let kv = (0..size.pages * PAGE_TOKENS).map(|i| mix(0xdead, i as u64)).collect();
        let slots = vec![0xbad; size.slots];
        Self {
            size,
            arithmetic,
            slots,
            kv,
            loaded: HashMap::new(),
            read_out: vec![],
            given_back: 0,
        }
    }

    pub(crate) fn run(&mut self, step: &Step, fault: Fault) -> Result<Outcome, StepFailure> {
        let error = || StepError { device: "toy", reason: "injected".into() };
        if fault == Fault::State {
            // Nothing that the device holds is what it was.
            self.slots.iter_mut().chain(&mut self.kv).for_each(|word| *word = mix(*word, 1));
            self.loaded.clear();
            return Err(StepFailure::State(error()));
        }
        for op in &step.state {
            self.move_state(op);
        }
        match &step.run {
            Run::Nothing => Ok(Outcome::Moved),
            _ if fault == Fault::Run => Err(StepFailure::Run(error())),
            Run::Batch(batch) => {
                let mut logits = self.forward(batch);
                if fault == Fault::Noise && logits.rows() > 0 {
                    logits.row_mut(0)[5] = f32::NAN;
                }
                Ok(Outcome::Logits(logits))
            }
            Run::MultiStep(steps) => Ok(Outcome::Tokens(self.multi_step(steps, fault))),
            Run::Drafts(drafts) => Ok(Outcome::Drafts(
                drafts.as_slice().iter().map(|draft| self.draft(draft)).collect(),
            )),
        }
    }

    fn move_state(&mut self, op: &StateOp) {
        match op {
            StateOp::ClearSlot { slot } => self.slots[*slot] = 0,
            StateOp::CopySlot { from, to } => self.slots[*to] = self.slots[*from],
            StateOp::CopyPage { from, to } => {
                let from = from * PAGE_TOKENS;
                self.kv.copy_within(from..from + PAGE_TOKENS, to * PAGE_TOKENS);
            }
            StateOp::Save(save) => {
                let page = |&page: &usize| self.kv[page * PAGE_TOKENS..][..PAGE_TOKENS].to_vec();
                let pages = save.pages.iter().map(page).collect();
                self.read_out.push((save.clone(), State { slot: self.slots[save.slot], pages }));
            }
            StateOp::Restore { ticket, slot, pages } => {
                let state = self.loaded.remove(ticket).expect("what was loaded is restored once");
                self.slots[*slot] = state.slot;
                assert_eq!(state.pages.len(), pages.len());
                for (page, words) in pages.iter().zip(&state.pages) {
                    self.kv[page * PAGE_TOKENS..][..PAGE_TOKENS].copy_from_slice(words);
                }
            }
            StateOp::GiveBack(free) => {
                // Poison once more.
                self.given_back += 1;
                for slot in free.slots.iter().cloned().flatten() {
                    self.slots[slot] = mix(self.slots[slot], 0xbad);
                }
                for page in free.pages.iter().cloned().flatten() {
                    let words = &mut self.kv[page * PAGE_TOKENS..][..PAGE_TOKENS];
                    words.iter_mut().for_each(|word| *word = mix(*word, 0xdead));
                }
            }
        }
    }

    fn forward(&mut self, batch: &Batch) -> Rows {
        let mut results = vec![0; batch.rows()];
        for span in batch.spans() {
            self.span(span, batch.tokens(), &mut results);
        }
        let logits = batch.outputs().iter().flat_map(|&row| logits(results[row]));
        Rows::from_vec(VOCAB, logits.collect())
    }

    /// Steps one after the other, as the host would ask for them; of a row of noise its first tokens.
    fn multi_step(&mut self, run: &MultiStep, fault: Fault) -> Vec<Vec<u32>> {
        let MultiStep { batch, samplers, vocab_used, steps } = run;
        assert!((1..=LIMITS.steps_max).contains(steps) && samplers.len() == batch.rows());
        assert!(batch.outputs().iter().copied().eq(0..batch.rows()), "all rows are outputs");
        assert!(samplers.iter().all(|row| LIMITS.can_sample(&row.sampling)));
        let mut tokens = vec![vec![]; samplers.len()];
        let mut next = batch.clone();
        for step in 0..*steps {
            let results = self.forward(&next);
            for (row, (sampler, tokens)) in samplers.iter().zip(&mut tokens).enumerate() {
                tokens.push(chosen(results.row(row), *vocab_used, sampler, step));
            }
            if step + 1 < *steps {
                next = after(&next, tokens.iter().filter_map(|of_row| of_row.last()), self.size);
            }
        }
        if fault == Fault::Noise {
            tokens[0].truncate(steps / 2);
            let slot = &mut self.slots[batch.spans()[0].slot];
            *slot = mix(*slot, 1);
        }
        tokens
    }

    fn span(&mut self, span: &Span, tokens: &[u32], results: &mut [u64]) {
        let mut state = self.slots[span.slot];
        // In split arithmetic every row of a chunk is computed from the state at its start.
        let (mut chunk_start, mut chunk_rows) = (state, 0_u64);
        let mut chunk_tokens = 0_u64;
        let mut first_rows = span.chunks().map(|chunk| chunk.start).peekable();
        let mut checkpoints = span.checkpoints.iter();
        for row in span.rows.clone() {
            let token = u64::from(tokens[row]);
            let split = self.arithmetic == Arithmetic::Split;
            state = match span.kind {
                SpanKind::Prefill if split => {
                    if first_rows.next_if_eq(&row).is_some() {
                        (chunk_start, chunk_rows, chunk_tokens) = (state, 0, 0);
                    }
                    chunk_rows += 1;
                    chunk_tokens = mix(chunk_tokens, token);
                    mix(mix(chunk_start, chunk_rows), chunk_tokens)
                }
                SpanKind::Decode if split => mix(mix(state, 0xdec0de), token),
                _ => mix(state, token),
            };
            let position = span.position_of(row);
            self.kv[span.kv_index(position)] = mix(state, position as u64);
            results[row] = (0..=position).fold(state, |sum, p| mix(sum, self.kv[span.kv_index(p)]));
            if let Some(&checkpoint) = checkpoints.next() {
                self.slots[checkpoint] = state;
            }
        }
        self.slots[span.slot] = state;
    }

    /// Guesses: what greedy decoding would choose, but for a mistake in four.
    fn draft(&self, draft: &Draft) -> Vec<u32> {
        let place = |p: usize| draft.pages[p / PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS;
        let mut state = self.slots[draft.slot];
        let mut sum_before: Vec<u64> = (0..draft.position).map(|p| self.kv[place(p)]).collect();
        let mut token = draft.token;
        let mut guesses = vec![];
        for position in draft.position..draft.position + draft.depth {
            if self.arithmetic == Arithmetic::Split {
                state = mix(state, 0xdec0de);
            }
            state = mix(state, u64::from(token));
            sum_before.push(mix(state, position as u64));
            let result = sum_before.iter().fold(state, |sum, &kv| mix(sum, kv));
            let logits: Vec<f32> = logits(result).take(draft.vocab_used.min(VOCAB)).collect();
            token = argmax(&logits);
            if result.is_multiple_of(4) {
                token = (token + 1) % VOCAB as u32;
            }
            guesses.push(token);
        }
        guesses
    }
}

/// The token of a row in step `step`.
fn chosen(logits: &[f32], vocab_used: usize, sampler: &RowSampler, step: usize) -> u32 {
    let mut history = History::default();
    (0..sampler.generated + step as u64).for_each(|_| history.push(0));
    choose(logits, vocab_used, &sampler.sampling, &history, Allowed::all()).expect("numbers")
}

/// The decode step that feeds `tokens` after `batch`.
fn after<'a>(batch: &Batch, tokens: impl Iterator<Item = &'a u32>, size: CacheSize) -> Batch {
    let spans = batch.spans().iter().map(|span| {
        assert!(span.kind == SpanKind::Decode && span.rows.len() == 1, "decodes of one row");
        Span { position: span.position + 1, ..span.clone() }
    });
    let outputs = batch.outputs().to_vec();
    Batch::new(tokens.copied().collect(), spans.collect(), outputs, VOCAB, size)
        .expect("pages of all steps are there from the start")
}

fn logits(result: u64) -> impl Iterator<Item = f32> {
    (0..VOCAB as u64).map(move |token| (mix(result, token) >> 40) as f32 / (1 << 20) as f32)
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
