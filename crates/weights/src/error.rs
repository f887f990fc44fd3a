//! Why a checkpoint cannot be read or written.

use crate::header::HeaderError;
use calla_model::{ConfigError, MatrixError};
use safetensors::Dtype;
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path given is not a directory.
    #[error("{} is not a directory: give the folder that holds config.json and the weights", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The directory has no weights (it may still have a configuration and a tokenizer).
    #[error(
        "{} holds no weights: neither model.safetensors nor model.safetensors.index.json is there",
        dir.display()
    )]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
    /// Weight files without the index that says what is in them.
    #[error(
        "{} holds {found} .safetensors files ({example}, ...) but neither model.safetensors nor \
         model.safetensors.index.json: is the download complete?",
        dir.display()
    )]
    NoIndex {
        /// The directory.
        dir: PathBuf,
        /// Number of weight files.
        found: usize,
        /// One of them.
        example: String,
    },
    /// `config.json` was refused.
    #[error("{}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
    /// A file is too long for its purpose.
    #[error("{} has {len} bytes; the limit is {limit}", path.display())]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// An index names a file by a path.
    #[error(
        "the index names the file \"{name}\"; only plain file names in the model's folder are read"
    )]
    FileName {
        /// The name, shortened.
        name: String,
    },
    /// A link leads out of the model's folder.
    #[error(
        "{} leads to {}, outside of the model's folder {}; copy the file there if you trust it",
        path.display(), target.display(), root.display()
    )]
    OutsideRepository {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
        /// The folder it may not leave.
        root: PathBuf,
    },
    /// A device, a pipe or a directory stands where a file should.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The index is wrong or disagrees with the files.
    #[error("{}: {problem}", path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A file is no valid safetensors file.
    #[error("{}: {source}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// Why.
        source: HeaderError,
    },
    /// Two tensors have one name, or one meaning.
    #[error("tensor {first} is there twice: also as {second}")]
    TensorTwice {
        /// Name and file of the first.
        first: TensorName,
        /// Name and file of the second.
        second: TensorName,
    },
    /// A tensor that the shape in `config.json` asks for is not there.
    #[error("no tensor \"{name}\" in {} (looked for {looked_for})", dir.display())]
    Missing {
        /// Canonical name of the tensor or module.
        name: String,
        /// Names that would have been accepted.
        looked_for: String,
        /// The directory.
        dir: PathBuf,
    },
    /// Tensors that no module uses.
    #[error(
        "{count} tensors are not part of the model that config.json describes: {examples}; the files \
         and config.json do not belong together, or this variant is not supported"
    )]
    Unused {
        /// How many.
        count: usize,
        /// The first few.
        examples: String,
    },
    /// A tensor has the wrong shape.
    #[error("tensor {tensor} has shape {actual:?}, but config.json asks for {expected}")]
    TensorShape {
        /// Which tensor.
        tensor: TensorName,
        /// What the configuration implies.
        expected: String,
        /// Shape in the file.
        actual: Vec<usize>,
    },
    /// A tensor has the wrong element type.
    #[error("tensor {tensor} has dtype {actual:?}, but must be {expected}")]
    TensorType {
        /// Which tensor.
        tensor: TensorName,
        /// What is allowed.
        expected: &'static str,
        /// Type in the file.
        actual: Dtype,
    },
    /// The quantisation of a module is unknown or contradictory.
    #[error("module {module}: {problem}")]
    Quantization {
        /// Module path in the file.
        module: TensorName,
        /// What is wrong.
        problem: String,
    },
    /// Bytes do not form the matrix; the checks before make this a bug of this crate.
    #[error("module {module}: {source}")]
    Matrix {
        /// Which module.
        module: TensorName,
        /// Why.
        source: MatrixError,
    },
    /// The layout of the files cannot be told.
    #[error("{problem}")]
    Layout {
        /// What contradicts what.
        problem: String,
    },
    /// A directory to write to holds something already.
    #[error("{} is not empty; give a new directory: nothing is overwritten", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
}

/// A tensor's or module's name with the file it lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorName {
    /// The name, as the file gives it.
    pub name: String,
    /// Name of the file.
    pub file: String,
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" of {}", shown(&self.name), shown(&self.file))
    }
}

impl Error {
    /// Whether the directory is a model's but without weights: enough for tokenizer and template.
    #[must_use]
    pub fn is_no_weights(&self) -> bool {
        matches!(self, Self::NoWeights { .. })
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

/// Longest piece of a file's text that a message repeats, in characters.
const SHOWN_MAX: usize = 160;

/// Text from a file as a message may show it: shortened, without control characters.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control();
    match text.char_indices().nth(SHOWN_MAX) {
        None if text.chars().all(harmless) => Cow::Borrowed(text),
        cut => {
            let end = cut.map_or(text.len(), |(at, _)| at);
            let visible = |c: char| if harmless(c) { c } else { '\u{fffd}' };
            let mut out: String = text[..end].chars().map(visible).collect();
            if cut.is_some() {
                out.push_str("...");
            }
            Cow::Owned(out)
        }
    }
}
