//! Kernel sources, as they are compiled into the program.

/// A file under `kernels/`.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name, as `#include` says it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

// `HEADERS` and `KERNELS`: all that lies there.
include!(concat!(env!("OUT_DIR"), "/sources.rs"));
