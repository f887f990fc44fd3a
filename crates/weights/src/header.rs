//! The header of a safetensors file: read as an allegation, kept only as far as the file's size proves it.
//!
//! Layout of the file: 8 bytes little-endian header length, the header (a JSON object from tensor names
//! to dtype, shape and byte range), then the tensors' bytes back to back. The `safetensors` crate checks
//! the same rules; this reader adds the name, bound and value to each refusal, and refuses duplicate
//! names, which a map would silently drop. Whatever it accepts, the crate accepts too (a fuzz target and
//! a property test hold it to that).

use crate::error::shown;
use safetensors::Dtype;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// Longest header that is read, in bytes; the reference implementation has the same limit.
pub const HEADER_LEN_MAX: u64 = 100_000_000;
/// Most tensors in one file. The largest layout of the family (one tensor per expert, quantised) has
/// about 100,000 in all its files together.
pub const TENSORS_MAX: usize = 262_144;
/// Most dimensions of one tensor; the family needs 3 (5 in the vision tower).
pub const RANK_MAX: usize = 8;

const LEN_BYTES: usize = 8;
const METADATA: &str = "__metadata__";

/// One tensor of a file. Holding one proves: no dimension is 0, the length of `range` is the product of
/// `shape` times the size of `dtype`, and `range` lies inside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Name as the file gives it.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Bytes of the tensor, counted from the start of the file.
    pub range: Range<usize>,
}

/// Why a header was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not even the header's length fits.
    #[error("the file has {0} bytes, but a safetensors file begins with 8 bytes of header length")]
    TooShort(usize),
    /// The header is longer than any real one.
    #[error(
        "the header claims {0} bytes; the limit is {HEADER_LEN_MAX}: this is no safetensors file"
    )]
    TooLong(u64),
    /// The header is longer than the file.
    #[error(
        "the header claims {claimed} bytes, but only {available} follow its length: the file is \
         truncated (an unfinished download?) or no safetensors file"
    )]
    BeyondFile {
        /// Length in the first 8 bytes.
        claimed: u64,
        /// Bytes of the file after them.
        available: usize,
    },
    /// The header is not text.
    #[error("the header is not UTF-8: bad byte at {0}")]
    Utf8(usize),
    /// The header is not a JSON object of tensors.
    #[error("the header is not a JSON object of tensors: {0}")]
    Json(String),
    /// A name occurs twice.
    #[error("tensor \"{}\" occurs twice in the header", shown(.0))]
    Duplicate(String),
    /// More tensors than any real file has.
    #[error("the header lists more than {TENSORS_MAX} tensors")]
    TooMany,
    /// One tensor is wrong.
    #[error("tensor \"{}\": {problem}", shown(.name))]
    Tensor {
        /// Which tensor.
        name: String,
        /// What is wrong.
        problem: TensorProblem,
    },
    /// The tensors do not reach the end of the file.
    #[error("the tensors end at byte {end} of the data, but {len} bytes are there: {} trailing bytes", .len - .end)]
    Trailing {
        /// End of the last tensor.
        end: u64,
        /// Bytes of data.
        len: u64,
    },
}

/// What is wrong with one tensor of a header.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorProblem {
    /// Unknown element type.
    #[error("unknown dtype \"{}\"", shown(.0))]
    Dtype(String),
    /// Too many dimensions.
    #[error("more than {RANK_MAX} dimensions")]
    Rank,
    /// A dimension is zero.
    #[error("shape {0:?} has a zero dimension")]
    ZeroDimension(Vec<u64>),
    /// The shape describes more bytes than 64 bits can count.
    #[error("shape {0:?} of {1:?} overflows: no file is that large")]
    Overflow(Vec<u64>, Dtype),
    /// The elements do not fill whole bytes.
    #[error("shape {0:?} of {1:?} is not a whole number of bytes")]
    Bits(Vec<u64>, Dtype),
    /// The range ends before it begins.
    #[error("data_offsets [{0}, {1}] are reversed")]
    Reversed(u64, u64),
    /// The range reaches past the end of the file.
    #[error(
        "data_offsets [{begin}, {end}] reach beyond the {available} bytes of data in the file: it is \
         truncated (an unfinished download?)"
    )]
    BeyondFile {
        /// Begin of the range.
        begin: u64,
        /// End of the range.
        end: u64,
        /// Bytes of data.
        available: u64,
    },
    /// The range has another length than the shape implies.
    #[error(
        "data_offsets [{begin}, {end}] hold {} bytes, but shape {shape:?} of {dtype:?} needs {needed}",
        .end - .begin
    )]
    Length {
        /// Begin of the range.
        begin: u64,
        /// End of the range.
        end: u64,
        /// Claimed shape.
        shape: Vec<u64>,
        /// Claimed type.
        dtype: Dtype,
        /// Bytes that shape and type imply.
        needed: u64,
    },
    /// The range begins inside the one before.
    #[error("data begin at {begin}, inside the tensor before, which ends at {previous_end}")]
    Overlap {
        /// Begin of the range.
        begin: u64,
        /// End of the range before.
        previous_end: u64,
    },
    /// Bytes before the range belong to no tensor.
    #[error("data begin at {begin}, but the tensor before ends at {previous_end}: a gap")]
    Gap {
        /// Begin of the range.
        begin: u64,
        /// End of the range before (0 for the first tensor).
        previous_end: u64,
    },
}

/// Reads the header of a whole file's bytes. Allocates in proportion to the header, which lies in the file.
///
/// Returns the tensors in the order of their bytes.
///
/// # Errors
/// If any rule of the format is broken.
pub fn read(file: &[u8]) -> Result<Vec<TensorEntry>, HeaderError> {
    let Some((length, rest)) = file.split_first_chunk::<LEN_BYTES>() else {
        return Err(HeaderError::TooShort(file.len()));
    };
    let claimed = u64::from_le_bytes(*length);
    if claimed > HEADER_LEN_MAX {
        return Err(HeaderError::TooLong(claimed));
    }
    let beyond = HeaderError::BeyondFile { claimed, available: rest.len() };
    let Some((header, data)) = rest.split_at_checked(claimed as usize) else {
        return Err(beyond);
    };
    let data_start = LEN_BYTES + header.len();
    let text = std::str::from_utf8(header).map_err(|e| HeaderError::Utf8(e.valid_up_to()))?;
    if !text.starts_with('{') {
        return Err(HeaderError::Json("it does not begin with '{'".to_owned()));
    }
    let raw = parse(text)?;
    check(raw, data_start, data.len() as u64)
}

/// Turns allegations into proven entries.
fn check(
    raw: Vec<(String, RawEntry)>,
    data_start: usize,
    available: u64,
) -> Result<Vec<TensorEntry>, HeaderError> {
    let mut raw = raw;
    {
        let mut seen = HashSet::with_capacity(raw.len());
        if let Some((name, _)) = raw.iter().find(|(name, _)| !seen.insert(name.as_str())) {
            return Err(HeaderError::Duplicate(name.clone()));
        }
    }
    raw.sort_by_key(|(_, entry)| entry.offsets);
    let mut previous_end = 0;
    let mut entries = Vec::with_capacity(raw.len());
    for (name, entry) in raw {
        match entry.check(previous_end, available) {
            Ok((dtype, (begin, end))) => {
                previous_end = end;
                // All lie inside `available` bytes of memory, so they fit usize.
                let shape = entry.shape.iter().map(|&d| d as usize).collect();
                let range = data_start + begin as usize..data_start + end as usize;
                entries.push(TensorEntry { name, dtype, shape, range });
            }
            Err(problem) => return Err(HeaderError::Tensor { name, problem }),
        }
    }
    if previous_end != available {
        return Err(HeaderError::Trailing { end: previous_end, len: available });
    }
    Ok(entries)
}

/// A tensor as the header alleges it.
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    offsets: (u64, u64),
}

impl RawEntry {
    fn check(
        &self,
        previous_end: u64,
        available: u64,
    ) -> Result<(Dtype, (u64, u64)), TensorProblem> {
        let (begin, end) = self.offsets;
        let dtype = dtype(&self.dtype)?;
        let shape = || self.shape.clone();
        if self.shape.len() > RANK_MAX {
            return Err(TensorProblem::Rank);
        }
        if self.shape.contains(&0) {
            return Err(TensorProblem::ZeroDimension(shape()));
        }
        let bits = self
            .shape
            .iter()
            .try_fold(dtype.bitsize() as u64, |product, &d| product.checked_mul(d))
            .ok_or_else(|| TensorProblem::Overflow(shape(), dtype))?;
        if !bits.is_multiple_of(8) {
            return Err(TensorProblem::Bits(shape(), dtype));
        }
        let needed = bits / 8;
        if begin > end {
            return Err(TensorProblem::Reversed(begin, end));
        }
        if end - begin != needed {
            return Err(TensorProblem::Length { begin, end, shape: shape(), dtype, needed });
        }
        if begin < previous_end {
            return Err(TensorProblem::Overlap { begin, previous_end });
        }
        if end > available {
            return Err(TensorProblem::BeyondFile { begin, end, available });
        }
        if begin > previous_end {
            return Err(TensorProblem::Gap { begin, previous_end });
        }
        Ok((dtype, (begin, end)))
    }
}

fn dtype(name: &str) -> Result<Dtype, TensorProblem> {
    use serde::de::IntoDeserializer;
    let name_deserializer: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
        name.into_deserializer();
    serde::Deserialize::deserialize(name_deserializer)
        .map_err(|_| TensorProblem::Dtype(name.to_owned()))
}

fn parse(text: &str) -> Result<Vec<(String, RawEntry)>, HeaderError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let entries = json.deserialize_map(HeaderVisitor).map_err(json_error)?;
    json.end().map_err(json_error)?;
    if entries.len() > TENSORS_MAX { Err(HeaderError::TooMany) } else { Ok(entries) }
}

fn json_error(error: serde_json::Error) -> HeaderError {
    // serde quotes what it found; a hostile header may hold megabytes of it.
    HeaderError::Json(shown(&error.to_string()).into_owned())
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<(String, RawEntry)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        let mut metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if std::mem::replace(&mut metadata, true) {
                    return Err(A::Error::custom("\"__metadata__\" occurs twice"));
                }
                map.next_value_seed(MetadataSeed)?;
                continue;
            }
            let entry = map
                .next_value_seed(EntrySeed)
                .map_err(|e| A::Error::custom(format_args!("tensor \"{}\": {e}", shown(&name))))?;
            entries.push((name, entry));
            if entries.len() > TENSORS_MAX {
                // One more than the limit: the caller turns it into its own error.
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                break;
            }
        }
        Ok(entries)
    }
}

/// Checks that the metadata map strings to strings (the format's rule) and forgets them.
struct MetadataSeed;

impl<'de> DeserializeSeed<'de> for MetadataSeed {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings in \"__metadata__\"")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<String, String>()?.is_some() {}
        Ok(())
    }
}

struct EntrySeed;

impl<'de> DeserializeSeed<'de> for EntrySeed {
    type Value = RawEntry;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawEntry, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntrySeed {
    type Value = RawEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawEntry, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let again = match key.as_str() {
                "dtype" => dtype.replace(map.next_value::<String>()?).is_some(),
                "shape" => shape.replace(map.next_value_seed(ShapeSeed)?).is_some(),
                "data_offsets" => offsets.replace(map.next_value::<(u64, u64)>()?).is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if again {
                return Err(A::Error::custom(format_args!("\"{key}\" occurs twice")));
            }
        }
        Ok(RawEntry {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            offsets: offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }
}

/// Reads at most one dimension more than allowed, so that a long list costs no memory.
struct ShapeSeed;

impl<'de> DeserializeSeed<'de> for ShapeSeed {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ShapeSeed {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = seq.next_element::<u64>()? {
            if shape.len() <= RANK_MAX {
                shape.push(dimension);
            }
        }
        Ok(shape)
    }
}
