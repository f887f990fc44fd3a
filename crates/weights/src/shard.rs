//! One mapped safetensors file and its tensors.

use crate::error::Error;
use crate::header::{self, TensorEntry};
use crate::repository::Repository;
use bytes::Bytes;
use calla_model::MappedFile;
use memmap2::Mmap;
use std::path::{Path, PathBuf};

/// A file whose header has been checked against its size.
#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    name: String,
    tensors: Vec<TensorEntry>,
    /// The whole file.
    bytes: Bytes,
}

/// A map, watched for the file being cut short.
struct Mapped {
    // Fields drop in order: the watch ends before the map does.
    #[cfg(unix)]
    _watch: crate::sigbus::Watch,
    map: Mmap,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Shard {
    pub(crate) fn open(repository: &Repository, name: &str) -> Result<Self, Error> {
        let (path, file) = repository.open_file(name)?;
        let io = |source| Error::io("map", &path, source);
        let len = file.metadata().map_err(io)?.len();
        // An empty file cannot be mapped; the header reader names the problem.
        let bytes = if len == 0 { Bytes::new() } else { map(&file, &path).map_err(io)? };
        let tensors =
            header::read(&bytes).map_err(|source| Error::Header { file: path.clone(), source })?;
        Ok(Self { path, name: name.to_owned(), tensors, bytes })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Bytes of the whole file.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A view of a tensor's bytes.
    pub(crate) fn bytes(&self, tensor: &TensorEntry) -> Bytes {
        self.bytes.slice(tensor.range.clone())
    }

    /// The map itself; `None` if the file is empty or the system does not tell how large its pages are.
    pub(crate) fn mapped(&self) -> Option<MappedFile> {
        let page_bytes = page_bytes().filter(|_| !self.bytes.is_empty())?;
        // SAFETY: `map` maps a file from its first byte to its last, and only to read. Systems start a map where a page does
        // and map whole pages, with zeros where the last one has no byte of the file (POSIX has it so). `Mapped`, which unmaps
        // them, is the owner of these bytes, and so goes after all their clones and slices.
        Some(unsafe { MappedFile::new(self.bytes.clone(), page_bytes) })
    }
}

/// Bytes of a page of memory.
#[cfg(unix)]
fn page_bytes() -> Option<usize> {
    // SAFETY: it reads a setting of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two())
}

/// Unknown: no device uses maps on other systems.
#[cfg(not(unix))]
fn page_bytes() -> Option<usize> {
    None
}

fn map(file: &std::fs::File, path: &Path) -> std::io::Result<Bytes> {
    // SAFETY: Rust asks that the bytes do not change while borrowed. The map is read-only and private to
    // us on our side; another process that rewrites a model file in use can change the values that the
    // kernels read (any bit pattern is a valid value of the types read from it), and one that cuts it
    // short ends the program through `sigbus`. No bound or length is ever read from the map twice: the
    // header is parsed once into owned entries, checked against the length of the map.
    let map = unsafe { Mmap::map(file)? };
    #[cfg(unix)]
    let watch = {
        let start = map.as_ptr().addr();
        crate::sigbus::watch(start..start + map.len(), path)
    };
    #[cfg(not(unix))]
    let _ = path;
    Ok(Bytes::from_owner(Mapped {
        #[cfg(unix)]
        _watch: watch,
        map,
    }))
}
