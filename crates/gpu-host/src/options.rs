//! How kernels are built and run.

use std::path::PathBuf;

/// How kernels are built and run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Build with AddressSanitizer, and refuse every access outside the declared ranges of a dispatch.
    pub sanitize: bool,
    /// Order of lanes, simdgroups and threadgroups: 0 forwards, 1 backwards, others shuffled with that seed.
    pub order: u32,
    /// Threads that run threadgroups; 0 means all that the machine has.
    pub threads: u32,
    /// Fill ranges that a dispatch only writes with 0xff before it runs, so that reading what was there shows. Always
    /// done with `sanitize`.
    pub forget: bool,
    /// Seconds that a dispatch may take.
    pub timeout_s: u32,
    /// A folder whose files take the place of the kernels and headers of the same name.
    pub kernels: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { sanitize: false, order: 0, threads: 0, forget: false, timeout_s: 120, kernels: None }
    }
}

impl Options {
    /// `CALLA_GPU_SANITIZE`, `CALLA_GPU_ORDER`, `CALLA_GPU_THREADS`, `CALLA_GPU_FORGET`, `CALLA_GPU_TIMEOUT` (seconds),
    /// each a number, and `CALLA_GPU_KERNELS`, a folder.
    ///
    /// # Panics
    /// If one is not a number.
    #[must_use]
    pub fn from_env() -> Self {
        let number = |name: &str, default: u32| {
            std::env::var(name).map_or(default, |text| {
                text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}"))
            })
        };
        let default = Self::default();
        Self {
            sanitize: number("CALLA_GPU_SANITIZE", 0) != 0,
            order: number("CALLA_GPU_ORDER", default.order),
            threads: number("CALLA_GPU_THREADS", default.threads),
            forget: number("CALLA_GPU_FORGET", 0) != 0,
            timeout_s: number("CALLA_GPU_TIMEOUT", default.timeout_s),
            kernels: std::env::var_os("CALLA_GPU_KERNELS").map(PathBuf::from),
        }
    }

    /// Threads that run threadgroups.
    pub(crate) fn workers(&self) -> u32 {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            threads => threads,
        }
    }
}
