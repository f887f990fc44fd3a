//! The HTTP server: OpenAI's and Anthropic's APIs, metrics and a chat page over one engine.
//!
//! What this crate never does: it loads no weights and names no backend (it is given a function that does),
//! and it opens no connection of its own.

mod anthropic;
mod app;
mod dialect;
mod docs;
mod engine_status;
mod engine_thread;
mod error;
mod generate;
mod health;
pub mod http;
mod metrics;
mod model;
mod openai;
mod page;
mod responses;
mod server;
mod token_times;
mod tokens;

pub use dialect::Dialect;
pub use engine_thread::{LoadedModel, Loader};
pub use error::{ApiError, ErrorKind};
pub use http::{Access, AccessError, Limits, ListenError};
pub use model::{Model, ModelError, ModelParts};
pub use server::{Server, ServerConfig, ServerError};
