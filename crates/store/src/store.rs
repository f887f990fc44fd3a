//! The store: prefixes put, found and removed, under limits of size and age.

use crate::file::{self, Checked, Kind, ReadError, file_bytes};
use crate::key::{self, Key};
use crate::others::{Other, is_older};
use crate::shelf::{Entry, Shelf};
use crate::snapshot::Description;
use crate::{Bytes, StoreError, directory};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Longest name of an owner or of a prefix's group, in bytes.
const NAME_BYTES_MAX: usize = 64 << 10;

/// What the files may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all files, those of other versions in the directory included. A prefix that is being put
    /// comes on top until it is written.
    pub bytes: u64,
    /// Snapshots that were not used for longer are removed.
    pub age: Duration,
}

/// Sizes of what is stored; files of other sizes are damaged.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a recurrent state.
    pub state_bytes: usize,
    /// Bytes of a full page; of the last one, most bytes.
    pub page_bytes: usize,
    /// Tokens of a full page; not 0.
    pub page_tokens: usize,
}

impl Sizes {
    /// Says what about a snapshot's file does not fit.
    pub(crate) fn check(&self, description: &Description, body_len: u64) -> Result<(), String> {
        if description.page_tokens as usize != self.page_tokens
            || description.state_len != self.state_bytes as u64
        {
            return Err("the sizes are those of another network".into());
        }
        let partial = body_len.checked_sub(description.state_len);
        let has_partial = !description.tokens.len().is_multiple_of(self.page_tokens);
        let max = if has_partial { self.page_bytes as u64 } else { 0 };
        if partial.is_none_or(|bytes| bytes > max || (has_partial && bytes == 0)) {
            return Err(format!("a body of {body_len} bytes does not fit the description"));
        }
        Ok(())
    }
}

/// Names a stored snapshot while the store is open; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoredId(pub u64);

/// A snapshot that can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name for [`Store::get`].
    pub id: StoredId,
    /// Whose it is.
    pub owner: String,
    /// The owner's name for the group it belongs to.
    pub name: String,
    /// Tokens from the start that the state has seen.
    pub tokens: Vec<u32>,
}

/// A snapshot was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The snapshot; if the same prefix was stored before, its old name.
    pub id: StoredId,
    /// Snapshots that are no longer stored, for size or age.
    pub removed: Vec<StoredId>,
}

/// A snapshot as it was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The recurrent state.
    pub state: Vec<u8>,
    /// KV pages from the first one asked for, in order; the last may be partial.
    pub pages: Vec<Vec<u8>>,
}

/// Files of cached prefixes in a directory, of one version. It locks the version's directory until dropped.
///
/// All calls block on the disk. Times are given, and not taken from a clock, except those of files.
pub struct Store {
    version: Key,
    sizes: Sizes,
    limits: Limits,
    shelf: Shelf,
    /// What the shelf's entries are, in the same order.
    stored: Vec<Stored>,
    others: Vec<Other>,
    /// Removed snapshots that no answer has named yet.
    unreported: Vec<StoredId>,
    next_id: u64,
    next_temporary: u64,
    _lock: File,
}

impl Store {
    /// Opens or makes the directory of a version under `dir`. `version` names all that the bytes of a state
    /// depend on: checkpoint, arithmetic and their format. Removes what is damaged, too old or beyond the
    /// limit, of other versions too.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process holds the version's directory; [`StoreError::NoDirectory`],
    /// [`StoreError::Io`] or [`StoreError::Blocked`] if it cannot be made or read.
    pub fn open(
        dir: &Path,
        version: &str,
        sizes: Sizes,
        limits: Limits,
        now: SystemTime,
    ) -> Result<Self, StoreError> {
        if sizes.page_tokens == 0 || sizes.page_tokens > u32::MAX as usize {
            return Err(StoreError::Mismatch(format!("pages of {} tokens", sizes.page_tokens)));
        }
        let key = key::version(version);
        let own = dir.join(key::version_name(&key));
        directory::make_private(&own)?;
        let lock = directory::lock_patiently(&own)?;
        // First: what the directory holds is the store's only if it is of this version.
        write_version(&own, version, now)?;
        let (shelf, descriptions) =
            Shelf::scan(&own, &key, Some(sizes), now).map_err(StoreError::io("list", &own))?;
        let mut store = Self {
            version: key,
            sizes,
            limits,
            shelf,
            stored: Vec::new(),
            others: Vec::new(),
            unreported: Vec::new(),
            next_id: 0,
            next_temporary: 0,
            _lock: lock,
        };
        for Description { owner, name, tokens, .. } in descriptions {
            let id = store.new_id();
            store.stored.push(Stored { id, owner, name, tokens });
        }
        store.others = Other::all(dir, &key, now);
        for other in &mut store.others {
            if other.oldest.is_some_and(|used| is_older(used, limits.age, now)) {
                other.remove_while(now, |_, used| is_older(used, limits.age, now));
            }
        }
        store.keep_limits(None, now)?;
        store.unreported.clear();
        Ok(store)
    }

    /// All snapshots: as long as the store is new, the one that was used last is last.
    #[must_use]
    pub fn stored(&self) -> &[Stored] {
        &self.stored
    }

    /// Bytes of all snapshots and pages, those of other versions in the directory included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shelf.bytes() + self.others.iter().map(|other| other.bytes).sum::<u64>()
    }

    /// Indices of the pages that [`Store::put`] of a prefix must be given: the full ones that are not stored,
    /// and always the last if it is partial.
    #[must_use]
    pub fn missing_pages(&self, owner: &str, name: &str, tokens: &[u32]) -> Vec<usize> {
        let root = key::root(&self.version, owner, name);
        let (keys, _) = key::prefix(root, tokens, self.sizes.page_tokens);
        let full = (0..keys.len()).filter(|&i| !self.shelf.has_page(&keys[i]));
        let has_partial = !tokens.len().is_multiple_of(self.sizes.page_tokens);
        full.chain(has_partial.then_some(keys.len())).collect()
    }

    /// Stores the state after `tokens`, which belongs to `owner` and their group `name`. `pages` are KV pages
    /// by index: all that are not stored and, if partial, the last; more are ignored. One that is stored
    /// already is only marked as used. Then removes what is too old and, if the limit demands it, the
    /// snapshots that were used least recently.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`] if sizes are wrong or a page is neither stored nor given,
    /// [`StoreError::TooLarge`], [`StoreError::Io`], [`StoreError::Blocked`]: then this snapshot is not stored.
    pub fn put(
        &mut self,
        owner: &str,
        name: &str,
        tokens: &[u32],
        state: &[u8],
        pages: &[(usize, Bytes)],
        now: SystemTime,
    ) -> Result<Put, StoreError> {
        let description = Description {
            version: self.version,
            page_tokens: self.sizes.page_tokens as u32,
            state_len: state.len() as u64,
            owner: owner.to_owned(),
            name: name.to_owned(),
            tokens: tokens.to_owned(),
        };
        let root = key::root(&self.version, owner, name);
        let (keys, key) = key::prefix(root, tokens, self.sizes.page_tokens);
        let given: HashMap<usize, &[u8]> = pages.iter().map(|(i, page)| (*i, &page[..])).collect();
        let index = self.shelf.entries.iter().position(|entry| entry.key == key);
        if let Some(i) = index
            && self.mark_used(i, now)
        {
            let id = self.stored[i].id;
            self.keep_limits(Some(&key), now)?;
            return Ok(Put { id, removed: std::mem::take(&mut self.unreported) });
        }
        self.check(&description, &keys, &given)?;

        // Held until an entry counts them.
        let mut held: Vec<Key> = Vec::with_capacity(keys.len());
        held.extend(keys.iter().filter(|page| self.shelf.hold(page)));
        let partial = given.get(&keys.len()).copied().unwrap_or_default();
        let written = self.write_all(&description, &keys, &key, &mut held, state, &given, now);
        if let Err(error) = written {
            self.shelf.release(&held);
            return Err(error);
        }
        let bytes = file_bytes(description.len(), state.len() + partial.len());
        let id = if let Some(i) = index {
            // The old entry has its own count of each page.
            self.shelf.release(&held);
            self.shelf.resize(i, bytes);
            self.shelf.entries[i].last_use = now;
            self.stored[i].id
        } else {
            let id = self.new_id();
            self.shelf.add(Entry { key, pages: keys, bytes, last_use: now });
            let Description { owner, name, tokens, .. } = description;
            self.stored.push(Stored { id, owner, name, tokens });
            id
        };
        // After writing: had that failed, the others would have gone for nothing.
        if let Err(error) = self.keep_limits(Some(&key), now) {
            if let Some(i) = self.index_of(id) {
                self.discard(i);
            }
            return Err(error);
        }
        Ok(Put { id, removed: std::mem::take(&mut self.unreported) })
    }

    /// Marks a snapshot as used, if its file is there and describes it; its state is not read.
    fn mark_used(&mut self, index: usize, now: SystemTime) -> bool {
        let path = self.shelf.snapshot_path(&self.shelf.entries[index].key);
        let Ok(checked) = self.open_snapshot(&path, index) else { return false };
        checked.touch(now);
        self.shelf.entries[index].last_use = now;
        true
    }

    /// Reads a snapshot and its pages from `first_page` on; the ones before are not read. Marks it as used.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it is not stored or any part read is not what was written: it and all
    /// snapshots with one of its pages that is damaged are removed, so that a [`Store::put`] stores it anew. [`StoreError::Io`] if the system refuses: it stays.
    pub fn get(
        &mut self,
        id: StoredId,
        first_page: usize,
        now: SystemTime,
    ) -> Result<Loaded, StoreError> {
        let Some(index) = self.index_of(id) else {
            self.unreported.push(id);
            let path = self.shelf.dir.clone();
            return Err(self.damaged(path, "the prefix is no longer stored".into()));
        };
        let path = self.shelf.snapshot_path(&self.shelf.entries[index].key);
        let (state, partial) = match self.read_snapshot(&path, index, now) {
            Ok(read) => read,
            Err(ReadError::Io(source)) => return Err(StoreError::io("read", &path)(source)),
            Err(ReadError::Damaged(reason)) => {
                self.discard_damaged(index);
                return Err(self.damaged(path, reason));
            }
        };
        let mut pages = Vec::new();
        for i in first_page..self.shelf.entries[index].pages.len() {
            let key = self.shelf.entries[index].pages[i];
            let path = self.shelf.page_path(&key);
            match self.read_page(&path, &key) {
                Ok(page) => pages.push(page),
                Err(ReadError::Io(source)) => return Err(StoreError::io("read", &path)(source)),
                Err(ReadError::Damaged(reason)) => {
                    self.discard_damaged(index);
                    return Err(self.damaged(path, reason));
                }
            }
        }
        if !partial.is_empty() && first_page <= self.shelf.entries[index].pages.len() {
            pages.push(partial);
        }
        self.shelf.entries[index].last_use = now;
        Ok(Loaded { state, pages })
    }

    /// Removes a snapshot, and the pages that no other has. One that is not stored is no error.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the system refuses: it stays.
    pub fn remove(&mut self, id: StoredId) -> Result<(), StoreError> {
        let Some(index) = self.index_of(id) else { return Ok(()) };
        self.take_out(index)
    }

    fn index_of(&self, id: StoredId) -> Option<usize> {
        self.stored.iter().position(|stored| stored.id == id)
    }

    fn new_id(&mut self) -> StoredId {
        self.next_id += 1;
        StoredId(self.next_id - 1)
    }

    fn take_out(&mut self, index: usize) -> Result<(), StoreError> {
        let path = self.shelf.snapshot_path(&self.shelf.entries[index].key);
        self.shelf.remove(index).map_err(StoreError::io("remove", &path))?;
        self.stored.swap_remove(index);
        Ok(())
    }

    /// Takes out a snapshot that is no longer good, whether or not the system lets its file go.
    fn discard(&mut self, index: usize) {
        self.shelf.discard(index);
        self.unreported.push(self.stored.swap_remove(index).id);
    }

    /// Takes out a damaged snapshot, and all snapshots that have a damaged page of its pages. All are read, so
    /// that what a next [`Store::put`] of the prefix finds stored is good.
    fn discard_damaged(&mut self, index: usize) {
        let pages = self.shelf.entries[index].pages.clone();
        self.discard(index);
        for key in pages {
            // The others have gone with the snapshot.
            if !self.shelf.has_page(&key) {
                continue;
            }
            let read = self.read_page(&self.shelf.page_path(&key), &key);
            if !matches!(read, Err(ReadError::Damaged(_))) {
                continue;
            }
            while let Some(user) =
                self.shelf.entries.iter().position(|entry| entry.pages.contains(&key))
            {
                self.discard(user);
            }
        }
    }

    fn damaged(&mut self, path: PathBuf, reason: String) -> StoreError {
        StoreError::Damaged { path, reason, removed: std::mem::take(&mut self.unreported) }
    }

    fn check(
        &self,
        description: &Description,
        keys: &[Key],
        given: &HashMap<usize, &[u8]>,
    ) -> Result<(), StoreError> {
        let mismatch = |what: String| Err(StoreError::Mismatch(what));
        let Description { owner, name, tokens, state_len, .. } = description;
        let Sizes { state_bytes, page_bytes, page_tokens } = self.sizes;
        if *state_len != state_bytes as u64 {
            return mismatch(format!(
                "its state has {state_len} bytes but must have {state_bytes}"
            ));
        }
        if owner.len().max(name.len()) > NAME_BYTES_MAX {
            return mismatch(format!(
                "owner and name may have at most {NAME_BYTES_MAX} bytes each"
            ));
        }
        if description.len() as u64 > file::META_BYTES_MAX {
            return mismatch(format!("{} tokens are too many for a file", tokens.len()));
        }
        let has_partial = !tokens.len().is_multiple_of(page_tokens);
        for (i, key) in keys.iter().enumerate() {
            match given.get(&i) {
                None if !self.shelf.has_page(key) => {
                    return mismatch(format!("page {i} is neither stored nor given"));
                }
                Some(page) if page.len() != page_bytes => {
                    let len = page.len();
                    return mismatch(format!(
                        "page {i} has {len} bytes but must have {page_bytes}"
                    ));
                }
                _ => {}
            }
        }
        let last = keys.len();
        let partial = given.get(&last).copied().unwrap_or_default();
        if has_partial == partial.is_empty() || partial.len() > page_bytes {
            let (least, most) = if has_partial { (1, page_bytes) } else { (0, 0) };
            return mismatch(format!(
                "the partial page {last} has {} bytes but must have from {least} to {most}",
                partial.len()
            ));
        }
        Ok(())
    }

    /// Writes the missing pages, which it adds to `held`, then the snapshot.
    #[allow(clippy::too_many_arguments, reason = "the parts of one snapshot, used here only")]
    fn write_all(
        &mut self,
        description: &Description,
        keys: &[Key],
        key: &Key,
        held: &mut Vec<Key>,
        state: &[u8],
        given: &HashMap<usize, &[u8]>,
        now: SystemTime,
    ) -> Result<(), StoreError> {
        let partial = given.get(&keys.len()).copied().unwrap_or_default();
        let page_file = file_bytes(key.len(), self.sizes.page_bytes);
        let snapshot_file = file_bytes(description.len(), state.len() + partial.len());
        // Bytes that must fit together, whatever is removed.
        let fixed: u64 = self.others.iter().filter(|o| o.oldest.is_none()).map(|o| o.bytes).sum();
        let whole = snapshot_file + keys.len() as u64 * page_file;
        if fixed + whole > self.limits.bytes {
            let limit = self.limits.bytes.saturating_sub(fixed);
            return Err(StoreError::TooLarge { bytes: whole, limit });
        }
        for (i, page) in keys.iter().enumerate() {
            if self.shelf.has_page(page) {
                continue;
            }
            let path = self.shelf.page_path(page);
            let temporary = temporary(&self.shelf.dir, &mut self.next_temporary);
            file::write(&path, &temporary, Kind::Page, page, &[given[&i]], now)?;
            self.shelf.add_page(*page, page_file);
            held.push(*page);
        }
        // The names of the pages must last before the snapshot's does.
        file::sync_dir(&self.shelf.dir);
        let path = self.shelf.snapshot_path(key);
        let temporary = temporary(&self.shelf.dir, &mut self.next_temporary);
        let meta = description.to_bytes();
        file::write(&path, &temporary, Kind::Snapshot, &meta, &[state, partial], now)?;
        file::sync_dir(&self.shelf.dir);
        Ok(())
    }

    fn read_snapshot(
        &self,
        path: &Path,
        index: usize,
        now: SystemTime,
    ) -> Result<(Vec<u8>, Vec<u8>), ReadError> {
        let checked = self.open_snapshot(path, index)?;
        checked.touch(now);
        let mut state = checked.read_body()?;
        let partial = state.split_off(self.sizes.state_bytes);
        Ok((state, partial))
    }

    /// Opens a snapshot's file, which must describe what is stored.
    fn open_snapshot(&self, path: &Path, index: usize) -> Result<Checked, ReadError> {
        let checked = Checked::open(path, Kind::Snapshot)?;
        let Stored { owner, name, tokens, .. } = &self.stored[index];
        let expected = Description {
            version: self.version,
            page_tokens: self.sizes.page_tokens as u32,
            state_len: self.sizes.state_bytes as u64,
            owner: owner.clone(),
            name: name.clone(),
            tokens: tokens.clone(),
        };
        if checked.meta != expected.to_bytes() {
            return Err(ReadError::Damaged("the description is that of another prefix".into()));
        }
        self.sizes.check(&expected, checked.body_len).map_err(ReadError::Damaged)?;
        Ok(checked)
    }

    fn read_page(&self, path: &Path, key: &Key) -> Result<Vec<u8>, ReadError> {
        file::open_page(path, key, self.sizes.page_bytes)?.read_body()
    }

    /// Removes own snapshots that are too old. One that cannot be removed stays.
    fn expire(&mut self, except: Option<&Key>, now: SystemTime) {
        let age = self.limits.age;
        for i in (0..self.stored.len()).rev() {
            let entry = &self.shelf.entries[i];
            if Some(&entry.key) != except && is_older(entry.last_use, age, now) {
                let id = self.stored[i].id;
                if self.take_out(i).is_ok() {
                    self.unreported.push(id);
                }
            }
        }
    }

    /// Removes what is too old, and then the snapshots that were used least recently, of all versions, until
    /// the limit is kept. `except` stays.
    fn keep_limits(&mut self, except: Option<&Key>, now: SystemTime) -> Result<(), StoreError> {
        self.expire(except, now);
        while self.bytes() > self.limits.bytes {
            let own = self.shelf.oldest(except);
            let own_used = own.map(|i| self.shelf.entries[i].last_use);
            let mut uses: Vec<(SystemTime, usize)> = self
                .others
                .iter()
                .enumerate()
                .filter_map(|(i, other)| Some((other.oldest?, i)))
                .collect();
            uses.sort_unstable();
            match (own, uses.first()) {
                (own, Some(&(used, i))) if own.is_none() || Some(used) < own_used => {
                    // Until it is the turn of another.
                    let next = uses.get(1).map(|other| other.0).into_iter().chain(own_used).min();
                    let rest = self.bytes() - self.others[i].bytes;
                    let limit = self.limits.bytes.saturating_sub(rest);
                    self.others[i].remove_while(now, |bytes, used| {
                        bytes > limit && next.is_none_or(|next| used <= next)
                    });
                }
                (Some(own), _) => {
                    let id = self.stored[own].id;
                    self.take_out(own)?;
                    self.unreported.push(id);
                }
                // Another process fills the directory with files of its version: they are for it to remove.
                (None, _) => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Writes the version's text, for people and for other versions of the program, unless it is there. One that
/// a crash has damaged is replaced, another text stays.
fn write_version(dir: &Path, version: &str, now: SystemTime) -> Result<(), StoreError> {
    let path = dir.join("version");
    let is_written = Checked::open(&path, Kind::Version)
        .is_ok_and(|checked| checked.meta == version.as_bytes() && checked.body_len == 0);
    if is_written {
        return Ok(());
    }
    if fs::symlink_metadata(&path).is_ok() && !file::is_marked_or_lost(&path) {
        return Err(StoreError::Blocked { path });
    }
    let temporary = temporary(dir, &mut 0);
    file::write(&path, &temporary, Kind::Version, version.as_bytes(), &[], now)
}

/// A temporary file's name that nothing in a directory has, from `next` on.
fn temporary(dir: &Path, next: &mut u64) -> PathBuf {
    loop {
        let path = dir.join(format!("t-{next:016x}.tmp"));
        *next += 1;
        if fs::symlink_metadata(&path).is_err() {
            return path;
        }
    }
}
