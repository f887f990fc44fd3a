//! Machine code on disk, by what it was made of.

use crate::compiler::{Architecture, Key, Version};
use crate::error::{Kind, io_error};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io, process};

/// Bytes of a digest.
const DIGEST: usize = blake3::OUT_LEN;
/// And of a compiler's version behind it.
const HEAD: usize = DIGEST + 8;

/// A folder of files, each a digest, the version of a compiler, and the machine code that it made.
///
/// Names have no version: code of any compiler serves, so that none has to be there to find it.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// What the machine code in a file is for: a name for people, a source, and a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) entry: &'a str,
    pub(crate) key: Key,
    pub(crate) architecture: Architecture,
}

impl Wanted<'_> {
    /// Of the source and the GPU, and of what a file has beside its digest, so that a file under another's name is damaged.
    fn digest(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(self.key.0.as_bytes());
        let Architecture { major, minor } = self.architecture;
        hasher.update(&major.to_le_bytes()).update(&minor.to_le_bytes());
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

impl Cache {
    /// The folder, made if it is not there.
    pub(crate) fn open(folder: PathBuf) -> Result<Self, Kind> {
        fs::create_dir_all(&folder).map_err(io_error(format!("make {}", folder.display())))?;
        Ok(Self { folder })
    }

    fn path(&self, wanted: Wanted<'_>) -> PathBuf {
        let digest = wanted.digest(&[]).to_hex();
        self.folder.join(format!("{}-{}.cubin", wanted.entry, &digest[..32]))
    }

    /// Machine code that was kept, of a compiler that `takes`. What is damaged counts as absent.
    pub(crate) fn get(
        &self,
        wanted: Wanted<'_>,
        takes: impl FnOnce(Version) -> bool,
    ) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.path(wanted)).ok()?;
        let (digest, rest) = bytes.split_at_checked(DIGEST)?;
        let intact = wanted.digest(&[rest]).as_bytes() == digest;
        let [major, minor] = rest.as_chunks::<4>().0.first_chunk::<2>()?.map(u32::from_le_bytes);
        (intact && takes(Version { major, minor })).then(|| bytes.split_off(HEAD))
    }

    /// Keeps machine code. Others may read, or keep the same, at any time.
    pub(crate) fn put(
        &self,
        wanted: Wanted<'_>,
        compiler: Version,
        code: &[u8],
    ) -> Result<(), Kind> {
        let path = self.path(wanted);
        let partial = partial(&path);
        let Version { major, minor } = compiler;
        let version = [major.to_le_bytes(), minor.to_le_bytes()].concat();
        let digest = wanted.digest(&[&version, code]);
        let written = write(&partial, &[digest.as_bytes(), &version, code])
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
    use crate::compiler::key;

    const V13: Version = Version { major: 13, minor: 0 };
    const SM_90: Architecture = Architecture { major: 9, minor: 0 };

    fn wanted(source: &str, architecture: Architecture) -> Wanted<'static> {
        Wanted { entry: "k", key: key(source), architecture }
    }

    #[test]
    fn what_is_kept_comes_back_unless_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("new")).unwrap();
        let mine = wanted("source", SM_90);
        let get = |wanted| cache.get(wanted, |version| version == V13);
        assert_eq!(get(mine), None);
        cache.put(mine, V13, b"code").unwrap();
        assert_eq!(get(mine).as_deref(), Some(b"code".as_slice()));
        // Another compiler made it than one whose code is taken.
        assert_eq!(cache.get(mine, |version| version != V13), None);
        assert_eq!(get(wanted("sources", SM_90)), None);
        assert_eq!(get(wanted("source", Architecture::OLDEST)), None);
        let mut files = fs::read_dir(folder.path().join("new")).unwrap();
        let path = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none(), "one file");
        let whole = fs::read(&path).unwrap();
        // Any bit: of the digest, of the version, of the code.
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(cache.get(mine, |_| true), None, "byte {at}");
        }
        for len in [0, 5, HEAD - 1, HEAD, whole.len() - 1] {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(cache.get(mine, |_| true), None, "{len} bytes");
        }
        cache.put(mine, V13, b"again").unwrap();
        assert_eq!(get(mine).as_deref(), Some(b"again".as_slice()));
        // Whole, but in another's place.
        fs::copy(&path, cache.path(wanted("other", SM_90))).unwrap();
        assert_eq!(get(wanted("other", SM_90)), None);
    }
}
