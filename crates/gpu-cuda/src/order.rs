//! Random orders that a plan may run in, to find edges that it lacks.

use calla_gpu::plan;

/// A random order of `0..count` that obeys `edges`, pairs `[from, to]`; the same for the same seed.
pub(crate) fn random_order(count: usize, edges: &[[u32; 2]], seed: u32) -> Vec<u32> {
    let mut random = u64::from(seed);
    plan::random_order(count, edges, |n| (splitmix(&mut random) % n as u64) as usize)
}

/// The next number of Steele, Lea and Flood's generator.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::random_order;

    #[test]
    fn orders_obey_the_edges_and_differ_by_seed() {
        let edges = [[0, 2], [1, 2], [2, 5], [3, 5]];
        let mut found = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let order = random_order(6, &edges, seed);
            let at = |i: u32| order.iter().position(|&j| j == i).unwrap();
            assert_eq!(order.len(), 6);
            assert!((0..6).all(|i| order.contains(&i)));
            assert!(edges.iter().all(|&[from, to]| at(from) < at(to)), "{order:?}");
            found.insert(order);
        }
        assert!(found.len() > 10, "{} orders", found.len());
        assert_eq!(random_order(0, &[], 1), Vec::<u32>::new());
    }
}
