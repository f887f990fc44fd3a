//! Attention of few rows on tensor cores: `kernels/attention_decode.cu` says how.

use super::{Launch, Twin, twin};

const WARPS: u32 = 4;
/// Steps of 16 positions that a warp holds at a time.
const STAGES: u32 = 3;
/// Bytes of a step's keys or values.
const STEP_BYTES: u32 = 16 * 256 * 2;

pub(crate) const ATTENTION_DECODE: Twin =
    twin!("attention_decode.cu", ["attention_decode"], |dispatch| {
        let shared = WARPS * STAGES * 2 * STEP_BYTES;
        Some(Launch { threads: [32 * WARPS, 1, 1], shared, ..Launch::of(dispatch) })
    });
