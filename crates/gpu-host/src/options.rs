//! How kernels are built and run.

/// How kernels are built and run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Build with AddressSanitizer, and refuse every access outside the declared ranges of a dispatch.
    pub sanitize: bool,
    /// Order of lanes, simdgroups and threadgroups: 0 forwards, 1 backwards, others shuffled with that seed.
    pub order: u32,
    /// Threads that run threadgroups; 0 means all that the machine has.
    pub threads: u32,
}

impl Options {
    /// `CALLA_GPU_SANITIZE`, `CALLA_GPU_ORDER`, `CALLA_GPU_THREADS`, each a number.
    ///
    /// # Panics
    /// If one is not a number.
    #[must_use]
    pub fn from_env() -> Self {
        let number = |name: &str| {
            std::env::var(name).map_or(0, |text| {
                text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}"))
            })
        };
        Self {
            sanitize: number("CALLA_GPU_SANITIZE") != 0,
            order: number("CALLA_GPU_ORDER"),
            threads: number("CALLA_GPU_THREADS"),
        }
    }
}
