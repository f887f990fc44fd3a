//! State that outlives its sequence: kept, given up, saved to files.

use super::Engine;
use crate::prefix_cache::{CacheKey, Evicted, Snapshot};
use crate::sequence::{DeviceState, Sequence, State};
use crate::step::{Arithmetic, Effect, Save, StateOp};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::FreeState;

/// How many of the snapshots in memory give way when memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Half of them, rounded up.
    Half,
    /// All.
    All,
}

impl Engine {
    pub(super) fn take_slot(&mut self) -> usize {
        loop {
            if let Some(slot) = self.slots.take() {
                return slot;
            }
            assert!(self.evict_one(), "running sequences alone never use all slots");
        }
    }

    pub(super) fn take_page(&mut self) -> usize {
        loop {
            if let Some(page) = self.pages.take() {
                return page;
            }
            assert!(self.evict_one(), "admitted sequences have their pages reserved");
        }
    }

    /// Turns shared ownership of a page into a page of one's own: a copy, or, when making room for one has
    /// dropped all other owners, the page itself.
    pub(super) fn own_page(&mut self, page: usize) -> usize {
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
        let Some(Evicted { snapshot, save }) = self.cache.evict(self.config.file_tokens_min) else {
            return false;
        };
        self.counts.evictions += 1;
        if let Some((key, tokens)) = save {
            self.save(key, tokens, &snapshot);
        }
        self.release_parts(snapshot.slot, &snapshot.pages);
        true
    }

    /// Has a snapshot read out and saved.
    fn save(&mut self, key: CacheKey, tokens: Vec<u32>, snapshot: &Snapshot) {
        let ticket = self.ticket();
        self.cache.saving(ticket, &key, &tokens);
        let (slot, pages) = (snapshot.slot, snapshot.pages.clone());
        self.state_ops.push(StateOp::Save(Box::new(Save { ticket, key, tokens, slot, pages })));
    }

    /// Saves what is worth it and has no file yet: before the program ends. The next step does it.
    pub fn save_all(&mut self) {
        for (key, tokens, snapshot) in self.cache.unsaved(self.config.file_tokens_min) {
            self.save(key, tokens, &snapshot);
        }
    }

    /// Gives up every snapshot, saving none, and removes every file.
    pub fn forget(&mut self) {
        let (snapshots, files) = self.cache.clear();
        for snapshot in snapshots {
            self.release_parts(snapshot.slot, &snapshot.pages);
        }
        self.effects.extend(files.into_iter().map(|file| Effect::Remove { file }));
    }

    /// Gives up every snapshot in memory and saves none. Files stay.
    pub fn forget_memory(&mut self) {
        while let Some(Evicted { snapshot, .. }) = self.cache.evict(None) {
            self.release_parts(snapshot.slot, &snapshot.pages);
        }
    }

    /// Memory is short: gives up snapshots, the least recently used first, some to files, and has the device hand back the
    /// memory of all pages and slots that hold nothing. The next step does it. How many snapshots were given up.
    pub fn give_way(&mut self, share: Share) -> usize {
        let snapshots = match share {
            Share::Half => self.cache.len().div_ceil(2),
            Share::All => self.cache.len(),
        };
        let given_up = (0..snapshots).take_while(|_| self.evict_one()).count();
        let free = FreeState { pages: self.pages.free_ranges(), slots: self.slots.free_ranges() };
        if free != FreeState::default() {
            // Behind what reads state out that was just given up.
            self.state_ops.push(StateOp::GiveBack(free));
        }
        self.counts.gave_way += 1;
        given_up
    }

    /// Memory is short, and saved prefixes in host memory gave way for it. Of those that are no more,
    /// [`Engine::file_removed`] tells.
    pub fn host_gave_way(&mut self) {
        self.counts.gave_way += 1;
    }

    /// Gives up every snapshot in memory, for none of them can be trusted, and every move of state that was
    /// still to be made.
    pub(super) fn forget_state(&mut self) {
        self.forget_memory();
        for op in std::mem::take(&mut self.state_ops) {
            if let StateOp::Save(save) = op {
                self.cache.written(save.ticket, None);
            }
        }
    }

    pub(super) fn release_parts(&mut self, slot: usize, pages: &[usize]) {
        self.slots.release(slot);
        for &page in pages {
            self.pages.release(page);
        }
    }

    pub(super) fn release(&mut self, sequence: &mut Sequence) {
        match std::mem::replace(&mut sequence.state, State::None) {
            State::None => {}
            State::Loading { state, .. } | State::Here(state) => {
                self.release_parts(state.slot, &state.pages);
            }
        }
    }

    /// Copies the state of running sequence `i` into the cache, if a slot can be had for it.
    pub(super) fn take_snapshot(&mut self, i: usize) {
        let slot = match self.slots.take() {
            Some(slot) => slot,
            None if self.evict_one() => match self.slots.take() {
                Some(slot) => slot,
                None => return,
            },
            None => return,
        };
        let sequence = &self.running[i];
        let state = sequence.here().expect("a sequence with state");
        let pages = state.pages[..state.done.div_ceil(PAGE_TOKENS)].to_vec();
        for &page in &pages {
            self.pages.share(page);
        }
        self.state_ops.push(StateOp::CopySlot { from: state.slot, to: slot });
        let (tokens, provisional) = (state.done, state.provisional);
        let key = sequence.request.key.clone();
        let prefix = sequence.tokens[..tokens].to_vec();
        self.keep(&key, &prefix, Snapshot { slot, pages, tokens, provisional });
    }

    fn keep(&mut self, key: &CacheKey, prefix: &[u32], snapshot: Snapshot) {
        if let Err(snapshot) = self.cache.insert(key, prefix, snapshot) {
            self.release_parts(snapshot.slot, &snapshot.pages);
        }
    }

    /// Takes the state of a sequence that ends; it becomes a snapshot where that is exact, or allowed.
    pub(super) fn retire(&mut self, sequence: &mut Sequence) {
        let State::Here(state) = std::mem::replace(&mut sequence.state, State::None) else {
            return;
        };
        let exact = !state.provisional && self.is_exact(sequence, state.done);
        let DeviceState { slot, mut pages, done, .. } = state;
        if done == 0 || !(exact || self.config.fast_cache) {
            self.release_parts(slot, &pages);
            return;
        }
        for page in pages.split_off(done.div_ceil(PAGE_TOKENS)) {
            self.pages.release(page);
        }
        let prefix = sequence.tokens[..done].to_vec();
        let snapshot = Snapshot { slot, pages, tokens: done, provisional: !exact };
        self.keep(&sequence.request.key, &prefix, snapshot);
    }

    /// Whether the state after `done` tokens is what prefill of any prompt that goes on would make it.
    fn is_exact(&self, sequence: &Sequence, done: usize) -> bool {
        match self.config.arithmetic {
            Arithmetic::Uniform => true,
            // A prefill that stopped at a cut is exact; a state reached by decoding is not.
            Arithmetic::Split => {
                let cuts = self.config.rule.cuts(&sequence.request.prompt);
                done <= sequence.reuse.reused || cuts.iter().any(|cut| cut.position == done)
            }
        }
    }
}
