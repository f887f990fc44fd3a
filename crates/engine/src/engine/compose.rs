//! Composition of a step: which rows of which sequences run together.

use super::{Engine, InFlight};
use crate::request::RequestId;
use crate::sequence::Work;
use crate::step::{Run, Step};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{Batch, Draft, Drafts, Span, SpanKind};

impl Engine {
    /// What to run next; `None` when there is nothing to do, or nothing before some effect is done.
    ///
    /// # Panics
    /// If the step before has not been completed.
    pub fn next_step(&mut self) -> Option<Step> {
        assert!(self.in_flight.is_none(), "one step at a time");
        self.admit();
        let (run, in_flight) = self.compose_run();
        let state = std::mem::take(&mut self.state_ops);
        if state.is_empty() && run == Run::Nothing {
            return None;
        }
        self.in_flight = Some(in_flight);
        Some(Step { state, run })
    }

    fn compose_run(&mut self) -> (Run, InFlight) {
        let drafts = self.compose_drafts();
        if !drafts.is_empty() {
            let (ids, drafts) = drafts.into_iter().unzip();
            let drafts = Drafts::new(drafts, self.config.vocab_size, self.config.cache)
                .expect("the engine keeps what drafts prove");
            return (Run::Drafts(drafts), InFlight::Drafts(ids));
        }
        if let Some(steps) = self.compose_multi_step() {
            return steps;
        }
        let work = self.compose();
        if work.is_empty() {
            return (Run::Nothing, InFlight::Moves);
        }
        let work = self.with_checkpoints(work);
        (Run::Batch(self.batch(&work, 0)), InFlight::Batch(work))
    }

    /// Tokens to draft for each decoding sequence.
    pub(super) fn draft_depth(&self) -> usize {
        let decoding = self.running.iter().filter(|s| s.is_decoding()).count();
        let depth = self.depth_chooser.depth(decoding);
        depth.min(self.checkpoints.len().checked_div(decoding).unwrap_or(0))
    }

    /// Drafts for every decoding sequence that has not been drafted for since its last token.
    fn compose_drafts(&mut self) -> Vec<(RequestId, Draft)> {
        let depth = self.draft_depth();
        let mut drafts = vec![];
        for i in 0..self.running.len() {
            let sequence = &self.running[i];
            if depth == 0 || sequence.drafted || !sequence.is_decoding() {
                continue;
            }
            let state = sequence.here().expect("it decodes");
            let (slot, position) = (state.slot, state.done);
            // Tokens after the pending one that may still come.
            let room =
                sequence.tokens_max(self.config.context).saturating_sub(sequence.tokens.len());
            let depth = depth.min(room);
            self.running[i].drafted = true;
            // Forced tokens wait: there is no state before the last of them to draft from.
            if self.running[i].tokens.len() != position + 1 || depth == 0 {
                continue;
            }
            self.extend_pages(i, position + 1 + depth);
            let sequence = &self.running[i];
            let pages = &sequence.here().expect("it decodes").pages;
            drafts.push((
                sequence.id,
                Draft {
                    token: sequence.tokens[position],
                    position,
                    slot,
                    pages: pages[..(position + depth).div_ceil(PAGE_TOKENS)].to_vec(),
                    depth,
                    vocab_used: sequence.request.vocab_used.clamp(1, self.config.vocab_size),
                },
            ));
        }
        drafts
    }

    /// The rows of every decoding sequence, then slices of prompts in turn.
    fn compose(&mut self) -> Vec<(RequestId, Work)> {
        let decoding = self.running.iter().filter(|s| s.is_decoding());
        let mut work: Vec<(RequestId, Work)> =
            decoding.filter_map(|s| Some((s.id, s.next_work(1)?))).collect();
        let mut rows_left = self.slice_sizer.rows();
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
            let Some(next) = sequence.next_work(rows_left) else { continue };
            rows_left = rows_left.saturating_sub(next.rows());
            work.push((sequence.id, next));
            self.turn = at + 1;
        }
        if count > 0 {
            self.turn %= count;
        }
        work
    }

    /// Gives each draft a slot for the state before it.
    fn with_checkpoints(
        &mut self,
        work: Vec<(RequestId, Work)>,
    ) -> Vec<(RequestId, Work, Vec<usize>)> {
        let mut all = Vec::with_capacity(work.len());
        for (id, work) in work {
            let drafts = self.running[self.index_of(id)].drafts.len();
            let slots = self.checkpoints.split_off(self.checkpoints.len() - drafts);
            all.push((id, work, slots));
        }
        all
    }

    /// The rows of `work`, and pages for `ahead` tokens behind each sequence's.
    pub(super) fn batch(&mut self, work: &[(RequestId, Work, Vec<usize>)], ahead: usize) -> Batch {
        let (mut tokens, mut spans, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for (id, work, checkpoints) in work {
            let i = self.index_of(*id);
            self.extend_pages(i, work.end + ahead);
            let sequence = &self.running[i];
            let state = sequence.here().expect("only sequences here have work");
            let start = tokens.len();
            let known = sequence.tokens.len().min(work.end);
            tokens.extend_from_slice(&sequence.tokens[work.start..known]);
            tokens.extend_from_slice(&sequence.drafts[..work.end - known]);
            let rows = start..tokens.len();
            outputs.extend(rows.end - work.outputs..rows.end);
            spans.push(Span {
                kind: if sequence.in_prefill() { SpanKind::Prefill } else { SpanKind::Decode },
                rows,
                position: work.start,
                slot: state.slot,
                checkpoints: checkpoints.clone(),
                cuts: sequence.cuts_before(work.end).collect(),
                pages: state.pages[..(work.end + ahead).div_ceil(PAGE_TOKENS)].to_vec(),
            });
        }
        Batch::new(tokens, spans, outputs, self.config.vocab_size, self.config.cache)
            .expect("the engine keeps what a batch proves")
    }

    /// Gives running sequence `i` pages for its first `end` tokens.
    fn extend_pages(&mut self, i: usize, end: usize) {
        while self.running[i].device().pages.len() * PAGE_TOKENS < end {
            let page = self.take_page();
            self.running[i].device().pages.push(page);
        }
    }
}
