//! The CPU backend: [`Cpu`] implements the operations of `calla-ops` with vector instructions and threads.
//!
//! - Weights stay quantised where the checkpoint has them (a memory map); a product unpacks them in
//!   registers, or a tile of them into the cache when many rows meet it.
//! - Activations and state are f32.
//! - A row's result is the same, bit for bit, however many rows, sequences and threads there are: every sum
//!   has one order that depends on the row and its position alone.
//! - Kernels are written once, in safe code over the vectors of `simd`, whose files hold the intrinsics.
//!
//! One file per operation, with the name it has in `calla-ops`. This crate never reads a file.

mod attention;
mod columns;
mod conv_silu;
mod cpu;
mod delta_prep;
mod experts;
mod gated_delta;
mod gated_norm;
mod inputs;
mod linear;
mod qk_prep;
mod rms_norm;
mod route;
mod simd;
mod swiglu;
mod threads;
mod unpack;

pub use cpu::{Cpu, CpuError};
pub use simd::Isa;
pub use threads::ThreadsError;
