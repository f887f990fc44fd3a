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
    /// Wait for each dispatch, so that a failure names the one that failed; plans are no graphs then. For tests.
    pub wait: bool,
    /// Run the translated Metal kernels alone, without those written for NVIDIA GPUs. For tests and comparisons.
    pub no_twins: bool,
    /// How plans that are run again are run.
    pub replay: Replay,
    /// Start each kernel of a graph only when those that it depends on have ended. For comparisons.
    pub no_early_start: bool,
    /// Take the time of each dispatch of plans that are run again, which are no graphs then.
    pub profile: bool,
}

/// How plans that are run again are run. Results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replay {
    /// As graphs with the edges of the plan.
    #[default]
    Graph,
    /// As graphs in which each kernel waits for the one before: in a random order that obeys the edges, from this seed.
    /// Edges that a plan lacks show so.
    Shuffled(u32),
    /// Each dispatch is launched by itself, in the plan's order.
    Launches,
}

impl Options {
    /// `CALLA_GPU_CUDA` (a number), `CALLA_GPU_CUBINS` (a folder), `CALLA_GPU_TWINS` and `CALLA_GPU_EARLY_START` (0 or 1)
    /// and `CALLA_GPU_REPLAY` (`graph`, `launches`, or a number, the seed of random orders).
    ///
    /// # Panics
    /// If a number is not one, or a word is unknown.
    #[must_use]
    pub fn from_env() -> Self {
        let ordinal = std::env::var("CALLA_GPU_CUDA").map_or(0, |text| {
            text.parse().unwrap_or_else(|_| panic!("CALLA_GPU_CUDA is a number, not {text:?}"))
        });
        let cache = std::env::var_os("CALLA_GPU_CUBINS").map(PathBuf::from);
        let is_off = |name: &str| match std::env::var(name).as_deref() {
            Ok("0") => true,
            Ok("1") | Err(_) => false,
            Ok(text) => panic!("{name} is 0 or 1, not {text:?}"),
        };
        let (no_twins, no_early_start) =
            (is_off("CALLA_GPU_TWINS"), is_off("CALLA_GPU_EARLY_START"));
        let replay = match std::env::var("CALLA_GPU_REPLAY").as_deref() {
            Err(_) | Ok("graph") => Replay::Graph,
            Ok("launches") => Replay::Launches,
            Ok(seed) => Replay::Shuffled(seed.parse().unwrap_or_else(|_| {
                panic!("CALLA_GPU_REPLAY is graph, launches or a number, not {seed:?}")
            })),
        };
        Self { ordinal, cache, no_twins, replay, no_early_start, ..Self::default() }
    }

    /// Where machine code is kept.
    pub(crate) fn cache(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(|| user_caches().join("calla").join("cubins"))
    }
}

/// The folder of the user's caches: `XDG_CACHE_HOME`, else `.cache` in the home folder, else one for temporary files.
#[must_use]
pub fn user_caches() -> PathBuf {
    let own = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty());
    let home = std::env::home_dir().map(|home| home.join(".cache"));
    own.map(PathBuf::from).or(home).unwrap_or_else(std::env::temp_dir)
}
