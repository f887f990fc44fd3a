//! Runs dispatches on a Mac's GPU.
//!
//! [`MetalDevice`] is the driver: it compiles the embedded kernels, makes pipelines and buffers, encodes dispatches with a
//! barrier after each stage, and reads how each command buffer ended. It talks to Metal through [`Api`], a typed layer
//! without decisions of its own: `metal` implements it on macOS, and the tests implement it as a model of Metal's rules,
//! so that the driver itself runs on any machine.

pub mod api;
pub mod archive;
pub mod capabilities;
pub mod driver;
pub mod fault;
pub mod inline;
#[cfg(target_os = "macos")]
pub mod metal;
#[cfg(not(target_os = "macos"))]
pub mod no_metal;
pub mod options;
pub mod pace;
pub mod self_test;

pub use api::{Api, Ended, Language};
pub use capabilities::Capabilities;
pub use driver::{Kernels, MetalDevice, OpenError};
pub use fault::Fault;
pub use options::{Description, Opened, Options, SystemDevice, Unused, open};
pub use self_test::SelfTestError;
