//! Runs plans on this machine's processor, one fiber for each GPU thread: how Metal kernels are proven where there is
//! no GPU. For tests only.
//!
//! Kernels are translated (`calla-msl`), compiled by clang with real address spaces, and loaded into a process of their
//! own, which shares its buffers with this one: a kernel that crashes, hangs or strays takes nothing else with it.
//! Lanes run in lockstep from one simdgroup function or barrier to the next; a simdgroup whose lanes part is an error.
//! So memory is in order after a simdgroup function as after a barrier, which a GPU does not promise: where one stands between
//! a write and the read of it by another lane, a missing `simdgroup_barrier` goes unnoticed.

mod compiler;
mod device;
mod error;
mod executor;
mod library;
mod memory;
mod options;
mod report;

pub use device::HostDevice;
pub use error::HostError;
pub use options::Options;
