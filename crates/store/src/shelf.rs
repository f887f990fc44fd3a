//! The files of one version: which snapshots there are and which pages they share.

use crate::file::{self, Checked, Kind, ReadError};
use crate::key::{self, Key, Name};
use crate::snapshot::Description;
use crate::store::Sizes;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

/// Index of a version's directory.
pub(crate) struct Shelf {
    pub(crate) dir: PathBuf,
    /// Whether this store holds the directory: then a regular file with a name of the store's is its own.
    is_own: bool,
    pub(crate) entries: Vec<Entry>,
    pages: HashMap<Key, Page>,
    bytes: u64,
}

/// A snapshot's file.
pub(crate) struct Entry {
    pub(crate) key: Key,
    /// Keys of its full pages, in order.
    pub(crate) pages: Vec<Key>,
    /// Bytes of its file, without pages.
    pub(crate) bytes: u64,
    pub(crate) last_use: SystemTime,
}

struct Page {
    /// Snapshots that have it.
    uses: usize,
    bytes: u64,
}

impl Shelf {
    /// Reads what a directory holds. With the caller's `sizes` it is the caller's own directory, locked:
    /// files whose header or description is damaged, foreign content under the store's names, leftovers of a
    /// crash and pages that no snapshot has are removed. Without, nothing is changed. The
    /// descriptions are those of `entries`, in the same order: the one that was used last is last.
    pub(crate) fn scan(
        dir: &Path,
        version: &Key,
        sizes: Option<Sizes>,
        now: SystemTime,
    ) -> io::Result<(Self, Vec<Description>)> {
        // What cannot be removed is not used either, so a failure changes nothing.
        let remove = |path: &Path| {
            if sizes.is_some() {
                let _ = file::remove_regular(path);
            }
        };
        let mut found = Vec::new();
        let mut page_files = HashMap::new();
        let mut is_complete = true;
        for item in fs::read_dir(dir)? {
            let Ok(item) = item else { continue };
            let (path, file_name) = (item.path(), item.file_name());
            let Some(name) = file_name.to_str().and_then(Name::parse) else { continue };
            // The entry itself, not what a link points to.
            let Ok(metadata) = item.metadata() else { continue };
            if !metadata.is_file() {
                continue;
            }
            match name {
                Name::Temporary => remove(&path),
                Name::Page(key) => {
                    let is_damaged = sizes.is_some_and(|sizes| {
                        let opened = file::open_page(&path, &key, sizes.page_bytes);
                        matches!(opened, Err(ReadError::Damaged(_)))
                    });
                    if is_damaged {
                        remove(&path);
                    } else {
                        page_files.insert(key, metadata.len());
                    }
                }
                Name::Snapshot(key) => match describe(&path, &key, version, sizes) {
                    Ok((description, pages)) => {
                        let used = metadata.modified().unwrap_or(now).min(now);
                        let entry = Entry { key, pages, bytes: metadata.len(), last_use: used };
                        found.push((entry, description));
                    }
                    Err(ReadError::Damaged(_)) => remove(&path),
                    Err(ReadError::Io(_)) => is_complete = false,
                },
            }
        }
        found.sort_by_key(|(entry, _)| (entry.last_use, entry.key));
        let mut shelf = Self {
            dir: dir.to_owned(),
            is_own: sizes.is_some(),
            entries: Vec::new(),
            pages: HashMap::new(),
            bytes: 0,
        };
        let mut descriptions = Vec::new();
        for (entry, description) in found {
            if entry.pages.iter().any(|page| !page_files.contains_key(page)) {
                remove(&shelf.snapshot_path(&entry.key));
                continue;
            }
            for page in &entry.pages {
                if !shelf.hold(page) {
                    shelf.add_page(*page, page_files[page]);
                }
            }
            shelf.add(entry);
            descriptions.push(description);
        }
        // A snapshot that could not be read this time may be good, and need its pages.
        for page in page_files.keys().filter(|page| is_complete && !shelf.has_page(page)) {
            remove(&shelf.page_path(page));
        }
        Ok((shelf, descriptions))
    }

    /// Bytes of all snapshots and their pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn snapshot_path(&self, key: &Key) -> PathBuf {
        self.dir.join(key::snapshot_name(key))
    }

    pub(crate) fn page_path(&self, key: &Key) -> PathBuf {
        self.dir.join(key::page_name(key))
    }

    pub(crate) fn has_page(&self, page: &Key) -> bool {
        self.pages.contains_key(page)
    }

    /// Counts one more use of a page; says whether the page is there.
    pub(crate) fn hold(&mut self, page: &Key) -> bool {
        self.pages.get_mut(page).map(|page| page.uses += 1).is_some()
    }

    /// Adds a page whose file was written, used once.
    pub(crate) fn add_page(&mut self, page: Key, bytes: u64) {
        self.bytes += bytes;
        self.pages.insert(page, Page { uses: 1, bytes });
    }

    /// Undoes one [`Shelf::hold`] or [`Shelf::add_page`] each; removes pages that nothing uses any more.
    pub(crate) fn release(&mut self, pages: &[Key]) {
        for key in pages {
            let Some(page) = self.pages.get_mut(key) else { continue };
            page.uses -= 1;
            if page.uses == 0 {
                self.bytes -= page.bytes;
                self.pages.remove(key);
                // One that stays is removed as unused when the directory is opened again.
                let _ = self.remove_file(&self.page_path(key));
            }
        }
    }

    /// Adds a snapshot whose file was written and whose pages were counted.
    pub(crate) fn add(&mut self, entry: Entry) {
        self.bytes += entry.bytes;
        self.entries.push(entry);
    }

    /// Sets the size of a snapshot whose file was written anew.
    pub(crate) fn resize(&mut self, index: usize, bytes: u64) {
        self.bytes = self.bytes - self.entries[index].bytes + bytes;
        self.entries[index].bytes = bytes;
    }

    /// Removes the snapshot `index`, and moves the last one to its place. If the system refuses, nothing
    /// changes.
    pub(crate) fn remove(&mut self, index: usize) -> io::Result<()> {
        match self.remove_file(&self.snapshot_path(&self.entries[index].key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                self.forget(index);
                Ok(())
            }
        }
    }

    /// As [`Shelf::remove`], but the snapshot goes from the index also where the system refuses.
    pub(crate) fn discard(&mut self, index: usize) {
        if self.remove(index).is_err() {
            self.forget(index);
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        if self.is_own { file::remove_regular(path) } else { file::remove_marked(path) }
    }

    fn forget(&mut self, index: usize) {
        let entry = self.entries.swap_remove(index);
        self.bytes -= entry.bytes;
        self.release(&entry.pages);
    }

    /// The snapshot that was used least recently, but not the one with the key `except`.
    pub(crate) fn oldest(&self, except: Option<&Key>) -> Option<usize> {
        let others = (0..self.entries.len()).filter(|&i| Some(&self.entries[i].key) != except);
        others.min_by_key(|&i| self.entries[i].last_use)
    }

    /// When the snapshot that was used least recently was.
    pub(crate) fn oldest_use(&self) -> Option<SystemTime> {
        self.oldest(None).map(|i| self.entries[i].last_use)
    }
}

/// Reads a snapshot's description and checks it against its name, the version and the sizes; with the keys of
/// its full pages.
fn describe(
    path: &Path,
    key: &Key,
    version: &Key,
    sizes: Option<Sizes>,
) -> Result<(Description, Vec<Key>), ReadError> {
    let damaged = |reason: &str| ReadError::Damaged(reason.into());
    let checked = Checked::open(path, Kind::Snapshot)?;
    let description = Description::parse(&checked.meta)
        .ok_or_else(|| damaged("the description is not of this form"))?;
    let root = key::root(version, &description.owner, &description.name);
    let page_tokens = description.page_tokens as usize;
    let (pages, whole) = key::prefix(root, &description.tokens, page_tokens);
    if description.version != *version || whole != *key {
        return Err(damaged("the name is that of another prefix"));
    }
    if let Some(sizes) = sizes {
        sizes.check(&description, checked.body_len).map_err(ReadError::Damaged)?;
    }
    Ok((description, pages))
}
