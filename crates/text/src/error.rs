//! The one error type of the crate, and whose fault each kind is.

use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the bound, the value and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A checkpoint file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file that every checkpoint has is not there.
    #[error(
        "no {name} in {}: it is part of every checkpoint; give the directory that holds the whole \
         checkpoint, or download the file again",
        dir.display()
    )]
    NoFile {
        /// The directory.
        dir: PathBuf,
        /// The file's name.
        name: String,
    },
    /// A checkpoint file is longer than any honest one.
    #[error(
        "{} has {bytes} bytes; at most {bytes_max} are read: it does not look like a file of this kind",
        path.display()
    )]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// A checkpoint file does not say what it must.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory has no chat template.
    #[error(
        "{} has neither chat_template.jinja nor a `chat_template` in tokenizer_config.json: \
         give a raw prompt, or add the template of the checkpoint",
        dir.display()
    )]
    NoTemplate {
        /// The directory.
        dir: PathBuf,
    },
    /// The tokenizer refused a text.
    #[error("the tokenizer failed on a text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said.
        reason: String,
    },
    /// A text is longer than any model's context.
    #[error("a text of {bytes} bytes: at most {bytes_max} are tokenised at a time; shorten it")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The chat template is not valid, or failed on its own account.
    #[error("chat template{}: {reason}", line.map(|l| format!(", line {l}")).unwrap_or_default())]
    Template {
        /// Line in the template, where known.
        line: Option<usize>,
        /// What the template engine said.
        reason: String,
    },
    /// The chat template did too much work or wrote too much.
    #[error("chat template: stopped, it exceeds the bound of {bound} {what}")]
    TemplateBudget {
        /// Which bound.
        what: &'static str,
        /// Its value.
        bound: u64,
    },
    /// The template refused the messages by `raise_exception`.
    #[error("the chat template refuses these messages: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// A message or a tool cannot be rendered.
    #[error("message {index}: {reason}")]
    BadMessage {
        /// Index of the message, from 0.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// An image, video, audio or file part: the model is run as a text model.
    #[error(
        "message {index}: content part of type {kind:?}: only text parts are supported, \
         the vision tower is not loaded"
    )]
    UnsupportedPart {
        /// Index of the message, from 0.
        index: usize,
        /// The part's type as given.
        kind: String,
    },
    /// An extra template variable has a name that the renderer itself sets.
    #[error("template variable {name:?} is reserved: it cannot be set from a request")]
    ReservedVariable {
        /// The name.
        name: String,
    },
    /// Messages, tools or variables are nested too deeply or hold too many odd characters.
    #[error("the request cannot be rendered: {reason}")]
    BadRequest {
        /// What is wrong with it.
        reason: String,
    },
    /// Stop strings out of bounds.
    #[error("stop strings: {reason}")]
    BadStop {
        /// What is wrong with them.
        reason: String,
    },
}

impl Error {
    /// Whether the request is at fault, not the checkpoint or the machine. A server answers these
    /// with a client error.
    pub fn is_request_fault(&self) -> bool {
        matches!(
            self,
            Error::TextTooLong { .. }
                | Error::TemplateRaised { .. }
                | Error::BadMessage { .. }
                | Error::UnsupportedPart { .. }
                | Error::ReservedVariable { .. }
                | Error::BadRequest { .. }
                | Error::BadStop { .. }
        )
    }
}
