//! Machine code that is part of the program: many pipelines for several architectures, made when a release is
//! (`cargo xtask cubins`).
//!
//! An archive begins with lines of text, which the build script reads too; an empty one ends them:
//!
//! ```text
//! calla cubins 1
//! sources DIGEST                              of the files that it was made of, as the build script takes it
//! compiler 13.0
//! block sm_80 BYTES UNPACKED DIGEST           for each architecture, in their order; the digest is that of the unpacked block
//! ```
//!
//! Blocks follow, each a stream of XZ. Unpacked, a block is a count, then for each pipeline its key with start and length of
//! its machine code in what comes behind (u32, little-endian), ordered by key. The same code stands there once.

use crate::compiler::{Architecture, Key, Version};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;

/// What an archive begins with.
const MAGIC: &str = "calla cubins 1";
/// Bytes of a pipeline in a block's index.
const INDEX: usize = blake3::OUT_LEN + 8;
/// Most bytes of an unpacked block; what an archive says is not believed beyond.
const UNPACKED_MAX: usize = 1 << 28;
/// How hard to pack: as much as there is.
const PRESET: u32 = 9;

/// Machine code of pipelines, by their keys.
pub type Pipelines = HashMap<Key, Vec<u8>>;

/// The bytes of an archive. `sources`: the digest of the files that it is made of ([`SOURCES`](crate::SOURCES)).
///
/// # Errors
/// If a block does not fit: it has 256 MiB at most.
pub fn write(
    sources: &str,
    compiler: Version,
    blocks: &BTreeMap<Architecture, Pipelines>,
) -> io::Result<Vec<u8>> {
    let mut head = format!("{MAGIC}\nsources {sources}\ncompiler {compiler}\n");
    let mut body = vec![];
    for (architecture, pipelines) in blocks {
        let unpacked = unpacked(pipelines);
        if unpacked.len() > UNPACKED_MAX {
            let text = format!("{architecture}: {} bytes of machine code", unpacked.len());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let start = body.len();
        let options = lzma_rust2::XzOptions::with_preset(PRESET);
        let mut writer = lzma_rust2::XzWriter::new(&mut body, options)?;
        writer.write_all(&unpacked)?;
        writer.finish()?;
        let Architecture { major, minor } = architecture;
        let (packed, len) = (body.len() - start, unpacked.len());
        let digest = blake3::hash(&unpacked);
        head += &format!("block sm_{major}{minor} {packed} {len} {digest}\n");
    }
    head.push('\n');
    Ok([head.as_bytes(), &body].concat())
}

fn unpacked(pipelines: &Pipelines) -> Vec<u8> {
    let sorted: BTreeMap<&[u8; blake3::OUT_LEN], &Vec<u8>> =
        pipelines.iter().map(|(key, code)| (key.0.as_bytes(), code)).collect();
    let mut starts: HashMap<&[u8], u32> = HashMap::new();
    let (mut index, mut all) = (vec![], vec![]);
    for (key, code) in sorted {
        let start = *starts.entry(code).or_insert_with(|| {
            let start = all.len() as u32;
            all.extend_from_slice(code);
            start
        });
        index.extend_from_slice(key);
        index.extend_from_slice(&start.to_le_bytes());
        index.extend_from_slice(&(code.len() as u32).to_le_bytes());
    }
    let count = pipelines.len() as u32;
    [&count.to_le_bytes(), index.as_slice(), &all].concat()
}

/// An archive whose head was read.
#[derive(Debug)]
pub struct Archive<'a> {
    /// The digest of the files that it was made of.
    pub sources: String,
    /// What made its machine code.
    pub compiler: Version,
    blocks: Vec<(Architecture, Packed<'a>)>,
}

#[derive(Clone, Copy, Debug)]
struct Packed<'a> {
    bytes: &'a [u8],
    unpacked: usize,
    digest: blake3::Hash,
}

impl<'a> Archive<'a> {
    /// Reads the head of an archive.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let end = bytes.windows(2).position(|pair| pair == b"\n\n").ok_or("it has no head")?;
        let (head, mut rest) = (&bytes[..end], &bytes[end + 2..]);
        let head = std::str::from_utf8(head).map_err(|_| "its head is no text")?;
        let mut lines = head.lines();
        if lines.next() != Some(MAGIC) {
            return Err(format!("its first line is not {MAGIC:?}"));
        }
        let mut field = |name: &str| {
            let text = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            text.ok_or_else(|| format!("its head has no {name} where it should"))
        };
        let sources = field("sources")?.to_owned();
        let compiler = version(field("compiler")?).ok_or("its compiler has no version")?;
        let mut blocks = vec![];
        for line in lines {
            let block = block(line, rest).ok_or_else(|| format!("{line:?} is no block of it"))?;
            rest = &rest[block.1.bytes.len()..];
            blocks.push(block);
        }
        if !rest.is_empty() {
            return Err(format!("{} bytes follow its blocks", rest.len()));
        }
        Ok(Self { sources, compiler, blocks })
    }

    /// The architectures, in their order.
    pub fn architectures(&self) -> impl Iterator<Item = Architecture> {
        self.blocks.iter().map(|&(architecture, _)| architecture)
    }

    /// The block that is nearest to a GPU, of those that it runs.
    ///
    /// # Errors
    /// What is wrong with the block.
    pub fn block(&self, gpu: Architecture) -> Result<Option<Block>, String> {
        let fitting = self.blocks.iter().filter(|(architecture, _)| architecture.runs_on(gpu));
        let nearest = fitting.max_by_key(|(architecture, _)| *architecture);
        nearest.map(|(_, packed)| packed.unpack()).transpose()
    }
}

fn version(text: &str) -> Option<Version> {
    let (major, minor) = text.split_once('.')?;
    Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// A block by its line; its bytes are the first of `rest`.
fn block<'a>(line: &str, rest: &'a [u8]) -> Option<(Architecture, Packed<'a>)> {
    let words: Vec<&str> = line.strip_prefix("block ")?.split(' ').collect();
    let &[architecture, packed, unpacked, digest] = words.as_slice() else { return None };
    let bytes = rest.get(..packed.parse().ok()?)?;
    let unpacked = unpacked.parse().ok().filter(|&len| len <= UNPACKED_MAX)?;
    let digest = blake3::Hash::from_hex(digest).ok()?;
    Some((architecture.parse().ok()?, Packed { bytes, unpacked, digest }))
}

impl Packed<'_> {
    fn unpack(&self) -> Result<Block, String> {
        let mut bytes = Vec::with_capacity(self.unpacked);
        // One byte more shows what is too long.
        let mut reader =
            lzma_rust2::XzReader::new(self.bytes, false).take(self.unpacked as u64 + 1);
        reader.read_to_end(&mut bytes).map_err(|error| format!("it does not unpack: {error}"))?;
        if blake3::hash(&bytes) != self.digest {
            return Err("it is damaged: its digest is another".to_owned());
        }
        Ok(Block(bytes))
    }
}

/// Machine code for one architecture.
#[derive(Debug)]
pub struct Block(Vec<u8>);

impl Block {
    /// Number of pipelines.
    #[must_use]
    pub fn len(&self) -> usize {
        let count = self.0.first_chunk::<4>().map_or(0, |&count| u32::from_le_bytes(count));
        count as usize
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The machine code of a pipeline.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&[u8]> {
        let (index, all) = self.0.get(4..)?.split_at_checked(self.len().checked_mul(INDEX)?)?;
        let index = index.as_chunks::<INDEX>().0;
        let key = key.0.as_bytes();
        let at = index.binary_search_by(|entry| entry[..key.len()].cmp(key)).ok()?;
        let [start, len] = index[at][key.len()..].as_chunks::<4>().0.first_chunk::<2>()?;
        let [start, len] = [start, len].map(|&word| u32::from_le_bytes(word) as usize);
        all.get(Range { start, end: start.checked_add(len)? })
    }
}

#[cfg(test)]
mod tests;
