//! The responses API over HTTP, with the demo checkpoint.

#[path = "../common/mod.rs"]
mod common;

mod agent_loop;
mod bad_requests;
mod create;
mod stored;
mod streams;
