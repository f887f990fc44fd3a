//! Why there is no host device.

use std::io;

/// Why there is no host device.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HostError(#[from] Kind);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Kind {
    #[error("no clang++ 17 or later; run `cargo xtask test --install` once")]
    MissingCompiler,
    #[error("clang has no sanitizers; run `cargo xtask test --install` once")]
    MissingSanitizer,
    #[error("kernels run on the host on Linux on x86-64 only")]
    Unsupported,
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("the runtime does not compile:\n{0}")]
    Runtime(String),
}

impl HostError {
    /// Whether this machine lacks what it takes to compile and run kernels, so that tests can only be skipped.
    #[must_use]
    pub fn is_missing_compiler(&self) -> bool {
        matches!(self.0, Kind::MissingCompiler | Kind::MissingSanitizer | Kind::Unsupported)
    }
}

/// Says what could not be done.
pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Kind {
    |error| Kind::Io { what: what.into(), error }
}
