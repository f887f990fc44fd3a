//! Files of saved prefixes, as a toy: slow, forgetful, and failing at random.

use crate::random::Random;
use crate::toy::{State, Toy};
use calla_engine::CacheKey;
use calla_engine::Engine;
use calla_engine::step::{FileId, Level, Save, Ticket};
use std::collections::BTreeMap;

struct File {
    key: CacheKey,
    tokens: Vec<u32>,
    state: State,
}

#[derive(Default)]
pub(crate) struct Files {
    files: BTreeMap<FileId, File>,
    loads: Vec<(Ticket, FileId, usize)>,
    saves: Vec<(Box<Save>, State)>,
    next: u64,
    pub(crate) errors: usize,
}

impl Files {
    pub(crate) fn load(&mut self, ticket: Ticket, file: FileId, first_page: usize) {
        self.loads.push((ticket, file, first_page));
    }

    pub(crate) fn remove(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.loads.is_empty() || !self.saves.is_empty()
    }

    /// Takes what the device has read out. A step that failed before that has lost it.
    pub(crate) fn collect(&mut self, toy: &mut Toy) {
        self.saves.append(&mut toy.read_out);
    }

    /// Does some of what was asked for, some of it in vain.
    pub(crate) fn work(&mut self, random: &mut Random, engine: &mut Engine, toy: &mut Toy) {
        if !self.saves.is_empty() && random.one_in(2) {
            let (save, state) = self.saves.swap_remove(random.below(self.saves.len()));
            if random.one_in(6) {
                self.errors += 1;
                engine.saved(save.ticket, None);
            } else {
                let id = FileId(self.next);
                self.next += 1;
                let Save { ticket, key, tokens, .. } = *save;
                self.files.insert(id, File { key, tokens, state });
                engine.saved(ticket, Some(id));
            }
        }
        if !self.loads.is_empty() && random.one_in(2) {
            let (ticket, id, first_page) = self.loads.swap_remove(random.below(self.loads.len()));
            if random.one_in(4) {
                // Damaged: it is found out and removed.
                self.files.remove(&id);
            }
            match self.files.get(&id) {
                Some(file) => {
                    let State { slot, pages } = file.state.clone();
                    let state = State { slot, pages: pages[first_page..].to_vec() };
                    if engine.loaded(ticket, Some(Level::Disk)) {
                        toy.loaded.insert(ticket, state);
                    }
                }
                None => {
                    self.errors += 1;
                    assert!(!engine.loaded(ticket, None), "nothing was read");
                }
            }
        }
        if !self.files.is_empty() && random.one_in(50) {
            let oldest = *self.files.keys().next().expect("one at least");
            self.files.remove(&oldest);
            engine.file_removed(oldest);
        }
    }

    /// Tells a new engine of what an earlier one has left.
    pub(crate) fn announce(&self, engine: &mut Engine) {
        for (&id, file) in &self.files {
            engine.add_file(id, &file.key, &file.tokens);
        }
    }

    /// Forgets what was under way, as a program that ends.
    pub(crate) fn interrupt(&mut self) {
        self.loads.clear();
        self.saves.clear();
    }
}
