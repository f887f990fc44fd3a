//! How a CUDA device is used.

use std::path::PathBuf;

/// How a CUDA device is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which GPU, counted from 0.
    pub ordinal: u32,
    /// Where machine code is kept; `None` is the folder `calla/cubins` of the user's caches.
    pub cache: Option<PathBuf>,
    /// Fill new buffers with 0xff, which reads as NaN, so that reading what nothing wrote shows. For tests.
    pub poison: bool,
    /// Wait for each dispatch, so that a failure names the one that failed. For tests.
    pub wait: bool,
    /// Run the translated Metal kernels alone, without those written for NVIDIA GPUs. For tests and comparisons.
    pub no_twins: bool,
}

impl Options {
    /// `CALLA_GPU_CUDA` (a number), `CALLA_GPU_CUBINS` (a folder) and `CALLA_GPU_TWINS` (0 or 1).
    ///
    /// # Panics
    /// If a number is not one.
    #[must_use]
    pub fn from_env() -> Self {
        let ordinal = std::env::var("CALLA_GPU_CUDA").map_or(0, |text| {
            text.parse().unwrap_or_else(|_| panic!("CALLA_GPU_CUDA is a number, not {text:?}"))
        });
        let cache = std::env::var_os("CALLA_GPU_CUBINS").map(PathBuf::from);
        let no_twins = match std::env::var("CALLA_GPU_TWINS").as_deref() {
            Ok("0") => true,
            Ok("1") | Err(_) => false,
            Ok(text) => panic!("CALLA_GPU_TWINS is 0 or 1, not {text:?}"),
        };
        Self { ordinal, cache, no_twins, ..Self::default() }
    }

    /// Where machine code is kept.
    pub(crate) fn cache(&self) -> PathBuf {
        let user = || {
            let own = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty());
            let home = std::env::home_dir().map(|home| home.join(".cache"));
            own.map(PathBuf::from).or(home).unwrap_or_else(std::env::temp_dir)
        };
        self.cache.clone().unwrap_or_else(|| user().join("calla").join("cubins"))
    }
}
