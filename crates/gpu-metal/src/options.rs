//! How a program opens the GPU of a Mac, whatever system it was built for, and what it is told of it.

use crate::capabilities::Capabilities;
use crate::driver::{MetalDevice, OpenError};
use std::fmt;
use std::path::PathBuf;

/// The driver over this system's Metal; on other systems there is no value of it.
#[cfg(target_os = "macos")]
pub type SystemDevice = MetalDevice<crate::metal::Metal>;
/// The driver over this system's Metal; on other systems there is no value of it.
#[cfg(not(target_os = "macos"))]
pub type SystemDevice = MetalDevice<crate::no_metal::NoMetal>;

/// How to open the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Folder for translated kernels, which start faster the next time; none are kept without.
    pub archives: Option<PathBuf>,
    /// Where to record a trace of the GPU's work, from the start until the device is dropped: a path that ends in
    /// `.gputrace` and does not exist. Needs `METAL_CAPTURE_ENABLED=1` in the environment.
    pub trace: Option<PathBuf>,
    /// Whether kernels for tensor units may be used where they pass their self-test.
    pub metal4: bool,
}

impl Default for Options {
    /// Nothing is kept and nothing recorded; tensor units may be used.
    fn default() -> Self {
        Self { archives: None, trace: None, metal4: true }
    }
}

/// An open GPU.
pub struct Opened {
    /// What runs dispatches.
    pub device: SystemDevice,
    /// What it is.
    pub description: Description,
}

/// What a GPU is, and what of it is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name, families, system, limits.
    pub capabilities: Capabilities,
    /// Whether kernels for tensor units run.
    pub metal4: bool,
    /// What is not used.
    pub unused: Vec<Unused>,
}

/// A feature that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// Its name.
    pub feature: &'static str,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.feature, self.reason)
    }
}

/// One line for the device, and one for each feature that is not used.
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.capabilities)?;
        self.unused.iter().try_for_each(|unused| write!(f, "\nnot used: {unused}"))
    }
}

/// Opens the default GPU of this machine.
///
/// # Errors
/// If this is no Mac, it has no GPU, that is not suitable, a kernel does not compile, or a trace cannot be recorded.
#[cfg(target_os = "macos")]
pub fn open(options: &Options) -> Result<Opened, OpenError> {
    crate::metal::open(options)
}

/// Opens the default GPU of this machine.
///
/// # Errors
/// If this is no Mac, it has no GPU, that is not suitable, a kernel does not compile, or a trace cannot be recorded.
#[cfg(not(target_os = "macos"))]
pub fn open(_: &Options) -> Result<Opened, OpenError> {
    Err(OpenError::NotMacos)
}

#[cfg(all(test, not(target_os = "macos")))]
mod tests {
    use super::*;

    #[test]
    fn other_systems_say_so() {
        let error = open(&Options::default()).err();
        assert_eq!(error, Some(OpenError::NotMacos));
        assert!(OpenError::NotMacos.to_string().contains("only macOS"));
    }
}
