//! A version's directory: private, and used by one process at a time.

use crate::{StoreError, file};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Tries to lock a directory before it counts as in use, and the wait between them.
const LOCK_RETRIES: usize = 20;
const LOCK_RETRY_AFTER: Duration = Duration::from_millis(10);

/// Makes a version's directory, which only its owner can read.
pub(crate) fn make_private(dir: &Path) -> Result<(), StoreError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder
        .create(dir)
        .map_err(|error| no_directory(dir).unwrap_or_else(|| StoreError::io("make", dir)(error)))?;
    let metadata = fs::symlink_metadata(dir).map_err(StoreError::io("look at", dir))?;
    if !metadata.is_dir() {
        return Err(StoreError::Blocked { path: dir.to_owned() });
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o077 != 0 {
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(dir, private).map_err(StoreError::io("make private", dir))?;
        }
    }
    Ok(())
}

/// Says which part of a path is there but not a directory, if that is so.
fn no_directory(dir: &Path) -> Option<StoreError> {
    let (path, metadata) =
        dir.ancestors().find_map(|path| Some((path, fs::symlink_metadata(path).ok()?)))?;
    let reason = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return None,
        Ok(_) => "the path is not a directory",
        Err(error) if metadata.is_symlink() && error.kind() == io::ErrorKind::NotFound => {
            "the path is a symbolic link that leads nowhere"
        }
        Err(_) => return None,
    };
    Some(StoreError::NoDirectory { path: path.to_owned(), reason })
}

/// As [`lock`], but waits for a moment: a process of another version may hold the directory to make room.
pub(crate) fn lock_patiently(dir: &Path) -> Result<File, StoreError> {
    for _ in 0..LOCK_RETRIES {
        match lock(dir) {
            Err(StoreError::InUse { .. }) => thread::sleep(LOCK_RETRY_AFTER),
            other => return other,
        }
    }
    lock(dir)
}

/// Locks a version's directory. The system unlocks it when the process ends, however it ends.
pub(crate) fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    let is_regular = fs::symlink_metadata(&path).map_or(true, |metadata| metadata.is_file());
    if !is_regular {
        return Err(StoreError::Blocked { path });
    }
    let mut options = file::private();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(&path).map_err(StoreError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(StoreError::io("lock", &path)(error)),
    }
}
