//! The engine: many sequences on one device, exact reuse of prefixes, sampling, and the memory they take.
//!
//! [`Engine`] is a state machine. Requests, cancellations and finished steps go in; steps (plain data) and
//! tokens come out. It holds no clock, no file, no socket and no thread, so a schedule of requests is
//! reproducible from a seed and is simulated by the thousand in its tests. It sees tokens only: it never
//! turns them into text and never looks inside a tensor but the logits that it samples from.

pub mod cuts;
pub mod engine;
pub mod memory;
pub mod multi_step;
pub mod pool;
pub mod prefix_cache;
mod recent;
pub mod request;
mod sequence;
mod slices;
pub mod speculation;
pub mod step;
pub mod structure;
pub mod trie;

pub use calla_ops::sample::{Sampling, SamplingError, TokenLogprobs};
pub use cuts::CutRule;
pub use engine::{Engine, EngineConfig, Failure, Output, Share, Usage};
pub use memory::{Machine, MemoryPlan, Refusal, StateNeeds};
pub use multi_step::MultiStepConfig;
pub use prefix_cache::{CacheKey, Miss, Reuse};
pub use request::{FinishReason, Request, RequestId, SubmitError, Thinking};
pub use speculation::Speculation;
pub use step::Level;
pub use structure::{Grammar, MatchError, Matcher};
