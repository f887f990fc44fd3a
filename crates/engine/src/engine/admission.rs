//! Admission: a waiting request gets its place and its state.

use super::{Engine, Failure, Output};
use crate::cuts::Cut;
use crate::prefix_cache::{Lookup, Saved};
use crate::request::FinishReason;
use crate::sequence::{DeviceState, Ending, Sequence, State, snapshot_positions};
use crate::step::{Arithmetic, Effect, Level, StateOp, Ticket};
use calla_model::shape::PAGE_TOKENS;

impl Engine {
    pub(super) fn admit(&mut self) {
        while self.running.len() < self.config.running_max {
            let Some(next) = self.queue.front() else { return };
            let context = self.config.context;
            let reserved: usize = self.running.iter().map(|s| s.pages_max(context)).sum();
            if reserved + next.pages_max(context) > self.pages.len() {
                return;
            }
            let mut sequence = self.queue.pop_front().expect("just seen");
            self.start(&mut sequence);
            self.counts.prompt_tokens += sequence.prompt_len() as u64;
            self.running.push(sequence);
        }
    }

    /// Gives a sequence its state: a copy of the deepest snapshot, or what is loaded from a file, or none of
    /// its tokens.
    fn start(&mut self, sequence: &mut Sequence) {
        let Lookup { snapshot, saved, reuse } = self.lookup(sequence);
        sequence.reuse = reuse;
        let mut pages = Vec::new();
        if let Some(snapshot) = &snapshot {
            // Held before anything is evicted to make room.
            for &page in &snapshot.pages {
                self.pages.share(page);
            }
            pages.clone_from(&snapshot.pages);
        }
        let slot = self.take_slot();
        if let Some(saved) = saved.filter(|saved| self.is_worth_loading(saved, reuse.reused)) {
            let state = DeviceState { slot, pages, done: saved.tokens, provisional: false };
            self.load(sequence, saved, state);
            return;
        }
        self.state_ops.push(match &snapshot {
            Some(snapshot) => StateOp::CopySlot { from: snapshot.slot, to: slot },
            None => StateOp::ClearSlot { slot },
        });
        if !reuse.reused.is_multiple_of(PAGE_TOKENS) {
            // The last page is partial and this sequence will write to it.
            let last = pages.last_mut().expect("a prefix with tokens has pages");
            *last = self.own_page(*last);
        }
        let provisional = reuse.provisional;
        self.begin(sequence, DeviceState { slot, pages, done: reuse.reused, provisional });
    }

    fn lookup(&mut self, sequence: &Sequence) -> Lookup {
        let rule = &self.config.rule;
        let only_at = match self.config.arithmetic {
            Arithmetic::Uniform => None,
            Arithmetic::Split => Some(rule.cuts(&sequence.tokens)),
        };
        self.cache.lookup(&sequence.request.key, &sequence.tokens, rule, |depth| {
            let is_cut =
                |cuts: &Vec<Cut>| cuts.binary_search_by_key(&depth, |c| c.position).is_ok();
            only_at.as_ref().is_none_or(is_cut)
        })
    }

    /// The sequence goes on from `state`.
    fn begin(&mut self, sequence: &mut Sequence, state: DeviceState) {
        let mut cuts = self.config.rule.cuts(&sequence.tokens);
        cuts.retain(|cut| cut.position > state.done);
        sequence.snapshots = snapshot_positions(
            &cuts,
            state.done,
            sequence.reuse.common,
            self.config.snapshot_interval,
        );
        sequence.cuts = cuts.into();
        self.counts.reused_tokens += state.done as u64;
        let (id, total) = (sequence.id, sequence.prompt_len());
        self.outputs.push_back(Output::Prefill { id, done: state.done, total });
        sequence.state = State::Here(state);
    }

    // Saved prefixes.

    fn is_worth_loading(&self, saved: &Saved, reused: usize) -> bool {
        self.config.file_tokens_min.is_some_and(|min| saved.tokens - reused >= min)
    }

    /// Has the state of the first `state.done` tokens read from where it is saved. `state.pages` are those of the deepest
    /// snapshot in memory: its full pages need not be read.
    fn load(&mut self, sequence: &mut Sequence, saved: Saved, mut state: DeviceState) {
        let first_page = sequence.reuse.reused / PAGE_TOKENS;
        for page in state.pages.split_off(first_page) {
            self.pages.release(page);
        }
        while state.pages.len() * PAGE_TOKENS < saved.tokens {
            let page = self.take_page();
            state.pages.push(page);
        }
        let ticket = self.ticket();
        self.effects.push_back(Effect::Load { ticket, file: saved.file, first_page });
        sequence.state = State::Loading { ticket, saved, state, first_page };
    }

    /// Takes the result of [`Effect::Load`]: where the prefix was read from. If it could not be (`None`) it is taken to be
    /// gone, and the request starts from what is in the device's memory. Says whether [`StateOp::Restore`] will ask for what
    /// was read.
    #[must_use = "what was read is to be held or dropped"]
    pub fn loaded(&mut self, ticket: Ticket, from: Option<Level>) -> bool {
        let is_it =
            |state: &State| matches!(state, State::Loading { ticket: t, .. } if *t == ticket);
        let Some(i) = self.running.iter().position(|s| is_it(&s.state)) else { return false };
        let mut sequence = self.running.remove(i);
        let State::Loading { saved, state, first_page, .. } =
            std::mem::replace(&mut sequence.state, State::None)
        else {
            unreachable!("just seen");
        };
        if let Some(level) = from {
            let pages = state.pages[first_page..].to_vec();
            self.state_ops.push(StateOp::Restore { ticket, slot: state.slot, pages });
            let reused = state.done;
            sequence.reuse.reused = reused;
            sequence.reuse.from = from;
            sequence.reuse.miss = saved.miss;
            match level {
                Level::Host => self.counts.host_tokens += reused as u64,
                Level::Disk => self.counts.loaded_tokens += reused as u64,
            }
            self.begin(&mut sequence, state);
            self.running.insert(i, sequence);
            // In memory too, so that the next turn need not read it again.
            self.take_snapshot(i);
        } else {
            self.counts.file_errors += 1;
            self.release_parts(state.slot, &state.pages);
            self.cache.file_removed(saved.file);
            if sequence.ending.is_none() {
                self.start(&mut sequence);
            }
            self.running.insert(i, sequence);
        }
        if let Some(ending) = self.running[i].ending.take() {
            let sequence = self.running.remove(i);
            self.conclude(sequence, ending);
        }
        from.is_some()
    }

    /// Ends a sequence before its reply does.
    pub(super) fn conclude(&mut self, sequence: Sequence, ending: Ending) {
        match ending {
            Ending::Cancelled => self.finish(sequence, FinishReason::Cancelled),
            Ending::Failed(failure) => self.fail_with(sequence, failure),
        }
    }

    /// Ends a sequence whose state is worth as much as that of any other.
    fn fail_with(&mut self, mut sequence: Sequence, failure: Failure) {
        self.retire(&mut sequence);
        self.report_failure(&sequence, failure);
    }
}
