//! Saved prefixes on two levels: in host memory, behind a device that has memory of its own, and in files.
//!
//! What is read out of the device goes to both at once, so that what lies in host memory can be dropped at any time. A
//! prefix is looked for in host memory first. The engine knows of one name for a prefix, wherever it lies, and hears that it
//! is no more when it lies nowhere.

use crate::driver::Events;
use crate::files::{FileJob, FileReply, Files, Listed};
use crate::pressure::PressureLevel;
use calla_engine::CacheKey;
use calla_engine::step::{FileId, Level, Save, Ticket};
use calla_model::shape::PAGE_TOKENS;
use calla_store::{Held, HostCache, Prefix, Sizes, Store};
use std::collections::{BTreeMap, VecDeque};

/// Where prefixes are saved besides the device's own memory.
#[derive(Default)]
pub struct CacheLevels {
    /// Bytes of host memory, for a device that has memory of its own or cannot hand back parts of it. 0: none.
    pub host_bytes: u64,
    /// Files.
    pub store: Option<Store>,
}

impl From<Option<Store>> for CacheLevels {
    /// Files alone, if any.
    fn from(store: Option<Store>) -> Self {
        Self { host_bytes: 0, store }
    }
}

/// What is saved on each level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedUse {
    /// Prefixes in host memory.
    pub host_prefixes: usize,
    /// Bytes of their state.
    pub host_bytes: u64,
    /// Prefixes that have a file.
    pub files: usize,
}

/// What the engine is to be told.
pub(crate) enum News {
    /// A save has ended.
    Saved(Ticket, Option<FileId>),
    /// A load has.
    Loaded(Ticket, Option<(Level, Held)>),
    /// A saved prefix is no more.
    Gone(FileId),
}

/// A prefix's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    None,
    /// It is about to be written.
    Queued,
    Written,
}

struct Place {
    key: CacheKey,
    tokens: Vec<u32>,
    disk: Disk,
    /// The save that ends when the file is written: host memory does not hold the prefix.
    waits: Option<Ticket>,
}

impl Place {
    fn prefix(&self) -> Prefix<'_> {
        prefix(&self.key, &self.tokens)
    }
}

fn prefix<'a>(key: &'a CacheKey, tokens: &'a [u32]) -> Prefix<'a> {
    Prefix { owner: &key.owner, name: &key.name, tokens }
}

/// State that the step has read out, until it is known that its moves did not fail.
struct ReadOut {
    ticket: Ticket,
    file: FileId,
    first_page: usize,
    /// Set if a file is to be written.
    to_disk: Option<Held>,
}

pub(crate) struct Saves {
    host: Option<HostCache>,
    files: Option<Files>,
    /// Everything that is saved.
    places: BTreeMap<FileId, Place>,
    /// How many of them have a file.
    written: usize,
    next: u64,
    read_out: Vec<ReadOut>,
    news: VecDeque<News>,
}

impl Saves {
    /// Opens the levels. Gives what files have from earlier runs.
    pub(crate) fn open(
        levels: CacheLevels,
        sizes: Sizes,
        events: Events,
    ) -> std::io::Result<(Self, Vec<Listed>)> {
        let host = (levels.host_bytes > 0).then(|| HostCache::new(sizes, levels.host_bytes));
        let (files, listed) = match levels.store {
            Some(store) => {
                let (files, listed) = Files::start(store, events)?;
                (Some(files), listed)
            }
            None => (None, vec![]),
        };
        let place = |listed: &Listed| {
            let (key, tokens) = (listed.key.clone(), listed.tokens.clone());
            (listed.file, Place { key, tokens, disk: Disk::Written, waits: None })
        };
        let places: BTreeMap<FileId, Place> = listed.iter().map(place).collect();
        let written = places.len();
        let (next, read_out, news) = (written as u64, vec![], VecDeque::new());
        Ok((Self { host, files, places, written, next, read_out, news }, listed))
    }

    /// Whether anything can be saved.
    pub(crate) fn is_on(&self) -> bool {
        self.host.is_some() || self.files.is_some()
    }

    /// Whether what is saved outlives the program.
    pub(crate) fn has_files(&self) -> bool {
        self.files.is_some()
    }

    /// Whether host memory is a level.
    pub(crate) fn has_host(&self) -> bool {
        self.host.is_some()
    }

    /// Whether a file is being read, written or deleted.
    pub(crate) fn is_busy(&self) -> bool {
        self.files.as_ref().is_some_and(Files::is_busy)
    }

    pub(crate) fn in_use(&self) -> SavedUse {
        let host = self.host.as_ref();
        SavedUse {
            host_prefixes: host.map_or(0, HostCache::len),
            host_bytes: host.map_or(0, HostCache::bytes),
            files: self.written,
        }
    }

    /// The next thing to tell the engine.
    pub(crate) fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// The first page of a prefix that some level lacks and could take; `None` if none takes any of it.
    pub(crate) fn first_page(&mut self, save: &Save) -> Option<usize> {
        let host = self.host.as_ref().filter(|host| host.may_hold(save.tokens.len()));
        let host = host.map(|host| host.pages_held(prefix(&save.key, &save.tokens)));
        let has_room = self.files.as_ref().map(Files::has_room);
        if has_room == Some(false) {
            let tokens = save.tokens.len();
            tracing::warn!("the disk is too slow: a prefix of {tokens} tokens is not written");
        }
        let disk = (has_room == Some(true)).then(|| self.pages_in_files(save));
        host.into_iter().chain(disk).min()
    }

    /// Full pages of a prefix that files have, or will have.
    fn pages_in_files(&self, save: &Save) -> usize {
        let common = |place: &Place| {
            if place.disk == Disk::None || place.key != save.key {
                return 0;
            }
            // Only whole pages are shared.
            let whole = place.tokens.len() / PAGE_TOKENS * PAGE_TOKENS;
            place.tokens[..whole].iter().zip(&save.tokens).take_while(|(a, b)| a == b).count()
        };
        self.places.values().map(common).max().unwrap_or(0) / PAGE_TOKENS
    }

    /// Takes state that a step has read out, with the pages from `first_page` on.
    pub(crate) fn take(&mut self, save: &Save, first_page: usize, state: Held) {
        let file = FileId(self.next);
        self.next += 1;
        if let Some(host) = &mut self.host {
            match host.put(file.0, prefix(&save.key, &save.tokens), first_page, &state) {
                Ok(dropped) => self.dropped_from_host(&dropped),
                Err(error) => tracing::debug!("not kept in host memory: {error}"),
            }
        }
        let files = self.files.as_mut().filter(|files| files.has_room());
        let to_disk = files.map(|files| {
            files.reserve(&state);
            state
        });
        let disk = if to_disk.is_some() { Disk::Queued } else { Disk::None };
        let (key, tokens) = (save.key.clone(), save.tokens.clone());
        self.places.insert(file, Place { key, tokens, disk, waits: None });
        self.read_out.push(ReadOut { ticket: save.ticket, file, first_page, to_disk });
    }

    /// Says that a save came to nothing.
    pub(crate) fn lost(&mut self, ticket: Ticket) {
        self.news.push_back(News::Saved(ticket, None));
    }

    /// The step's moves were made: what it read out is good.
    pub(crate) fn commit(&mut self) {
        for ReadOut { ticket, file, first_page, to_disk } in std::mem::take(&mut self.read_out) {
            let in_host = self.in_host(file);
            if in_host {
                self.news.push_back(News::Saved(ticket, Some(file)));
            }
            if let (Some(state), Some(files), Some(place)) =
                (to_disk, &mut self.files, self.places.get_mut(&file))
            {
                place.waits = (!in_host).then_some(ticket);
                let (key, tokens) = (place.key.clone(), place.tokens.clone());
                files.start_job(FileJob::Save { file, key, tokens, first_page, state });
            } else if !in_host {
                // It did not fit, or has given way to one that was read out in the same step.
                self.places.remove(&file);
                self.lost(ticket);
            }
        }
    }

    /// Some move of the step failed: nothing that it read out can be trusted.
    pub(crate) fn roll_back(&mut self) {
        for ReadOut { ticket, file, to_disk, .. } in std::mem::take(&mut self.read_out) {
            if let Some(host) = &mut self.host {
                host.remove(file.0);
            }
            if let (Some(files), Some(state)) = (&mut self.files, to_disk) {
                files.release(&state);
            }
            self.places.remove(&file);
            self.lost(ticket);
        }
    }

    /// Reads a prefix: at once if it lies in host memory.
    pub(crate) fn load(&mut self, ticket: Ticket, file: FileId, first_page: usize) {
        let held = self.host.as_mut().and_then(|host| host.get(file.0, first_page));
        if let Some(state) = held {
            self.news.push_back(News::Loaded(ticket, Some((Level::Host, state))));
            return;
        }
        let has_file = self.has_file(file);
        match self.files.as_mut().filter(|_| has_file) {
            Some(files) => files.start_job(FileJob::Load { ticket, file, first_page }),
            None => self.news.push_back(News::Loaded(ticket, None)),
        }
    }

    /// The engine has forgotten a prefix.
    pub(crate) fn remove(&mut self, file: FileId) {
        if let Some(host) = &mut self.host {
            host.remove(file.0);
        }
        let had_file = self.has_file(file);
        self.set_disk(file, Disk::None);
        self.places.remove(&file);
        if let Some(files) = self.files.as_mut().filter(|_| had_file) {
            files.start_job(FileJob::Remove { file });
        }
    }

    /// Takes what the thread of the files has done.
    pub(crate) fn answered(&mut self, reply: FileReply) {
        let Some(files) = &mut self.files else { return };
        files.answered(&reply);
        match reply {
            FileReply::Saved { file, is_written, .. } => {
                let disk = if is_written { Disk::Written } else { Disk::None };
                self.set_disk(file, disk);
                let waits = self.places.get_mut(&file).and_then(|place| place.waits.take());
                if let Some(ticket) = waits {
                    self.news.push_back(News::Saved(ticket, is_written.then_some(file)));
                }
                self.forget_if_nowhere(file, waits.is_none());
            }
            FileReply::Loaded { ticket, file, first_page, state } => {
                match &state {
                    Some(state) => self.keep_in_host(file, first_page, state),
                    // The engine takes it to be gone, whether or not the store does.
                    None => {
                        self.set_disk(file, Disk::None);
                        self.forget_if_nowhere(file, false);
                    }
                }
                let state = state.map(|state| (Level::Disk, state));
                self.news.push_back(News::Loaded(ticket, state));
            }
            FileReply::Deleted => {}
            FileReply::Removed { files } => {
                for file in files {
                    self.set_disk(file, Disk::None);
                    self.forget_if_nowhere(file, true);
                }
            }
        }
    }

    /// Keeps what was read from a file in host memory too, if the pages before it are there.
    fn keep_in_host(&mut self, file: FileId, first_page: usize, state: &Held) {
        let (Some(host), Some(place)) = (&mut self.host, self.places.get(&file)) else { return };
        if host.contains(file.0) {
            return;
        }
        // Pages that the device had were not read: then the level may lack them.
        if let Ok(dropped) = host.put(file.0, place.prefix(), first_page, state) {
            self.dropped_from_host(&dropped);
        }
    }

    /// The system is short of memory: half or all of what lies in host memory is dropped. How many prefixes were.
    pub(crate) fn give_way(&mut self, level: PressureLevel) -> usize {
        let Some(host) = &mut self.host else { return 0 };
        let dropped = host.shrink(match level {
            PressureLevel::Warning => host.bytes() / 2,
            PressureLevel::Critical => 0,
        });
        self.dropped_from_host(&dropped);
        if !dropped.is_empty() {
            give_back_freed();
        }
        dropped.len()
    }

    /// Whether a prefix has a file, or will have.
    fn has_file(&self, file: FileId) -> bool {
        self.places.get(&file).is_some_and(|place| place.disk != Disk::None)
    }

    fn in_host(&self, file: FileId) -> bool {
        self.host.as_ref().is_some_and(|host| host.contains(file.0))
    }

    fn dropped_from_host(&mut self, dropped: &[u64]) {
        for &id in dropped {
            // Of what the running step has read out, the engine does not know yet.
            let is_known = self.read_out.iter().all(|read_out| read_out.file != FileId(id));
            self.forget_if_nowhere(FileId(id), is_known);
        }
    }

    fn set_disk(&mut self, file: FileId, disk: Disk) {
        let Some(place) = self.places.get_mut(&file) else { return };
        self.written += usize::from(disk == Disk::Written);
        self.written -= usize::from(place.disk == Disk::Written);
        place.disk = disk;
    }

    /// Forgets a prefix that no level has any more, and has the engine told if it knows of it.
    fn forget_if_nowhere(&mut self, file: FileId, is_known: bool) {
        if self.has_file(file) || self.in_host(file) {
            return;
        }
        if self.places.remove(&file).is_some() && is_known {
            self.news.push_back(News::Gone(file));
        }
    }
}

/// Has the allocator hand back what was just freed. KV pages are smaller than what it maps by itself, so that it would
/// keep them.
fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_os = "macos")]
    {
        unsafe extern "C" {
            /// malloc/malloc.h, from macOS 10.7 on.
            fn malloc_zone_pressure_relief(zone: *mut std::ffi::c_void, goal: usize) -> usize;
        }
        // SAFETY: no zone means all of them, no goal as much as can be; it touches free memory alone.
        unsafe {
            malloc_zone_pressure_relief(std::ptr::null_mut(), 0);
        }
    }
}

#[cfg(test)]
mod tests;
