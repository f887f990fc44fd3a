//! The one path that every dialect takes: a [`task::Task`] goes in, a [`Generation`] comes out.

mod choice;
mod content_logprobs;
mod generation;
mod prepare;
pub(crate) mod task;

pub(crate) use choice::{Delta, End, Ended};
pub(crate) use content_logprobs::{ContentLogprob, LogprobToken};
pub(crate) use generation::{Generation, Happening, Service, Summary};
pub(crate) use prepare::{render, sampling, text_error};
