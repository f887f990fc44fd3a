//! Orders in which a device may run a plan.

use calla_gpu::{BufferId, Dispatch, Plan, plan};
use calla_testkit::Random;

/// A random order of `0..count` that obeys `edges` (`[from, to]`).
pub fn random_order(count: usize, edges: &[[u32; 2]], random: &mut Random) -> Vec<u32> {
    let order = plan::random_order(count, edges, |n| random.range(0..=n - 1));
    assert_eq!(order.len(), count, "the edges have a cycle");
    order
}

/// The dispatches of a plan in a random order that obeys its edges, to be run one a stage.
pub fn in_random_order(plan: &Plan, arena: BufferId, random: &mut Random) -> Vec<Dispatch> {
    let order = random_order(plan.steps().len(), plan.edges(), random);
    let dispatches = plan.bind(arena);
    order.into_iter().map(|index| dispatches[index as usize].clone()).collect()
}
