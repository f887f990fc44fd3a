//! Generation: from a prompt's tokens to the reply's, and the memory that it takes.
//!
//! A [`Generation`] is a state machine: each call to [`Generation::advance`] runs one step on a
//! [`calla_ops::Runner`] and says what happened. This crate holds no clock, no file, no socket and no
//! thread, and it sees tokens only: it never turns them into text and never looks inside a tensor but the
//! logits it samples from.

pub mod generation;
pub mod memory;
pub mod session;

pub use calla_ops::sample::{Sampling, SamplingError};
pub use generation::{FinishReason, Generation, Progress, Request};
pub use memory::{Machine, MemoryPlan, Refusal};
pub use session::{EngineError, Session};
