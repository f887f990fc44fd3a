//! The disk cache: saved prefixes, read and written on a thread of its own.

use crate::device::StateBytes;
use crate::driver::{Event, Events};
use calla_engine::CacheKey;
use calla_engine::step::{FileId, Save, Ticket};
use calla_model::shape::PAGE_TOKENS;
use calla_store::{Loaded, Put, Store, StoreError, StoredId};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// State that waits to be written takes at most so many bytes; what comes on top is not saved.
const QUEUE_BYTES_MAX: usize = 1 << 30;

/// What the thread is to do.
pub(crate) enum FileJob {
    Save { save: Save, first_page: usize, state: StateBytes },
    Load { ticket: Ticket, file: FileId, first_page: usize },
    Remove { file: FileId },
}

/// What the thread has done.
pub(crate) enum FileReply {
    /// `bytes` were taken off the queue.
    Saved {
        ticket: Ticket,
        file: Option<FileId>,
        bytes: usize,
    },
    Loaded {
        ticket: Ticket,
        state: Option<StateBytes>,
    },
    /// An answer to [`FileJob::Remove`].
    Deleted,
    /// Files that are no more, for age, room or damage.
    Removed {
        files: Vec<FileId>,
    },
}

/// The thread; it ends with this value.
pub(crate) struct Files {
    /// `None` only while this value is dropped.
    jobs: Option<Sender<FileJob>>,
    thread: Option<JoinHandle<()>>,
    /// Jobs that are not answered.
    busy: usize,
    queued_bytes: usize,
    /// Prefixes that are in files or about to be.
    prefixes: HashMap<Prefix, (CacheKey, Vec<u32>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Prefix {
    File(FileId),
    Queued(Ticket),
}

/// Saved prefixes of earlier runs.
pub(crate) fn listed(store: &Store) -> Vec<(FileId, CacheKey, Vec<u32>)> {
    let entries = store.stored().iter().map(|stored| {
        let key = CacheKey { owner: stored.owner.clone(), name: stored.name.clone() };
        (FileId(stored.id.0), key, stored.tokens.clone())
    });
    entries.collect()
}

impl Files {
    /// Starts the thread; `listed` is what [`listed`] says of the store.
    pub(crate) fn start(
        store: Store,
        listed: Vec<(FileId, CacheKey, Vec<u32>)>,
        events: Events,
    ) -> std::io::Result<Self> {
        let entries = listed.into_iter();
        let prefixes = entries.map(|(id, key, tokens)| (Prefix::File(id), (key, tokens))).collect();
        let (jobs, queue) = channel();
        let worker = Worker { store, events };
        let thread =
            std::thread::Builder::new().name("calla-files".into()).spawn(|| worker.run(queue))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), busy: 0, queued_bytes: 0, prefixes })
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// The first page of a prefix that no file has, if there is room in the queue.
    pub(crate) fn first_unsaved_page(&self, save: &Save) -> Option<usize> {
        if self.queued_bytes >= QUEUE_BYTES_MAX {
            tracing::warn!(
                "the disk is too slow: a prefix of {} tokens is not saved",
                save.tokens.len()
            );
            return None;
        }
        let common = |(key, tokens): &(CacheKey, Vec<u32>)| {
            if *key != save.key {
                return 0;
            }
            // Only whole pages are shared.
            let whole = tokens.len() / PAGE_TOKENS * PAGE_TOKENS;
            tokens[..whole].iter().zip(&save.tokens).take_while(|(a, b)| a == b).count()
        };
        Some(self.prefixes.values().map(common).max().unwrap_or(0) / PAGE_TOKENS)
    }

    pub(crate) fn start_job(&mut self, job: FileJob) {
        if let FileJob::Save { save, state, .. } = &job {
            self.queued_bytes += state.bytes();
            let prefix = (save.key.clone(), save.tokens.clone());
            self.prefixes.insert(Prefix::Queued(save.ticket), prefix);
        }
        if let FileJob::Remove { file } = &job {
            self.prefixes.remove(&Prefix::File(*file));
        }
        self.busy += 1;
        // The thread answers every job and ends only after this value.
        let jobs = self.jobs.as_ref().expect("taken by `drop` only");
        jobs.send(job).expect("the thread of the disk cache runs");
    }

    /// Keeps the books when the thread has answered.
    pub(crate) fn answered(&mut self, reply: &FileReply) {
        match reply {
            FileReply::Saved { ticket, file, bytes } => {
                self.busy -= 1;
                self.queued_bytes -= bytes;
                let prefix = self.prefixes.remove(&Prefix::Queued(*ticket));
                if let (Some(file), Some(prefix)) = (file, prefix) {
                    self.prefixes.insert(Prefix::File(*file), prefix);
                }
            }
            FileReply::Loaded { .. } | FileReply::Deleted => self.busy -= 1,
            FileReply::Removed { files } => {
                for file in files {
                    self.prefixes.remove(&Prefix::File(*file));
                }
            }
        }
    }
}

impl Drop for Files {
    /// Waits for the thread, so that the folder can be opened again at once.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It panicked: told already, and nothing is left to wait for.
            let _ = thread.join();
        }
    }
}

struct Worker {
    store: Store,
    events: Events,
}

impl Worker {
    fn run(mut self, queue: Receiver<FileJob>) {
        for job in queue {
            let reply = match job {
                FileJob::Save { save, first_page, state } => self.save(&save, first_page, state),
                FileJob::Load { ticket, file, first_page } => self.load(ticket, file, first_page),
                FileJob::Remove { file } => {
                    if let Err(error) = self.store.remove(StoredId(file.0)) {
                        tracing::warn!("disk cache: {error}");
                    }
                    FileReply::Deleted
                }
            };
            self.tell(reply);
        }
    }

    fn tell(&self, reply: FileReply) {
        // A driver that is gone wants no reply.
        self.events.send(Event::File(reply));
    }

    fn save(&mut self, save: &Save, first_page: usize, state: StateBytes) -> FileReply {
        let bytes = state.bytes();
        let Save { ticket, key, tokens, .. } = save;
        let pages: Vec<(usize, Vec<u8>)> = (first_page..).zip(state.pages).collect();
        let now = SystemTime::now();
        let put = self.store.put(&key.owner, &key.name, tokens, &state.slot, &pages, now);
        let file = match put {
            Ok(Put { id, removed }) => {
                self.tell_removed(&removed);
                Some(FileId(id.0))
            }
            Err(error) => {
                tracing::warn!("a prefix of {} tokens is not saved: {error}", tokens.len());
                self.tell_damaged(&error);
                None
            }
        };
        FileReply::Saved { ticket: *ticket, file, bytes }
    }

    fn load(&mut self, ticket: Ticket, file: FileId, first_page: usize) -> FileReply {
        let state = match self.store.get(StoredId(file.0), first_page, SystemTime::now()) {
            Ok(Loaded { state, pages }) => Some(StateBytes { slot: state, pages }),
            Err(error) => {
                tracing::warn!("a saved prefix cannot be used: {error}");
                self.tell_damaged(&error);
                None
            }
        };
        FileReply::Loaded { ticket, state }
    }

    fn tell_damaged(&self, error: &StoreError) {
        if let StoreError::Damaged { removed, .. } = error {
            self.tell_removed(removed);
        }
    }

    fn tell_removed(&self, removed: &[StoredId]) {
        if !removed.is_empty() {
            let files = removed.iter().map(|id| FileId(id.0)).collect();
            self.tell(FileReply::Removed { files });
        }
    }
}
