//! Writing planned tensors into safetensors files, on all cores and in bounded memory.

use super::Progress;
use super::fill::Fill;
use super::plan::PlannedTensor;
use crate::error::Error;
use crate::repository::{INDEX_FILE, SINGLE_FILE};
use rayon::prelude::*;
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::fs::{File, TryLockError};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What one thread makes and writes at a time; with one buffer per thread, all memory that writing needs.
const CHUNK_BYTES: usize = 4 << 20;
/// Added to names until everything is complete.
const PARTIAL: &str = ".partial";
/// Files that belong to the tokenizer, the template and generation.
const TOKENIZER_FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// One file to write.
pub(super) struct PlannedShard<'a> {
    pub(super) name: String,
    /// Tensors with their place in the file, in that order.
    tensors: Vec<(&'a PlannedTensor, u64)>,
    /// The header with its length.
    pub(super) header: Vec<u8>,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// Divides tensors into files of at most `limit` bytes of tensors (or one tensor).
pub(super) fn shards(tensors: &[PlannedTensor], limit: u64) -> Vec<PlannedShard<'_>> {
    let mut groups: Vec<Vec<&PlannedTensor>> = vec![Vec::new()];
    let mut filled = 0;
    for tensor in tensors {
        let bytes = tensor.bytes();
        if filled > 0 && filled + bytes > limit {
            groups.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        if let Some(group) = groups.last_mut() {
            group.push(tensor);
        }
    }
    let count = groups.len();
    let name = |i: usize| match count {
        1 => SINGLE_FILE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
    };
    groups.into_iter().enumerate().map(|(i, group)| PlannedShard::new(name(i), group)).collect()
}

impl<'a> PlannedShard<'a> {
    fn new(name: String, mut tensors: Vec<&'a PlannedTensor>) -> Self {
        // Widest elements first, behind a header padded to 8: every tensor is aligned for its type.
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bitsize()));
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": "mlx"}));
        let mut placed = Vec::with_capacity(tensors.len());
        let mut offset = 0;
        for tensor in tensors {
            let end = offset + tensor.bytes();
            let entry = json!({
                "dtype": dtype_name(tensor.dtype),
                "shape": tensor.shape,
                "data_offsets": [offset, end],
            });
            header.insert(tensor.name.clone(), entry);
            placed.push((tensor, offset));
            offset = end;
        }
        let mut json = Value::Object(header).to_string().into_bytes();
        json.resize(json.len().next_multiple_of(8), b' ');
        let header = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
        let start = header.len() as u64;
        for (_, place) in &mut placed {
            *place += start;
        }
        Self { name, tensors: placed, header, bytes: start + offset }
    }
}

fn dtype_name(dtype: Dtype) -> String {
    format!("{dtype:?}")
}

/// A directory being filled. Dropped before [`Output::finish`], it removes what it wrote.
pub(super) struct Output {
    dir: PathBuf,
    created: bool,
    /// Final names of files written so far.
    names: Vec<String>,
    finished: bool,
}

impl Output {
    pub(super) fn create(dir: &Path) -> Result<Self, Error> {
        let io = |source| Error::io("create", dir, source);
        let created = !dir.exists();
        std::fs::create_dir_all(dir).map_err(io)?;
        let not_empty = || Error::NotEmpty { dir: dir.to_owned() };
        let mut leftovers = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if !is_leftover(&path) {
                return Err(not_empty());
            }
            leftovers.push(path);
        }
        for path in leftovers {
            std::fs::remove_file(&path).map_err(|source| Error::io("remove", &path, source))?;
        }
        Ok(Self { dir: dir.to_owned(), created, names: Vec::new(), finished: false })
    }

    /// Starts a file under its temporary name; fails if one is there.
    fn start(&mut self, name: &str) -> Result<(PathBuf, File), Error> {
        let path = self.dir.join(format!("{name}{PARTIAL}"));
        let file = File::create_new(&path).map_err(|source| Error::io("create", &path, source))?;
        // Says that this run lives; where the file system has no locks, nothing does.
        let _ = file.try_lock();
        self.names.push(name.to_owned());
        Ok((path, file))
    }

    pub(super) fn write_text(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let (path, mut file) = self.start(name)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|source| Error::io("write", &path, source))
    }

    pub(super) fn copy_tokenizer(&mut self, from: &Path) -> Result<(), Error> {
        for name in TOKENIZER_FILES {
            let source_path = from.join(name);
            if source_path.is_file() {
                let (path, mut file) = self.start(name)?;
                File::open(&source_path)
                    .and_then(|mut source| std::io::copy(&mut source, &mut file))
                    .map_err(|source| Error::io("copy a file to", &path, source))?;
            }
        }
        if self.names.is_empty() {
            let none = std::io::Error::new(std::io::ErrorKind::NotFound, "it holds no tokenizer");
            return Err(Error::io("copy the tokenizer of", from, none));
        }
        Ok(())
    }

    /// Writes all weight files, and their index if there are several; returns their bytes.
    pub(super) fn write_shards(
        &mut self,
        shards: &[PlannedShard<'_>],
        progress: Progress<'_>,
    ) -> Result<u64, Error> {
        let total = shards.iter().map(|shard| shard.bytes).sum();
        let written = AtomicU64::new(0);
        let mut files = Vec::with_capacity(shards.len());
        for shard in shards {
            let (path, file) = self.start(&shard.name)?;
            file.set_len(shard.bytes)
                .and_then(|()| write_at(&file, &shard.header, 0))
                .map_err(|source| Error::io("write", &path, source))?;
            written.fetch_add(shard.header.len() as u64, Ordering::Relaxed);
            files.push((path, file));
        }
        for (shard, (path, file)) in shards.iter().zip(&files) {
            shard
                .chunks()
                .into_par_iter()
                .with_max_len(1)
                .try_for_each_init(
                    || vec![0; CHUNK_BYTES],
                    |buffer, chunk| {
                        let piece = &mut buffer[..chunk.len];
                        chunk.fill.fill(chunk.offset, piece);
                        write_at(file, piece, chunk.place)?;
                        let before = written.fetch_add(piece.len() as u64, Ordering::Relaxed);
                        match progress(before + piece.len() as u64, total) {
                            ControlFlow::Continue(()) => Ok(()),
                            // As an error of the file, so that the other threads stop too.
                            ControlFlow::Break(()) => Err(std::io::Error::other("stopped")),
                        }
                    },
                )
                .and_then(|()| file.sync_all())
                .map_err(|source| Error::io("write", path, source))?;
        }
        if shards.len() > 1 {
            self.write_text(INDEX_FILE, &index_json(shards))?;
        }
        Ok(total)
    }

    /// Gives every file its name, `config.json` (written last) after all others.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        for name in &self.names {
            let (from, to) = (self.dir.join(format!("{name}{PARTIAL}")), self.dir.join(name));
            std::fs::rename(&from, &to).map_err(|source| Error::io("rename", &from, source))?;
        }
        self.finished = true;
        Ok(())
    }
}

/// Whether a file was left by a run that was killed: a temporary name of ours, and no run that holds it.
fn is_leftover(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(name) = name.and_then(|name| name.strip_suffix(PARTIAL)) else { return false };
    let is_weights = name.strip_prefix("model").is_some_and(|rest| rest.ends_with(".safetensors"));
    let is_ours = is_weights
        || name == INDEX_FILE
        || name == "config.json"
        || TOKENIZER_FILES.contains(&name);
    let is_file = path.symlink_metadata().is_ok_and(|meta| meta.is_file());
    is_ours
        && is_file
        && File::open(path)
            .is_ok_and(|file| !matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Best effort: the error that led here is the one to report. The directory was empty before.
        for name in &self.names {
            let _ = std::fs::remove_file(self.dir.join(format!("{name}{PARTIAL}")));
            let _ = std::fs::remove_file(self.dir.join(name));
        }
        if self.created {
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}

/// A piece of a tensor.
struct Chunk<'a> {
    fill: &'a Fill,
    /// Where it begins in the tensor.
    offset: usize,
    len: usize,
    /// Where it begins in the file.
    place: u64,
}

impl PlannedShard<'_> {
    fn chunks(&self) -> Vec<Chunk<'_>> {
        let mut chunks = Vec::new();
        for &(tensor, place) in &self.tensors {
            let bytes = tensor.bytes() as usize;
            for offset in (0..bytes).step_by(CHUNK_BYTES) {
                let len = CHUNK_BYTES.min(bytes - offset);
                chunks.push(Chunk {
                    fill: &tensor.fill,
                    offset,
                    len,
                    place: place + offset as u64,
                });
            }
        }
        chunks
    }
}

/// The text of the index of several files.
pub(super) fn index_json(shards: &[PlannedShard<'_>]) -> String {
    let tensors = || shards.iter().flat_map(|s| s.tensors.iter().map(move |(t, _)| (s, *t)));
    let map: Map<String, Value> =
        tensors().map(|(shard, tensor)| (tensor.name.clone(), shard.name.clone().into())).collect();
    let total_size: u64 = tensors().map(|(_, tensor)| tensor.bytes()).sum();
    format!("{:#}\n", json!({"metadata": {"total_size": total_size}, "weight_map": map}))
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], place: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, place)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut place: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, place)?;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        place += written as u64;
    }
    Ok(())
}
