//! The HTTP server: OpenAI's and Anthropic's APIs, metrics and a chat page over one engine.
//!
//! What this crate never does: it loads no weights and names no backend (it is given a function that does),
//! and it opens no connection of its own.

mod dialect;
mod error;
mod http;

pub use dialect::Dialect;
pub use error::{ApiError, ErrorKind};
