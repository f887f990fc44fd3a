//! Chat completions and completions over HTTP, with the demo checkpoint.

#[path = "../common/mod.rs"]
mod common;

mod agent_loop;
mod bad_requests;
mod chat;
mod completions;
mod faults;
mod lifecycle;
mod streams;
