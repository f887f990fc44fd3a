//! How fast a chip can be at most: what a step must move and compute, over what the chip can.

use super::chips::Chip;
use calla_gpu::plan::Totals;
use serde_json::{Value, json};

/// Bytes and operations of a step that makes or reads some tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) tokens: usize,
    pub(super) bytes: u64,
    pub(super) flops: u64,
}

impl Work {
    /// That of a plan.
    pub(super) fn of(tokens: usize, plan: &Totals) -> Self {
        Self { tokens, bytes: plan.bytes_read + plan.bytes_written, flops: plan.flops }
    }

    /// Tokens per second if the chip does nothing else and everything overlaps.
    pub(super) fn tokens_per_second(&self, chip: &Chip) -> f64 {
        self.tokens as f64 / self.memory_seconds(chip).max(self.arithmetic_seconds(chip))
    }

    /// Whether arithmetic takes longer than memory, as far as the chip's rate is known.
    pub(super) fn is_bound_by_arithmetic(&self, chip: &Chip) -> bool {
        self.arithmetic_seconds(chip) > self.memory_seconds(chip)
    }

    fn memory_seconds(&self, chip: &Chip) -> f64 {
        self.bytes as f64 / chip.bandwidth as f64
    }

    fn arithmetic_seconds(&self, chip: &Chip) -> f64 {
        chip.flops.map_or(0.0, |flops| self.flops as f64 / flops as f64)
    }
}

/// The least that a step takes, and what its plan takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) least: Work,
    pub(super) plan: Work,
}

/// The floor of a chip for programs.
pub(super) fn json(chip: &Chip, decode: &Bounds, prefill: &Bounds) -> Value {
    // A tenth of a token is more than anybody can tell.
    let rate = |work: &Work| (work.tokens_per_second(chip) * 10.0).round() / 10.0;
    json!({
        "chip": chip.name,
        "title": chip.title,
        "bandwidth_bytes_per_s": chip.bandwidth,
        "flops_per_s": chip.flops,
        "source": chip.source,
        "decode_bytes": decode.least.bytes,
        "decode_flops": decode.least.flops,
        "decode_tokens_per_s": rate(&decode.least),
        "decode_plan_tokens_per_s": rate(&decode.plan),
        "prefill_bytes": prefill.least.bytes,
        "prefill_flops": prefill.least.flops,
        "prefill_tokens_per_s": rate(&prefill.least),
        "prefill_plan_tokens_per_s": rate(&prefill.plan),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_arithmetic_decides() {
        let chip = |flops| Chip { name: "x", title: "x", bandwidth: 100, flops, source: "" };
        let work = Work { tokens: 4, bytes: 200, flops: 3000 };
        assert_eq!(work.tokens_per_second(&chip(None)), 2.0);
        assert_eq!(work.tokens_per_second(&chip(Some(3000))), 2.0);
        assert_eq!(work.tokens_per_second(&chip(Some(1000))), 4.0 / 3.0);
        assert!(work.is_bound_by_arithmetic(&chip(Some(1000))));
        assert!(!work.is_bound_by_arithmetic(&chip(None)));
    }
}
