//! The draw of a token on the device: `kernels/sample.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::tensor::{Dtype, Tensor};
use crate::top_candidates::{CANDIDATES, Candidates};
use bytemuck::{Pod, Zeroable};
use calla_ops::MultiStepLimits;
use calla_ops::sample::Sampling;

/// Steps whose tokens the device keeps until the host fetches them.
pub(crate) const KEPT_STEPS: u32 = 16;

/// What the device does without the host.
pub(crate) const MULTI_STEP: MultiStepLimits =
    MultiStepLimits { steps_max: KEPT_STEPS as usize, top_k_max: CANDIDATES as usize };

/// How the next token of a row is drawn, as the kernels read it (`kernels/sampler.h`).
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Sampler {
    seed: [u32; 2],
    counter: [u32; 2],
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
}

impl Sampler {
    /// 32-bit words of a sampler.
    pub const WORDS: u32 = 8;

    /// The sampler for a sequence that has `generated` tokens so far, or `None` where a device cannot draw: with `top_k`
    /// of 0 or more than 64, a bias, or penalties. (Masks and banned tokens are for the host too.)
    #[must_use]
    pub fn new(sampling: &Sampling, generated: u64) -> Option<Self> {
        // Greedy rows may have any `top_k`.
        let top_k = if sampling.temperature == 0.0 { 1 } else { sampling.top_k as u32 };
        let halves = |value: u64| [value as u32, (value >> 32) as u32];
        MULTI_STEP.can_sample(sampling).then(|| Self {
            seed: halves(sampling.seed),
            counter: halves(generated),
            temperature: sampling.temperature,
            top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
        })
    }
}

/// Chooses a token of each row's candidates: `calla_ops::sample::choose` with weights of 48 bits instead of f64's 53, so
/// that only a draw within 1e-12 of the edge between two tokens may end otherwise.
///
/// `samplers`: u32 `[n, 8]` ([`Sampler`]). `out`: u32 `[n, 1]`; [`crate::top_candidates::NO_TOKEN`] for a row with a logit
/// that is not finite.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn sample(candidates: &Candidates, samplers: Tensor, out: Tensor) -> Dispatch {
    candidates.check(out.rows);
    samplers.check("samplers", out.rows, Sampler::WORDS, Dtype::U32);
    out.check_width("out", 1, Dtype::U32);
    Dispatch::new(entries::SAMPLE)
        .read(candidates.logits)
        .read(candidates.tokens)
        .read(samplers)
        .write(out)
        .grid([out.rows, 1, 1], [CANDIDATES, 1, 1])
}
