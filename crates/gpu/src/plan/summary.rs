//! What a plan costs: kernels, stages, traffic, arithmetic, memory.

use super::recording::{Part, Recorded};
use serde::Serialize;
use std::collections::BTreeMap;

/// Costs of dispatches, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of dispatches.
    pub kernels: usize,
    /// Bytes that they are expected to read from memory.
    pub bytes_read: u64,
    /// Bytes that they write.
    pub bytes_written: u64,
    /// Floating-point operations, a multiplication and an addition counted as two.
    pub flops: u64,
}

impl Totals {
    fn add(&mut self, step: &Recorded) {
        self.kernels += 1;
        self.bytes_read += step.dispatch.traffic.read;
        self.bytes_written += step.dispatch.traffic.written;
        self.flops += step.dispatch.flops;
    }
}

/// Costs of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Those of all its dispatches. In JSON they are keys of the summary itself.
    #[serde(flatten)]
    pub total: Totals,
    /// Number of stages: a device waits between two.
    pub stages: usize,
    /// Bytes of its temporaries, which share memory where they do not live at the same time.
    pub scratch_bytes: u64,
    /// The same by part of the model; parts without a dispatch are left out.
    pub by_part: BTreeMap<Part, Totals>,
}

impl Summary {
    pub(super) fn new(steps: &[Recorded], stages: usize, scratch_bytes: u64) -> Self {
        let mut total = Totals::default();
        let mut by_part: BTreeMap<Part, Totals> = BTreeMap::new();
        for step in steps {
            total.add(step);
            by_part.entry(step.part).or_default().add(step);
        }
        Self { total, stages, scratch_bytes, by_part }
    }
}
