//! Arrays out of an untrusted `.npz` file, with allocation bounded by the file's own size.
//!
//! `npyz` decodes; this module stands before it. Sizes that the file claims are compared with bounds before
//! anything is allocated, and a header reaches `npyz` only when it is short and flat and its dimensions
//! cannot overflow a product.

use npyz::{Deserialize, NpyFile, NpyHeader, Order};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use zip::CompressionMethod;
use zip::read::ZipArchive;

/// Largest ratio of unpacked to packed bytes: deflate reaches 1032 on constant bytes, logits about 1.1.
pub const MAX_RATIO: u64 = 200;
/// What may be unpacked of any file, however small: arrays of constants pack well.
pub const MIN_BUDGET: u64 = 1 << 20;
/// What may be unpacked of any file, however large (4 GiB: 4,096 rows of logits of the full vocabulary).
pub const MAX_BUDGET: u64 = 1 << 32;
/// Longest array header that is parsed; `numpy` writes 118 bytes for plain arrays.
const MAX_HEADER: usize = 1024;
/// Most digits in a header: a product of its dimensions is then below 10^18 and fits 64 bits.
const MAX_HEADER_DIGITS: usize = 18;

/// Why an `.npz` file was refused.
#[derive(Debug, thiserror::Error)]
pub enum NpzError {
    /// It cannot be read, or is not a zip archive.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What failed.
        reason: String,
    },
    /// It unpacks to more than its size makes plausible.
    #[error(
        "array \"{name}\" claims {claimed} bytes but only {left} more may be unpacked from this file \
         (at most {MAX_RATIO} times its size)"
    )]
    Budget {
        /// The array.
        name: String,
        /// Bytes it claims.
        claimed: u64,
        /// Bytes that may still be unpacked.
        left: u64,
    },
    /// An array is missing.
    #[error("array \"{name}\" is missing; the file holds {present}")]
    Missing {
        /// The array.
        name: String,
        /// Some of the names that are there.
        present: String,
    },
    /// An array is malformed or of another type or shape than it must have.
    #[error("array \"{name}\": {problem}")]
    Array {
        /// The array.
        name: String,
        /// What is wrong, with the bound and the value.
        problem: String,
    },
}

/// A C-ordered array.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements; as many as the product of the dimensions.
    pub data: Vec<T>,
}

/// An open `.npz` file.
pub struct Npz {
    zip: ZipArchive<BufReader<File>>,
    /// Index in the archive and claimed size of each array.
    entries: BTreeMap<String, (usize, u64)>,
    budget: u64,
}

impl Npz {
    /// Opens a file and lists its arrays.
    ///
    /// # Errors
    /// If it cannot be read, is no zip archive, or is packed in a way that `numpy` does not use.
    pub fn open(path: &Path) -> Result<Self, NpzError> {
        let read = |reason: String| NpzError::Read { path: path.to_path_buf(), reason };
        // Before opening: that of a pipe would wait for a writer.
        let meta = std::fs::metadata(path).map_err(|e| read(e.to_string()))?;
        if !meta.is_file() {
            return Err(read("it is not a regular file".to_owned()));
        }
        let file = File::open(path).map_err(|e| read(e.to_string()))?;
        let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|e| read(e.to_string()))?;
        let mut entries = BTreeMap::new();
        for index in 0..zip.len() {
            // Raw: no decompressor is built before its method is known to be one of these two.
            let entry = zip.by_index_raw(index).map_err(|e| read(e.to_string()))?;
            let name = entry.name().map_err(|e| read(e.to_string()))?;
            let Some(name) = name.strip_suffix(".npy") else { continue };
            let method = entry.compression();
            if method != CompressionMethod::Stored && method != CompressionMethod::Deflated {
                return Err(read(format!("\"{name}\" is packed by {method}; numpy uses deflate")));
            }
            entries.insert(name.to_owned(), (index, entry.size()));
        }
        let budget = meta.len().saturating_mul(MAX_RATIO).clamp(MIN_BUDGET, MAX_BUDGET);
        Ok(Self { zip, entries, budget })
    }

    /// Whether it holds an array.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Names of its arrays, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Reads an array of token ids; stored as i32, i64, u32 or u64.
    ///
    /// # Errors
    /// If it is missing, malformed, of another type, or holds a value outside u32.
    pub fn ids(&mut self, name: &str) -> Result<Array<u32>, NpzError> {
        let raw = self.raw(name)?;
        let shape = raw.shape.clone();
        let data = match raw.dtype.as_str() {
            "<i4" => narrow(name, raw.decode::<i32>()?)?,
            "<i8" => narrow(name, raw.decode::<i64>()?)?,
            "<u4" => raw.decode::<u32>()?,
            "<u8" => narrow(name, raw.decode::<u64>()?)?,
            _ => return Err(raw.wrong_type("integers (i32, i64, u32 or u64)")),
        };
        Ok(Array { shape, data })
    }

    /// Reads an array of numbers; stored as f32 or f64. All must be finite.
    ///
    /// # Errors
    /// If it is missing, malformed, of another type, or holds NaN or an infinity.
    pub fn floats(&mut self, name: &str) -> Result<Array<f32>, NpzError> {
        let raw = self.raw(name)?;
        let shape = raw.shape.clone();
        let data = match raw.dtype.as_str() {
            "<f4" => raw.decode::<f32>()?,
            "<f8" => raw.decode::<f64>()?.into_iter().map(|v| v as f32).collect(),
            _ => return Err(raw.wrong_type("numbers (f32 or f64)")),
        };
        match data.iter().position(|v| !v.is_finite()) {
            Some(at) => Err(problem(name, format!("element {at} is {}, not finite", data[at]))),
            None => Ok(Array { shape, data }),
        }
    }

    /// Reads a single string; stored as `U`.
    ///
    /// # Errors
    /// If it is missing, malformed or of another type.
    pub fn text(&mut self, name: &str) -> Result<String, NpzError> {
        let raw = self.raw(name)?;
        if !raw.dtype.starts_with("<U") {
            return Err(raw.wrong_type("one string"));
        }
        match <[String; 1]>::try_from(raw.decode::<String>()?) {
            Ok([text]) => Ok(text),
            Err(all) => Err(problem(name, format!("it holds {} strings, not one", all.len()))),
        }
    }

    /// Bytes and header of an array, with every claim checked against the bytes that are there.
    fn raw(&mut self, name: &str) -> Result<Raw, NpzError> {
        let Some(&(index, claimed)) = self.entries.get(name) else {
            return Err(NpzError::Missing { name: name.to_owned(), present: self.some_names() });
        };
        if claimed > self.budget {
            return Err(NpzError::Budget { name: name.to_owned(), claimed, left: self.budget });
        }
        self.budget -= claimed;
        let entry = self.zip.by_index(index).map_err(|e| problem(name, e.to_string()))?;
        let mut bytes = Vec::new();
        // Grows with the data that really come, not with the claim. One byte more than claimed, for the
        // checksum is compared only by a read that meets the end.
        let read = entry.take(claimed + 1).read_to_end(&mut bytes);
        read.map_err(|e| problem(name, format!("cannot unpack it: {e}")))?;
        if bytes.len() as u64 > claimed {
            return Err(problem(
                name,
                format!("it unpacks to more than the {claimed} bytes it claims"),
            ));
        }
        Raw::parse(name, bytes)
    }

    fn some_names(&self) -> String {
        let names: Vec<&str> = self.names().take(8).collect();
        let more = self.entries.len() - names.len();
        match (names.is_empty(), more) {
            (true, _) => "no arrays".to_owned(),
            (false, 0) => names.join(", "),
            (false, more) => format!("{} and {more} more", names.join(", ")),
        }
    }
}

fn problem(name: &str, problem: String) -> NpzError {
    NpzError::Array { name: name.to_owned(), problem }
}

fn narrow<T: Copy + TryInto<u32> + std::fmt::Display>(
    name: &str,
    values: Vec<T>,
) -> Result<Vec<u32>, NpzError> {
    let id = |v: T| v.try_into().map_err(|_| problem(name, format!("{v} is not a token id")));
    values.into_iter().map(id).collect()
}

/// An array's bytes, whose number is what its header implies.
struct Raw {
    name: String,
    header: NpyHeader,
    /// Type as `numpy` writes it, such as `<f4`.
    dtype: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
    data_start: usize,
}

impl Raw {
    fn parse(name: &str, bytes: Vec<u8>) -> Result<Self, NpzError> {
        let data_start = check_header(&bytes).map_err(|p| problem(name, p))?;
        let header = NpyHeader::from_reader(&bytes[..data_start])
            .map_err(|e| problem(name, format!("bad header: {e}")))?;
        if header.order() != Order::C && header.shape().len() > 1 {
            return Err(problem(name, "it is stored in Fortran order; save it in C order".into()));
        }
        let dtype = header.dtype();
        let item = dtype.num_bytes().unwrap_or(0);
        let (expected, actual) =
            (u128::from(header.len()) * item as u128, bytes.len() - data_start);
        if item == 0 || expected != actual as u128 {
            let shape = header.shape();
            let p = format!("shape {shape:?} takes {expected} bytes but {actual} are there");
            return Err(problem(name, p));
        }
        // Each dimension divides a number of bytes that are in memory, or the array is empty.
        let shape = header.shape().iter().map(|&d| usize::try_from(d).unwrap_or(0)).collect();
        let dtype = dtype.descr().trim_matches('\'').to_owned();
        Ok(Self { name: name.to_owned(), header, dtype, shape, bytes, data_start })
    }

    fn decode<T: Deserialize>(self) -> Result<Vec<T>, NpzError> {
        let file = NpyFile::with_header(self.header, &self.bytes[self.data_start..]);
        file.into_vec().map_err(|e| problem(&self.name, e.to_string()))
    }

    fn wrong_type(&self, wanted: &str) -> NpzError {
        problem(&self.name, format!("it holds \"{}\" but must hold {wanted}", self.dtype))
    }
}

/// Where the data start, if the header is one that `npyz` can parse without harm.
fn check_header(bytes: &[u8]) -> Result<usize, String> {
    let (text_start, length) = match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, a, b, ..] => {
            (10, usize::from(u16::from_le_bytes([*a, *b])))
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, 0, a, b, c, d, ..] => {
            (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize)
        }
        _ => return Err("it does not start like a .npy file of version 1, 2 or 3".to_owned()),
    };
    let available = bytes.len() - text_start;
    if length > MAX_HEADER.min(available) {
        return Err(format!(
            "its header claims {length} bytes; at most {MAX_HEADER} are read and {available} are there"
        ));
    }
    let text = &bytes[text_start..text_start + length];
    // A dictionary with one tuple: more brackets are a structured type, or nesting that would exhaust
    // the parser's stack.
    let brackets = text.iter().filter(|b| b"([{".contains(b)).count();
    if brackets > 2 {
        return Err(format!("its header has {brackets} opening brackets; a plain array has 2"));
    }
    let digits = text.iter().filter(|b| b.is_ascii_digit()).count();
    if digits > MAX_HEADER_DIGITS {
        return Err(format!("its dimensions have {digits} digits; at most {MAX_HEADER_DIGITS}"));
    }
    Ok(text_start + length)
}
