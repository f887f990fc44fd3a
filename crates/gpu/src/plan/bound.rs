//! A plan whose temporaries have their place: what a device runs again and again.

use super::Plan;
use crate::dispatch::Dispatch;
use crate::tensor::BufferId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names a bound plan in this process. No two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId(u64);

impl PlanId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A plan with its arena in a buffer. It never changes, so a device may keep what it makes of it under [`BoundPlan::id`].
#[derive(Debug)]
pub struct BoundPlan {
    id: PlanId,
    dispatches: Vec<Dispatch>,
    stages: Vec<usize>,
    edges: Vec<[u32; 2]>,
}

impl BoundPlan {
    /// `plan` with its temporaries in `arena`, as [`Plan::bind`] has them.
    #[must_use]
    pub fn new(plan: &Plan, arena: BufferId) -> Self {
        Self {
            id: PlanId::next(),
            dispatches: plan.bind(arena),
            stages: plan.stages().to_vec(),
            edges: plan.edges().to_vec(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> PlanId {
        self.id
    }

    /// The dispatches by stage.
    #[must_use]
    pub fn dispatches(&self) -> &[Dispatch] {
        &self.dispatches
    }

    /// Number of dispatches of each stage.
    #[must_use]
    pub fn stages(&self) -> &[usize] {
        &self.stages
    }

    /// Which dispatch must end before which starts: [`Plan::edges`].
    #[must_use]
    pub fn edges(&self) -> &[[u32; 2]] {
        &self.edges
    }
}
