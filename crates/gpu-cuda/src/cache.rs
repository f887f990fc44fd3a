//! Machine code on disk, by what it was made of.

use crate::error::{Kind, io_error};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io, process};

/// Bytes of a digest.
const DIGEST: usize = blake3::OUT_LEN;

/// A folder of files, each a digest and the machine code that it belongs to.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The folder, made if it is not there.
    pub(crate) fn open(folder: PathBuf) -> Result<Self, Kind> {
        fs::create_dir_all(&folder).map_err(io_error(format!("make {}", folder.display())))?;
        Ok(Self { folder })
    }

    /// What `key` names: a name for people, and all that the machine code depends on.
    fn path(&self, name: &str, key: &[&[u8]]) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        for part in key {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        self.folder.join(format!("{name}-{}.cubin", &hasher.finalize().to_hex()[..32]))
    }

    /// Machine code that was kept. What is damaged counts as absent.
    pub(crate) fn get(&self, name: &str, key: &[&[u8]]) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.path(name, key)).ok()?;
        let (digest, code) = bytes.split_at_checked(DIGEST)?;
        let intact = blake3::hash(code).as_bytes() == digest;
        intact.then(|| bytes.split_off(DIGEST))
    }

    /// Keeps machine code. Others may read, or keep the same, at any time.
    pub(crate) fn put(&self, name: &str, key: &[&[u8]], code: &[u8]) -> Result<(), Kind> {
        let path = self.path(name, key);
        let partial = partial(&path);
        let written = write(&partial, &[blake3::hash(code).as_bytes(), code])
            .and_then(|()| fs::rename(&partial, &path));
        written.map_err(|error| {
            // What is left of it is of no use; the error that counts is the first.
            let _ = fs::remove_file(&partial);
            io_error(format!("write {}", path.display()))(error)
        })
    }
}

fn write(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::File::create(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

/// A name beside `path` that nobody else uses.
fn partial(path: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{count}.tmp", process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_unless_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("new")).unwrap();
        let key: &[&[u8]] = &[b"source", b"sm_90"];
        assert_eq!(cache.get("k", key), None);
        cache.put("k", key, b"code").unwrap();
        assert_eq!(cache.get("k", key).as_deref(), Some(b"code".as_slice()));
        assert_eq!(cache.get("k", &[b"sources", b"m_90"]), None);
        let mut files = fs::read_dir(folder.path().join("new")).unwrap();
        let path = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none(), "one file");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(cache.get("k", key), None);
        fs::write(&path, b"short").unwrap();
        assert_eq!(cache.get("k", key), None);
        cache.put("k", key, b"again").unwrap();
        assert_eq!(cache.get("k", key).as_deref(), Some(b"again".as_slice()));
    }
}
