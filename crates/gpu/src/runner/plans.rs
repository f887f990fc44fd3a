//! Plans that were recorded, to be run again.

use crate::device::Device;
use crate::plan::BoundPlan;
use crate::step_tables::TableCounts;
use calla_ops::SpanKind;
use std::collections::HashMap;

/// What a plan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// The forward pass.
    Step(SpanKind),
    /// A guess of the draft layer.
    Draft {
        /// Only tokens below this one are guessed.
        vocab_used: u32,
    },
    /// A decode step that makes the tables of the next.
    Generate {
        /// Only tokens below this one are chosen.
        vocab_used: u32,
        /// By samplers.
        drawn: bool,
    },
}

/// What a plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlanKey {
    pub(super) work: Work,
    pub(super) counts: TableCounts,
    /// Positions that it has room for.
    pub(super) context: u32,
}

/// Most plans that are kept: slices of prompts come in many sizes.
const PLANS_MAX: usize = 64;

/// Plans by what they depend on.
#[derive(Debug, Default)]
pub(super) struct Plans(HashMap<PlanKey, BoundPlan>);

impl Plans {
    pub(super) fn get(&self, key: &PlanKey) -> Option<&BoundPlan> {
        self.0.get(key)
    }

    /// Forgets all of them: a buffer that they bind is no longer there.
    pub(super) fn clear(&mut self, device: &mut dyn Device) {
        self.0.drain().for_each(|(_, plan)| device.forget(plan.id()));
    }

    /// Keeps a plan.
    pub(super) fn insert(&mut self, device: &mut dyn Device, key: PlanKey, plan: BoundPlan) {
        if self.0.len() >= PLANS_MAX {
            self.clear(device);
        }
        if let Some(old) = self.0.insert(key, plan) {
            device.forget(old.id());
        }
    }
}
