//! Text in and out of the model: tokenizer, chat template, incremental detokenizer, reply parser.
//!
//! What this crate never does: it opens no network connection, reads no weights and knows nothing of
//! the network's shape. It reads four small files of a checkpoint (`tokenizer.json`,
//! `tokenizer_config.json`, `generation_config.json`, `chat_template.jinja`), each under a size bound,
//! and everything in them is treated as hostile: a bad file is an [`Error`], not a panic.
//!
//! Three promises:
//! * Text that a user, a tool or an earlier reply supplied never becomes a control token; only what
//!   the checkpoint's own template wrote does ([`ChatTemplate::render`], [`Tokenizer::encode_text`]).
//! * What streams out is whole Unicode scalars ([`Detokenizer`]), and how the stream is cut into
//!   pieces never changes what it says ([`ReplyParser`], [`StopScanner`]).
//! * Everything is linear in its input.

mod detokenizer;
mod error;
mod escape;
mod files;
mod format_cost;
mod generation_config;
mod guard;
mod json_scan;
mod lexer;
mod message;
mod normalise;
mod python;
mod reply;
mod reply_parser;
#[doc(hidden)]
pub mod reply_parser_fuzz;
mod schema;
mod stop;
mod template;
mod template_source;
mod tokenizer;
mod tokenizer_file;

pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use generation_config::GenerationDefaults;
pub use guard::is_guarded;
pub use message::{Content, Message, Part, Role, ToolCall};
pub use normalise::normalise;
pub use reply::{FinishedReply, Reply, ReplyAssembler, ReplyForm};
pub use reply_parser::{Event, ReplyParser};
pub use stop::{StopScanner, StopStep};
pub use template::{ChatTemplate, RenderOptions, Rendered, check_messages};
pub use tokenizer::{AddedToken, Tokenizer};
