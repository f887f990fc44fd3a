//! The disk cache: saved prefixes, read and written on a thread of its own.

use crate::driver::{Event, Events};
use calla_engine::CacheKey;
use calla_engine::step::{FileId, Ticket};
use calla_store::{Bytes, Held, Loaded, Put, Store, StoreError, StoredId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// State that waits to be written takes at most so many bytes; what comes on top is not written.
const QUEUE_BYTES_MAX: usize = 1 << 30;

/// What the thread is to do.
pub(crate) enum FileJob {
    /// Write the state after `tokens`, of which `state` has the pages from `first_page` on.
    Save {
        file: FileId,
        key: CacheKey,
        tokens: Vec<u32>,
        first_page: usize,
        state: Held,
    },
    Load {
        ticket: Ticket,
        file: FileId,
        first_page: usize,
    },
    Remove {
        file: FileId,
    },
}

/// What the thread has done.
pub(crate) enum FileReply {
    /// `bytes` were taken off the queue.
    Saved { file: FileId, is_written: bool, bytes: usize },
    /// Pages before `first_page` were not read.
    Loaded { ticket: Ticket, file: FileId, first_page: usize, state: Option<Held> },
    /// An answer to [`FileJob::Remove`].
    Deleted,
    /// Files that are no more, for age, room or damage.
    Removed { files: Vec<FileId> },
}

/// A prefix that a file has from an earlier run.
pub(crate) struct Listed {
    pub(crate) file: FileId,
    pub(crate) key: CacheKey,
    pub(crate) tokens: Vec<u32>,
}

/// The thread; it ends with this value.
pub(crate) struct Files {
    /// `None` only while this value is dropped.
    jobs: Option<Sender<FileJob>>,
    thread: Option<JoinHandle<()>>,
    /// Jobs that are not answered.
    busy: usize,
    queued_bytes: usize,
}

impl Files {
    /// Starts the thread. What the store has from earlier runs is named by numbers from 0 on.
    pub(crate) fn start(store: Store, events: Events) -> std::io::Result<(Self, Vec<Listed>)> {
        let stored = store.stored().iter().zip(0..);
        let ids = stored.clone().map(|(stored, n)| (FileId(n), stored.id)).collect();
        let listed = stored.map(|(stored, n)| {
            let key = CacheKey { owner: stored.owner.clone(), name: stored.name.clone() };
            Listed { file: FileId(n), key, tokens: stored.tokens.clone() }
        });
        let listed = listed.collect();
        let (jobs, queue) = channel();
        let worker = Worker { store, ids, events };
        let thread =
            std::thread::Builder::new().name("calla-files".into()).spawn(|| worker.run(queue))?;
        let files = Self { jobs: Some(jobs), thread: Some(thread), busy: 0, queued_bytes: 0 };
        Ok((files, listed))
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// Whether state can wait to be written.
    pub(crate) fn has_room(&self) -> bool {
        self.queued_bytes < QUEUE_BYTES_MAX
    }

    /// Counts state that [`Files::start_job`] will be given.
    pub(crate) fn reserve(&mut self, state: &Held) {
        self.queued_bytes += state.bytes();
    }

    /// Undoes [`Files::reserve`]: the state is not given.
    pub(crate) fn release(&mut self, state: &Held) {
        self.queued_bytes -= state.bytes();
    }

    /// Gives the thread something to do; state to be written has been reserved.
    pub(crate) fn start_job(&mut self, job: FileJob) {
        self.busy += 1;
        // The thread answers every job and ends only after this value.
        let jobs = self.jobs.as_ref().expect("taken by `drop` only");
        jobs.send(job).expect("the thread of the disk cache runs");
    }

    /// Keeps the books when the thread has answered.
    pub(crate) fn answered(&mut self, reply: &FileReply) {
        match reply {
            FileReply::Saved { bytes, .. } => {
                self.busy -= 1;
                self.queued_bytes -= bytes;
            }
            FileReply::Loaded { .. } | FileReply::Deleted => self.busy -= 1,
            FileReply::Removed { .. } => {}
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
    /// What the store calls a prefix. Two names of ours may mean one of its.
    ids: HashMap<FileId, StoredId>,
    events: Events,
}

impl Worker {
    fn run(mut self, queue: Receiver<FileJob>) {
        for job in queue {
            let reply = match job {
                FileJob::Save { file, key, tokens, first_page, state } => {
                    let bytes = state.bytes();
                    let is_written = self.save(file, &key, &tokens, first_page, state);
                    FileReply::Saved { file, is_written, bytes }
                }
                FileJob::Load { ticket, file, first_page } => {
                    let state = self.load(file, first_page);
                    FileReply::Loaded { ticket, file, first_page, state }
                }
                FileJob::Remove { file } => {
                    self.remove(file);
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

    fn save(
        &mut self,
        file: FileId,
        key: &CacheKey,
        tokens: &[u32],
        first_page: usize,
        state: Held,
    ) -> bool {
        let pages: Vec<(usize, Bytes)> = (first_page..).zip(state.pages).collect();
        let now = SystemTime::now();
        match self.store.put(&key.owner, &key.name, tokens, &state.state, &pages, now) {
            Ok(Put { id, removed }) => {
                self.tell_removed(&removed);
                self.ids.insert(file, id);
                true
            }
            Err(error) => {
                tracing::warn!("a prefix of {} tokens is not written: {error}", tokens.len());
                self.tell_damaged(&error);
                false
            }
        }
    }

    fn load(&mut self, file: FileId, first_page: usize) -> Option<Held> {
        // One that could not be written has been told of.
        let id = *self.ids.get(&file)?;
        match self.store.get(id, first_page, SystemTime::now()) {
            Ok(Loaded { state, pages }) => {
                let pages = pages.into_iter().map(Arc::new).collect();
                Some(Held { state: Arc::new(state), pages })
            }
            Err(error) => {
                tracing::warn!("a saved prefix cannot be used: {error}");
                self.tell_damaged(&error);
                None
            }
        }
    }

    fn remove(&mut self, file: FileId) {
        let Some(id) = self.ids.remove(&file) else { return };
        if let Err(error) = self.store.remove(id) {
            tracing::warn!("disk cache: {error}");
        }
    }

    fn tell_damaged(&mut self, error: &StoreError) {
        if let StoreError::Damaged { removed, .. } = error {
            self.tell_removed(removed);
        }
    }

    fn tell_removed(&mut self, removed: &[StoredId]) {
        let files: Vec<FileId> =
            self.ids.extract_if(|_, id| removed.contains(id)).map(|(file, _)| file).collect();
        if !files.is_empty() {
            self.tell(FileReply::Removed { files });
        }
    }
}
