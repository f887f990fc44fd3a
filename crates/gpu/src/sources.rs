//! Kernel sources, as they are compiled into the program.

/// A file under `kernels/`.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name, as `#include` says it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

// `HEADERS` and `KERNELS`, all that lies there; `METAL4_HEADERS` and `METAL4_KERNELS`, all that lies in `metal4/`.
include!(concat!(env!("OUT_DIR"), "/sources.rs"));
