//! A step as data: dispatches in stages, the edges among them, and their temporaries in one arena.

mod bound;
mod graph;
mod order;
mod placement;
mod recording;
mod summary;

pub use bound::{BoundPlan, PlanId};
pub use order::random_order;
pub use recording::{Part, Recorded, Recording};
pub use summary::{Summary, Totals};

use crate::dispatch::{Binding, Dispatch};
use crate::tensor::{BufferId, Place, Range};
use graph::{Graph, Undefined};
use placement::{ALIGNMENT, Lifetime};
use std::collections::BTreeMap;

/// Scheduled dispatches.
///
/// Those of a stage do not depend on one another, and a stage depends only on those before it. A device may run them in
/// order, with a barrier after each stage, or in any other order that obeys [`Plan::edges`]: the results are the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// By stage, then in program order. `Place::Scratch(0)` is the arena.
    steps: Vec<Recorded>,
    stages: Vec<usize>,
    edges: Vec<[u32; 2]>,
    scratch_bytes: u64,
}

impl Plan {
    /// Schedules a recording: each dispatch runs in the first stage that its dependencies allow.
    ///
    /// Dependencies follow from the bytes that bindings declare. A range of no bytes makes none.
    ///
    /// # Panics
    /// If a dispatch reads bytes of a temporary that no earlier one wrote, or binds bytes that the temporary does not
    /// have: the recording is wrong.
    #[must_use]
    pub fn new(recording: Recording) -> Self {
        let Recording { mut steps, scratch } = recording;
        check(&steps, &scratch);
        let program = Graph::new(steps.iter().map(|step| &step.dispatch)).unwrap_or_else(
            |Undefined { dispatch, range }| {
                let bytes = bytes_of(range, &scratch);
                panic!("{} reads {bytes} before they are written", steps[dispatch].dispatch.label)
            },
        );
        let stage_of = sort_by_stage(&mut steps, program.stages());
        let scratch_bytes = place(&mut steps, &stage_of, &scratch);
        let edges = Graph::new(steps.iter().map(|step| &step.dispatch))
            .expect("what is written before it is placed is written afterwards")
            .edges();
        for &[from, to] in &edges {
            let [from, to] = [from, to].map(|index| index as usize);
            assert!(
                stage_of[from] < stage_of[to],
                "{} must run before {}, and not in one stage with it",
                steps[from].dispatch.label,
                steps[to].dispatch.label
            );
        }
        let stages = stage_of.chunk_by(|a, b| a == b).map(<[u32]>::len).collect();
        Self { steps, stages, edges, scratch_bytes }
    }

    /// Bytes of the arena: the most that its temporaries need at a time. 0 if there are none.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// Number of dispatches of each stage, as `Device::run` takes them.
    #[must_use]
    pub fn stages(&self) -> &[usize] {
        &self.stages
    }

    /// Which dispatch must end before which starts, as indices `[from, to]` of [`Plan::steps`]; `from < to`, sorted by `to`.
    /// They are the fewest that imply all dependencies, those of reused scratch included.
    #[must_use]
    pub fn edges(&self) -> &[[u32; 2]] {
        &self.edges
    }

    /// The dispatches by stage. Their temporaries are ranges of one arena, `Place::Scratch(0)`.
    #[must_use]
    pub fn steps(&self) -> &[Recorded] {
        &self.steps
    }

    /// The dispatches, with the arena in a buffer of at least [`Plan::scratch_bytes`] (and at least one byte).
    #[must_use]
    pub fn bind(&self, arena: BufferId) -> Vec<Dispatch> {
        let bound = |step: &Recorded| {
            let mut dispatch = step.dispatch.clone();
            for binding in &mut dispatch.bindings {
                if matches!(binding.range.place, Place::Scratch(_)) {
                    binding.range.place = Place::Buffer(arena);
                }
            }
            dispatch
        };
        self.steps.iter().map(bound).collect()
    }

    /// What it costs.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary::new(&self.steps, self.stages.len(), self.scratch_bytes)
    }
}

/// Requires that ranges of temporaries lie within them.
fn check(steps: &[Recorded], scratch: &[u64]) {
    for Recorded { dispatch, .. } in steps {
        for range in dispatch.bindings.iter().map(|binding| binding.range) {
            let Place::Scratch(tensor) = range.place else { continue };
            let size = scratch.get(tensor as usize).copied();
            assert!(
                size.is_some_and(|size| range.start + range.len <= size),
                "{} binds {}, which has {} bytes",
                dispatch.label,
                bytes_of(range, scratch),
                size.unwrap_or(0)
            );
        }
    }
}

/// A range of a temporary, in words.
fn bytes_of(range: Range, scratch: &[u64]) -> String {
    let Range { place, start, len } = range;
    let Place::Scratch(tensor) = place else { return format!("{range:?}") };
    format!("bytes {start}..{} of scratch tensor {tensor} of {}", start + len, scratch.len())
}

/// Brings steps into the order of their stages and leaves those of one stage in theirs. The stage of each, afterwards.
fn sort_by_stage(steps: &mut Vec<Recorded>, stages: Vec<u32>) -> Vec<u32> {
    let mut sorted: Vec<(u32, Recorded)> = stages.into_iter().zip(steps.drain(..)).collect();
    sorted.sort_by_key(|&(stage, _)| stage);
    let (stages, sorted) = sorted.into_iter().unzip();
    *steps = sorted;
    stages
}

/// Makes ranges of temporaries ranges of one arena, `Place::Scratch(0)`. Its size.
fn place(steps: &mut [Recorded], stage_of: &[u32], scratch: &[u64]) -> u64 {
    let mut lifetimes: BTreeMap<u32, Lifetime> = BTreeMap::new();
    for (step, &stage) in steps.iter().zip(stage_of) {
        for range in step.dispatch.bindings.iter().map(|binding| binding.range) {
            if let (Place::Scratch(tensor), 1..) = (range.place, range.len) {
                let bytes = scratch[tensor as usize].next_multiple_of(ALIGNMENT);
                let new = Lifetime { first: stage, last: stage, bytes };
                lifetimes.entry(tensor).or_insert(new).last = stage;
            }
        }
    }
    let placement = placement::place(&lifetimes.values().copied().collect::<Vec<_>>());
    let offset_of: BTreeMap<u32, u64> =
        lifetimes.into_keys().zip(placement.offsets.iter().copied()).collect();
    for step in steps {
        for Binding { range, .. } in &mut step.dispatch.bindings {
            let Place::Scratch(tensor) = range.place else { continue };
            range.place = Place::Scratch(0);
            // No bytes may lie anywhere, and the start of an arena is always a valid address.
            range.start = if range.len == 0 { 0 } else { offset_of[&tensor] + range.start };
        }
    }
    placement.peak
}
