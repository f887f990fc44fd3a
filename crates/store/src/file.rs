//! One file with a checksum: written whole or not at all, read without trust.
//!
//! ```text
//! mark[16] format:u32 kind:u32 meta_len:u64 body_len:u64 meta_hash[32] body_hash[32] meta body
//! ```
//! Numbers are little endian, hashes BLAKE3. The meta part can be read and checked without the body.

use crate::StoreError;
use crate::key::Key;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::SystemTime;

/// Every file starts with this.
const MARK: &[u8; 16] = b"calla-store-file";
const FORMAT: u32 = 1;
/// Bytes before the meta part.
pub(crate) const HEADER_BYTES: u64 = 104;
/// Longest meta part: four million tokens.
pub(crate) const META_BYTES_MAX: u64 = 16 << 20;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Version = 0,
    Snapshot = 1,
    Page = 2,
}

/// Why a file could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The system refused.
    Io(io::Error),
    /// The content is not what was written, or nothing is there.
    Damaged(String),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Damaged("the file is missing".into()),
            io::ErrorKind::UnexpectedEof => Self::Damaged("the file ends too early".into()),
            _ => Self::Io(error),
        }
    }
}

fn damaged<T>(reason: impl Into<String>) -> Result<T, ReadError> {
    Err(ReadError::Damaged(reason.into()))
}

/// A file whose header and meta part are good.
pub(crate) struct Checked {
    file: File,
    body_hash: Key,
    /// The part that describes the body.
    pub(crate) meta: Vec<u8>,
    /// Length of the body.
    pub(crate) body_len: u64,
}

impl Checked {
    /// Opens a file and checks all but its body. Takes memory for the meta part only.
    pub(crate) fn open(path: &Path, kind: Kind) -> Result<Self, ReadError> {
        let (mut file, len) = open_regular(path)?;
        let mut header = [0; HEADER_BYTES as usize];
        if len < HEADER_BYTES {
            return damaged(format!("{len} bytes are too short for a header"));
        }
        file.read_exact(&mut header)?;
        let u32_at = |i: usize| u32::from_le_bytes(header[i..i + 4].try_into().expect("4 bytes"));
        let u64_at = |i: usize| u64::from_le_bytes(header[i..i + 8].try_into().expect("8 bytes"));
        let hash_at = |i: usize| -> Key { header[i..i + 32].try_into().expect("32 bytes") };
        if header[..16] != *MARK || u32_at(16) != FORMAT || u32_at(20) != kind as u32 {
            return damaged("the header is not that of such a file");
        }
        let (meta_len, body_len) = (u64_at(24), u64_at(32));
        let expected = HEADER_BYTES.checked_add(meta_len).and_then(|n| n.checked_add(body_len));
        if expected != Some(len) || meta_len > META_BYTES_MAX {
            return damaged(format!("{len} bytes are not as many as the header says"));
        }
        let mut meta = vec![0; meta_len as usize];
        file.read_exact(&mut meta)?;
        if blake3::hash(&meta) != hash_at(40) {
            return damaged("the checksum of the description is wrong");
        }
        Ok(Self { file, body_hash: hash_at(72), meta, body_len })
    }

    /// Reads the body, which must have the length that the caller has checked against its own bounds.
    pub(crate) fn read_body(mut self) -> Result<Vec<u8>, ReadError> {
        let mut body = Vec::with_capacity(self.body_len as usize);
        (&mut self.file).take(self.body_len).read_to_end(&mut body)?;
        if body.len() as u64 != self.body_len || blake3::hash(&body) != self.body_hash {
            return damaged("the checksum is wrong");
        }
        Ok(body)
    }

    /// Marks the file as used at a time. A directory that cannot be written keeps the old time.
    pub(crate) fn touch(&self, now: SystemTime) {
        let _ = self.file.set_modified(now);
    }
}

/// Bytes that a file with these parts takes.
pub(crate) fn file_bytes(meta_len: usize, body_len: usize) -> u64 {
    HEADER_BYTES + meta_len as u64 + body_len as u64
}

/// Writes a file under a temporary name in the same directory, flushes it and renames it. A regular file that
/// has the name is replaced. On failure nothing of it stays.
pub(crate) fn write(
    path: &Path,
    temporary: &Path,
    kind: Kind,
    meta: &[u8],
    body: &[&[u8]],
    now: SystemTime,
) -> Result<(), StoreError> {
    // Renaming would remove a link or a pipe too.
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StoreError::io("look at", path)(error)),
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(StoreError::Blocked { path: path.to_owned() }),
    }
    let written = write_new(temporary, kind, meta, body, now)
        .map_err(StoreError::io("write", temporary))
        .and_then(|()| fs::rename(temporary, path).map_err(StoreError::io("rename to", path)));
    if let Err(StoreError::Io { source, .. }) = &written
        // What has the name already is not of this call.
        && source.kind() != io::ErrorKind::AlreadyExists
    {
        let _ = fs::remove_file(temporary);
    }
    written
}

fn write_new(
    path: &Path,
    kind: Kind,
    meta: &[u8],
    body: &[&[u8]],
    now: SystemTime,
) -> io::Result<()> {
    let mut body_hash = blake3::Hasher::new();
    for part in body {
        body_hash.update(part);
    }
    let body_len: usize = body.iter().map(|part| part.len()).sum();
    let mut header = Vec::with_capacity(HEADER_BYTES as usize);
    header.extend_from_slice(MARK);
    header.extend_from_slice(&FORMAT.to_le_bytes());
    header.extend_from_slice(&(kind as u32).to_le_bytes());
    header.extend_from_slice(&(meta.len() as u64).to_le_bytes());
    header.extend_from_slice(&(body_len as u64).to_le_bytes());
    header.extend_from_slice(blake3::hash(meta).as_bytes());
    header.extend_from_slice(body_hash.finalize().as_bytes());

    let mut options = private();
    let mut file = options.write(true).create_new(true).open(path)?;
    file.write_all(&header)?;
    file.write_all(meta)?;
    for part in body {
        file.write_all(part)?;
    }
    file.set_modified(now)?;
    file.sync_all()
}

/// Makes renames in a directory lasting, where the system can.
pub(crate) fn sync_dir(dir: &Path) {
    if let Ok(dir) = File::open(dir) {
        let _ = dir.sync_all();
    }
}

/// Removes a regular file, whatever it holds; anything else that has the name stays. For names of this crate
/// in a directory that this process has locked.
pub(crate) fn remove_regular(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_file() { fs::remove_file(path) } else { Ok(()) }
}

/// Removes a file if it starts with the mark; whatever else has the name stays.
pub(crate) fn remove_marked(path: &Path) -> io::Result<()> {
    if is_marked(path) { fs::remove_file(path) } else { Ok(()) }
}

/// Whether something is a regular file with the mark at its start, or so short that it has a part of it only.
/// One byte may differ: a damaged mark is still one.
fn is_marked(path: &Path) -> bool {
    starts_with(path, |start| start.iter().zip(MARK).filter(|(a, b)| a != b).count() <= 1)
}

/// Whether a regular file looks like one of this crate that a crash has cut short or left as zeros.
pub(crate) fn is_marked_or_lost(path: &Path) -> bool {
    is_marked(path) || starts_with(path, |start| start.iter().all(|byte| *byte == 0))
}

/// Whether something is a regular file whose first bytes, as many as the mark has, are such.
fn starts_with(path: &Path, is_such: impl Fn(&[u8]) -> bool) -> bool {
    let Ok((file, _)) = open_regular(path) else { return false };
    let mut start = Vec::with_capacity(MARK.len());
    file.take(MARK.len() as u64).read_to_end(&mut start).is_ok() && is_such(&start)
}

/// Options that create files readable by their owner only: prompts are private.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
    }
    options
}

/// Opens a page and checks all but its body.
pub(crate) fn open_page(path: &Path, key: &Key, page_bytes: usize) -> Result<Checked, ReadError> {
    let checked = Checked::open(path, Kind::Page)?;
    if checked.meta != key || checked.body_len != page_bytes as u64 {
        return damaged("it is another page");
    }
    Ok(checked)
}

/// Opens a regular file without following a link or waiting for a pipe; with its length.
fn open_regular(path: &Path) -> Result<(File, u64), ReadError> {
    // Asked first as well: to open a device can have effects.
    if !fs::symlink_metadata(path)?.is_file() {
        return damaged("not a regular file");
    }
    let file = private().read(true).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return damaged("not a regular file");
    }
    Ok((file, metadata.len()))
}
