//! How an engine is set up on a device: what is not a matter of taste, in one place.

use calla_engine::engine::EngineConfig;
use calla_engine::step::Arithmetic;
use calla_engine::{CutRule, MultiStepConfig, Speculation};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::Runner;
use calla_store::Sizes;

/// A snapshot at least every so many tokens of a long prompt.
const SNAPSHOT_INTERVAL: usize = 2048;
/// Tokens of evicted prefixes that are remembered, to say why a prompt missed: 16 MB.
const REMEMBERED_TOKENS_MAX: usize = 4 << 20;
/// A shorter prefix is computed sooner than it is read from a file. It takes no less host memory than a long one, most of which
/// is the recurrent state, and so is not worth that either.
const FILE_TOKENS_MIN: usize = 256;

/// What the owner of an engine decides.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens that prompt and reply together may have.
    pub context: usize,
    /// Sequences that run at once.
    pub running_max: usize,
    /// Requests that may wait.
    pub queue_max: usize,
    /// Drafts of the multi-token-prediction layer.
    pub speculation: Speculation,
    /// See [`EngineConfig::fast_cache`].
    pub fast_cache: bool,
}

/// The setting for a runner. The context is cut down to what the device and the model have. What the device holds beyond
/// that keeps snapshots.
#[must_use]
pub fn engine_config(runner: &dyn Runner, rule: CutRule, limits: Limits) -> EngineConfig {
    let cache = runner.cache_size();
    let shape = runner.shape();
    let spare = cache.slots.saturating_sub(limits.running_max);
    EngineConfig {
        cache,
        vocab_size: shape.vocab_size,
        context: limits.context.min(cache.pages * PAGE_TOKENS).min(shape.max_positions),
        running_max: limits.running_max,
        queue_max: limits.queue_max,
        slice_rows: runner.slice_rows(),
        slice_seconds: runner.slice_seconds(),
        rule,
        arithmetic: if runner.decodes_as_it_prefills() {
            Arithmetic::Uniform
        } else {
            Arithmetic::Split
        },
        fast_cache: limits.fast_cache,
        snapshot_interval: SNAPSHOT_INTERVAL,
        remembered_tokens_max: REMEMBERED_TOKENS_MAX,
        speculation: limits.speculation,
        checkpoint_slots: (limits.speculation.depth_max() * limits.running_max).min(spare),
        multi_step: multi_step(runner, limits.fast_cache),
        file_tokens_min: Some(FILE_TOKENS_MIN),
    }
}

/// Steps without the host, where the device can. A reply that ends before the last of them leaves no state behind, which is
/// only what a device does anyway whose decoding rounds otherwise than prefill; who asks for such states to be kept wants
/// them more.
fn multi_step(runner: &dyn Runner, fast_cache: bool) -> Option<MultiStepConfig> {
    let is_kept = runner.decodes_as_it_prefills() || fast_cache;
    let limits = runner.multi_step_limits().filter(|_| !is_kept)?;
    Some(MultiStepConfig { limits, seconds_max: MultiStepConfig::SECONDS_MAX })
}

/// Sizes of the state that is saved of a device.
#[must_use]
pub fn store_sizes(runner: &dyn Runner) -> Sizes {
    Sizes {
        state_bytes: runner.slot_bytes(),
        page_bytes: runner.page_bytes(),
        page_tokens: PAGE_TOKENS,
    }
}
