//! Orders in which a device may run a plan.

use calla_gpu::{BufferId, Dispatch, Plan};
use calla_testkit::Random;

/// A random order of `0..count` that obeys `edges` (`[from, to]`). Each such order can come out: the next one is any of
/// those that wait for nothing.
pub fn random_order(count: usize, edges: &[[u32; 2]], random: &mut Random) -> Vec<u32> {
    let mut waits_for = vec![0; count];
    let mut next = vec![vec![]; count];
    for &[from, to] in edges {
        waits_for[to as usize] += 1;
        next[from as usize].push(to);
    }
    let mut ready: Vec<u32> = (0..count as u32).filter(|&i| waits_for[i as usize] == 0).collect();
    let mut order = vec![];
    while !ready.is_empty() {
        let one = ready.swap_remove(random.range(0..=ready.len() - 1));
        order.push(one);
        for &to in &next[one as usize] {
            waits_for[to as usize] -= 1;
            if waits_for[to as usize] == 0 {
                ready.push(to);
            }
        }
    }
    assert_eq!(order.len(), count, "the edges have a cycle");
    order
}

/// The dispatches of a plan in a random order that obeys its edges, to be run one a stage.
pub fn in_random_order(plan: &Plan, arena: BufferId, random: &mut Random) -> Vec<Dispatch> {
    let order = random_order(plan.steps().len(), plan.edges(), random);
    let dispatches = plan.bind(arena);
    order.into_iter().map(|index| dispatches[index as usize].clone()).collect()
}
