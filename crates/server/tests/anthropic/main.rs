//! Anthropic's API over HTTP, with the demo checkpoint behind it.

#[path = "../common/mod.rs"]
mod common;

mod cache;
mod harness;
mod refusals;
mod replies;
mod streams;
mod tools;
