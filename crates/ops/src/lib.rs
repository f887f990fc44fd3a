//! What each operation of the network means, and the one forward pass over them.
//!
//! [`Ops`] has two levels. The *coarse* methods (`delta_step`, `attend`, `experts_up` ...) are as large as
//! the best fusion and are what [`forward()`] calls ([`LayerOps`] is that part alone); each has a default body made of
//! the *fine* methods, which is its specification. [`Reference`] implements the fine methods plainly in f32 and overrides
//! nothing: it is the oracle. A backend overrides what it can do faster, and the conformance suite of
//! `testkit` compares the two.
//!
//! One file per operation: contract, default composition where it is coarse, reference where it is fine.
//! This crate never reads a file, never starts a device and knows no backend but the reference.

pub mod attention;
pub mod batch;
pub mod cache;
pub mod conv_silu;
pub mod delta_prep;
pub mod draft;
pub mod embed;
pub mod experts;
pub mod forward;
pub mod gated_delta;
pub mod gated_norm;
pub mod layer_ops;
pub mod linear;
pub mod mtp;
pub mod multi_step;
pub mod ops;
pub mod qk_prep;
pub mod reference;
pub mod rms_norm;
pub mod route;
pub mod runner;
pub mod sample;
pub mod span;
pub mod swiglu;
pub mod tensor;
pub mod token_mask;
mod zeroed;

pub use batch::{Batch, BatchError};
pub use cache::{CacheError, CacheSize, FreeState, HostCache};
pub use draft::{Draft, DraftError, Drafts};
pub use forward::forward;
pub use layer_ops::LayerOps;
pub use multi_step::{MultiStep, MultiStepLimits, RowSampler};
pub use ops::Ops;
pub use reference::Reference;
pub use runner::{Executor, Runner, SLICE_ROWS, StepError};
pub use span::{Span, SpanKind};
pub use tensor::Rows;
pub use token_mask::TokenMask;
