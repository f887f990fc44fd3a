//! The CUDA driver: runs dispatches on an NVIDIA GPU.
//!
//! Kernels are the Metal ones, translated to CUDA C++, and their twins. The machine code of each pipeline, an entry point with
//! its function constants, is part of the program, if a release was made so, or was kept on disk, or NVRTC compiles it when it
//! is first used, for the GPU that is there, and it is kept. The driver is looked for when a device is made, NVRTC when it is
//! needed: where they are not, that is an error, and nothing else.

pub mod archive;
mod cache;
mod compiler;
mod device;
mod devices;
mod error;
mod graph;
mod library;
mod machine_code;
mod memory;
mod module;
mod options;
mod order;
mod profile;
mod staging;
mod twins;

pub use compiler::{Architecture, Compiler, Key, Version};
pub use device::CudaDevice;
pub use devices::{DeviceInfo, devices, driver_version};
pub use error::CudaError;
pub use library::{Library, Source};
pub use options::{Options, Replay, user_caches};
pub use profile::{Profile, ProfileRow};

/// A digest of the files that machine code is made of, as the build script found them: an archive of others is not embedded.
pub const SOURCES: &str = env!("CALLA_CUBIN_SOURCES");

/// The archive of machine code that this program was built with.
pub const EMBEDDED: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
