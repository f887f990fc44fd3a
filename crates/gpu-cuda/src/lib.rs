//! The CUDA driver: runs dispatches on an NVIDIA GPU.
//!
//! Kernels are the Metal ones, translated to CUDA C++. Each pipeline, an entry point with its function constants, is
//! compiled by NVRTC when it is first used, to machine code for the GPU that is there, and kept on disk. The driver and
//! NVRTC are looked for when a device is made: where they are not, that is an error, and nothing else.

mod cache;
mod compiler;
mod device;
mod devices;
mod error;
mod graph;
mod library;
mod memory;
mod module;
mod options;
mod order;
mod profile;
mod staging;
mod twins;

pub use compiler::{Architecture, Compiler};
pub use device::CudaDevice;
pub use devices::{DeviceInfo, devices, driver_version};
pub use error::CudaError;
pub use options::{Options, Replay, user_caches};
pub use profile::{Profile, ProfileRow};
