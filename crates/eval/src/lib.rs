//! Teacher-forced comparison of a backend with recorded reference logits ("goldens").
//!
//! [`Golden`]s are read from `.npz` files ([`goldens`]), fed through any [`calla_ops::Runner`]
//! ([`mod@evaluate`]) and summed up as top-1 agreement, Kullback-Leibler divergence and perplexity
//! ([`metrics`]). Tests and `calla eval` share this.
//!
//! This crate never loads a checkpoint, never samples a token and trusts no size that a file claims.

pub mod evaluate;
pub mod goldens;
pub mod metrics;
pub mod npz;

pub use evaluate::{EvalError, Options, evaluate, replay};
pub use goldens::{Golden, ReferenceLogits, TopLogits, read_goldens};
pub use metrics::{Metrics, Position, Summary};
pub use npz::{Npz, NpzError};
