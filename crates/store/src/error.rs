//! What can go wrong with stored prefixes.

use crate::store::StoredId;
use std::io;
use std::path::{Path, PathBuf};

/// A prefix could not be stored, loaded or removed. Nothing else in the store is lost.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process holds the directory.
    #[error(
        "{}: another process uses this cache; stop it, or run without a disk cache or with another \
         directory",
        dir.display()
    )]
    InUse {
        /// The version's directory.
        dir: PathBuf,
    },
    /// The system refused: no room, no permission, a failed disk.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried, as "write".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file is not what was written. It is removed, with all that depends on it.
    #[error("{}: {reason}; it is removed from the cache", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Snapshots that are no longer stored.
        removed: Vec<StoredId>,
    },
    /// The path for the cache is not that of a directory, and none can be made there.
    #[error("{}: {reason}; name a directory for the cache, or a path at which one can be made", path.display())]
    NoDirectory {
        /// The path, or the part of it that is to blame.
        path: PathBuf,
        /// What it is instead.
        reason: &'static str,
    },
    /// Something that is no regular file, or another text as the version, has the name of a file that is to be
    /// written.
    #[error("{}: not a file of this cache; move it away", path.display())]
    Blocked {
        /// The path.
        path: PathBuf,
    },
    /// A snapshot does not fit under the byte limit.
    #[error("a prefix of {bytes} bytes does not fit into a disk cache of at most {limit} bytes")]
    TooLarge {
        /// Bytes of the new files.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// What was given to store does not have the sizes that the store was opened with.
    #[error("cannot store this prefix: {0}")]
    Mismatch(String),
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
