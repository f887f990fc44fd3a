//! Checkpoint files: opened and checked, loaded as views, described, verified, and made.
//!
//! Nothing that a file says is believed before the file's own size proves it, readers allocate only in
//! proportion to what really lies in the file, and no weight is copied that can be used where it lies.
//! This crate never computes an activation and knows no backend.

mod checkpoint;
mod digest;
mod error;
pub mod header;
mod index;
pub mod inspect;
mod layout;
mod load;
mod norms;
pub mod quantize;
mod repository;
mod resolve;
mod shard;
#[cfg(unix)]
mod sigbus;
pub mod synth;
pub mod verify;

pub use checkpoint::Checkpoint;
pub use error::{Error, TensorName};
pub use inspect::inspect;
pub use layout::{Layout, NormConvention};
pub use load::{LoadReport, Placement};
pub use quantize::quantize;
pub use synth::synth;
pub use verify::verify;
