//! The folder of one model: which files in it hold weights, and which a name may lead to.
//!
//! Names in an index and symbolic links come from a download and are not trusted. A hub cache keeps
//! `models--owner--name/snapshots/<revision>/file -> ../../blobs/<hash>`, so links may leave the
//! directory that was given, but never the model's own repository folder.

use crate::error::{Error, shown};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Longest `config.json` that is read, in bytes; real ones have about 15 kB.
const CONFIG_LEN_MAX: u64 = 16 << 20;
/// Longest index that is read, in bytes; one line per tensor, at most about 10 MB.
const INDEX_LEN_MAX: u64 = 100_000_000;

pub(crate) const SINGLE_FILE: &str = "model.safetensors";
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
const CONFIG_FILE: &str = "config.json";
const SUFFIX: &str = ".safetensors";

/// A directory that holds a model.
#[derive(Debug)]
pub(crate) struct Repository {
    /// The directory as the user gave it, for messages.
    dir: PathBuf,
    /// Folder that every file must lie in, without links.
    root: PathBuf,
}

impl Repository {
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        let io = |source| Error::io("open", dir, source);
        let canonical = dir.canonicalize().map_err(io)?;
        if !canonical.metadata().map_err(io)?.is_dir() {
            return Err(Error::NotADirectory { path: dir.to_owned() });
        }
        let root = hub_folder(&canonical).unwrap_or(&canonical).to_owned();
        Ok(Self { dir: dir.to_owned(), root })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The text of `config.json`.
    pub(crate) fn config(&self) -> Result<(PathBuf, String), Error> {
        Ok((self.dir.join(CONFIG_FILE), self.text(CONFIG_FILE, CONFIG_LEN_MAX)?))
    }

    /// The text of the index, if there is one.
    pub(crate) fn index(&self) -> Result<Option<String>, Error> {
        if !self.has(INDEX_FILE) {
            return Ok(None);
        }
        self.text(INDEX_FILE, INDEX_LEN_MAX).map(Some)
    }

    /// Whether an entry of this name is there (a dangling link counts: opening it names the problem).
    pub(crate) fn has(&self, name: &str) -> bool {
        self.dir.join(name).symlink_metadata().is_ok()
    }

    /// Names of the `.safetensors` files in the directory, sorted.
    pub(crate) fn weight_files(&self) -> Result<Vec<String>, Error> {
        let io = |source| Error::io("list", &self.dir, source);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(io)? {
            if let Ok(name) = entry.map_err(io)?.file_name().into_string()
                && name.ends_with(SUFFIX)
                && !name.starts_with('.')
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens the regular file `name` of the directory, given by a file of the download.
    pub(crate) fn open_file(&self, name: &str) -> Result<(PathBuf, File), Error> {
        let mut components = Path::new(name).components();
        let plain = matches!(components.next(), Some(Component::Normal(_)))
            && components.next().is_none()
            && !name.contains(['/', '\\', '\0', ':']);
        if !plain {
            return Err(Error::FileName { name: shown(name).into_owned() });
        }
        let path = self.dir.join(name);
        let io = |source| Error::io("open", &path, source);
        let target = path.canonicalize().map_err(io)?;
        if !target.starts_with(&self.root) {
            return Err(Error::OutsideRepository { path, target, root: self.root.clone() });
        }
        // The path without links: a link that changes from here on is not followed.
        let file = open_without_blocking(&target).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(Error::NotAFile { path });
        }
        Ok((path, file))
    }

    fn text(&self, name: &str, limit: u64) -> Result<String, Error> {
        let (path, file) = self.open_file(name)?;
        let io = |source| Error::io("read", &path, source);
        let len = file.metadata().map_err(io)?.len();
        if len > limit {
            return Err(Error::FileTooLong { path, len, limit });
        }
        let mut text = String::with_capacity(len as usize);
        // The file may grow while it is read.
        file.take(limit).read_to_string(&mut text).map_err(io)?;
        Ok(text)
    }
}

/// The `models--...` folder of a hub cache that `dir` is a snapshot in.
fn hub_folder(dir: &Path) -> Option<&Path> {
    let snapshots = dir.parent()?;
    let model = snapshots.parent()?;
    let name = model.file_name()?.to_str()?;
    (snapshots.file_name()? == "snapshots" && name.starts_with("models--")).then_some(model)
}

/// Opening a pipe would otherwise wait for a writer.
#[cfg(unix)]
fn open_without_blocking(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(not(unix))]
fn open_without_blocking(path: &Path) -> std::io::Result<File> {
    File::open(path)
}
