//! Why there is no CUDA device.

use crate::compiler::Architecture;
use cudarc::driver::DriverError;
use std::io;

/// Why there is no CUDA device.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CudaError(#[from] Kind);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Kind {
    #[error(
        "there is no NVIDIA driver here (libcuda was not found): install it, or choose another device"
    )]
    NoDriver,
    #[error(
        "NVRTC, the compiler for CUDA, was not found (libnvrtc): install the CUDA toolkit 12 or 13, or add the folder \
         that has it to LD_LIBRARY_PATH, or take a release that has machine code for this GPU"
    )]
    NoCompiler,
    #[error("there is no CUDA device {ordinal}: this machine has {count}, counted from 0")]
    NoDevice { ordinal: u32, count: i32 },
    #[error(
        "{name} has compute capability {architecture}; the oldest that will do is {}",
        Architecture::OLDEST
    )]
    OldDevice { name: String, architecture: Architecture },
    #[error("CUDA could not {what}: {}", describe(error))]
    Driver { what: &'static str, error: DriverError },
    #[error("a kernel cannot be translated: {0}")]
    Kernel(#[from] calla_msl::Error),
    #[error("{0}: this is a bug")]
    Bug(String),
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
}

impl CudaError {
    /// Whether this machine has no CUDA device that can be used, so that tests can only be skipped.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(
            self.0,
            Kind::NoDriver | Kind::NoCompiler | Kind::NoDevice { .. } | Kind::OldDevice { .. }
        )
    }
}

/// Says what could not be done.
pub(crate) fn driver_error(what: &'static str) -> impl FnOnce(DriverError) -> Kind {
    move |error| Kind::Driver { what, error }
}

/// Says what could not be done.
pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Kind {
    |error| Kind::Io { what: what.into(), error }
}

/// What the driver calls an error, and what it says about it.
pub(crate) fn describe(error: &DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name} ({text})"),
        _ => format!("{:?}", error.0),
    }
}
