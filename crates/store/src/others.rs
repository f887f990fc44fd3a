//! Directories of other versions, whose files count towards the limits of this one.

use crate::directory;
use crate::file::{Checked, Kind};
use crate::key::{self, Key};
use crate::shelf::Shelf;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Another version's directory, whose files count towards the limit.
pub(crate) struct Other {
    dir: PathBuf,
    version: Key,
    pub(crate) bytes: u64,
    /// Last use of the snapshot to be removed first; none if another process uses the directory.
    pub(crate) oldest: Option<SystemTime>,
}

impl Other {
    /// All other versions' directories under `dir`.
    pub(crate) fn all(dir: &Path, own: &Key, now: SystemTime) -> Vec<Self> {
        let Ok(items) = fs::read_dir(dir) else { return Vec::new() };
        let mut others = Vec::new();
        for item in items.flatten() {
            let file_name = item.file_name();
            let Some(version) = file_name.to_str().and_then(key::parse_version_name) else {
                continue;
            };
            let is_dir = item.file_type().is_ok_and(|kind| kind.is_dir());
            if version == *own || !is_dir || !has_version(&item.path(), &version) {
                continue;
            }
            let mut other = Self { dir: item.path(), version, bytes: 0, oldest: None };
            // Held for this moment only: the other process may just be starting.
            let is_free = directory::lock(&other.dir).is_ok();
            other.update(now);
            other.oldest = other.oldest.filter(|_| is_free);
            others.push(other);
        }
        others
    }

    /// Looks at the directory again.
    fn update(&mut self, now: SystemTime) -> Option<Shelf> {
        let shelf = Shelf::scan(&self.dir, &self.version, None, now).ok().map(|scan| scan.0);
        self.bytes = shelf.as_ref().map_or(0, Shelf::bytes);
        self.oldest = shelf.as_ref().and_then(Shelf::oldest_use);
        shelf
    }

    /// Removes snapshots, the one that was used least recently first, as long as one `goes`, given the bytes
    /// of the directory and its last use. If another process uses the directory or one cannot be removed,
    /// `oldest` is none afterwards.
    pub(crate) fn remove_while(&mut self, now: SystemTime, goes: impl Fn(u64, SystemTime) -> bool) {
        let lock = directory::lock(&self.dir);
        let shelf = self.update(now);
        let (Ok(_lock), Some(mut shelf)) = (lock, shelf) else {
            self.oldest = None;
            return;
        };
        while let Some(i) = shelf.oldest(None)
            && goes(shelf.bytes(), shelf.entries[i].last_use)
        {
            let is_removed = shelf.remove(i).is_ok();
            (self.bytes, self.oldest) = (shelf.bytes(), shelf.oldest_use().filter(|_| is_removed));
            if !is_removed {
                return;
            }
        }
    }
}

/// Whether a directory says that it is of this version.
fn has_version(dir: &Path, version: &Key) -> bool {
    Checked::open(&dir.join("version"), Kind::Version).is_ok_and(|checked| {
        str::from_utf8(&checked.meta).is_ok_and(|text| key::version(text) == *version)
    })
}

/// Whether something was last used longer ago than `age`.
pub(crate) fn is_older(used: SystemTime, age: Duration, now: SystemTime) -> bool {
    now.duration_since(used).is_ok_and(|unused| unused > age)
}
