//! Kernel sources, as they are compiled into the program.

/// A file under `kernels/`.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name, as `#include` says it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../kernels/", $name)) }),*]
    };
}

/// Headers that kernels include.
pub const HEADERS: &[Source] = sources![
    "attention.h",
    "delta.h",
    "dot16.h",
    "family.h",
    "logits.h",
    "math.h",
    "order.h",
    "pages.h",
    "qmm.h",
    "quantized.h",
    "route.h",
    "sampler.h",
    "shape.h",
    "tables.h",
    "tiles.h",
];

/// Kernels: each file is compiled by itself.
pub const KERNELS: &[Source] = sources![
    "advance.metal",
    "argmax.metal",
    "attention_decode.metal",
    "attention_prefill.metal",
    "combine.metal",
    "copy.metal",
    "delta_prep.metal",
    "delta_step.metal",
    "embed.metal",
    "expert_qmm.metal",
    "expert_qmv.metal",
    "gated_delta.metal",
    "gated_norm.metal",
    "group_rows.metal",
    "mtp_rows.metal",
    "qk_prep.metal",
    "qmm.metal",
    "qmv.metal",
    "rms_norm.metal",
    "sample.metal",
    "top_candidates.metal",
    "top_k.metal",
];
