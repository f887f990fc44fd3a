//! Rows sorted by expert against a plain sort.

mod common;

use calla_gpu::group_rows::group_rows;
use calla_gpu::scratch::Scratch;
use calla_gpu::{Dtype, Grouped, Tensor};
use calla_ops::route::Routing;
use calla_testkit::Random;
use common::TestDevice;
use common::routed;

struct Temporaries<'a>(&'a mut TestDevice);

impl Scratch for Temporaries<'_> {
    fn tensor(&mut self, rows: u32, cols: u32, dtype: Dtype) -> Tensor {
        common::output(self.0, rows as usize, cols as usize, dtype)
    }
}

/// What `group_rows` writes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Groups {
    pairs: Vec<u32>,
    offsets: Vec<u32>,
    blocks: Vec<[u32; 4]>,
}

impl Groups {
    fn reference(routing: &Routing, experts: usize, block_rows: usize) -> Self {
        let mut pairs: Vec<u32> = (0..routing.experts.len() as u32).collect();
        pairs.sort_by_key(|&pair| routing.experts[pair as usize]);
        let (mut offsets, mut blocks) = (vec![0], vec![]);
        for expert in 0..experts {
            let first = offsets[expert];
            let count = routing.pairs_of(expert).count();
            offsets.push(first + count as u32);
            for start in (0..count).step_by(block_rows) {
                let rows = block_rows.min(count - start);
                blocks.push([expert as u32, first + start as u32, rows as u32, 0]);
            }
        }
        Self { pairs, offsets, blocks }
    }

    fn compute(
        device: &mut TestDevice,
        routing: &Routing,
        experts: usize,
        block_rows: u32,
    ) -> Self {
        let shape = routed::shape(experts, routing.top_k);
        let routing = routed::upload(device, routing);
        let grouped = Grouped::new(&shape, routing.pairs(), block_rows, &mut Temporaries(device));
        let dispatches = group_rows(&shape, &routing, &grouped, &mut Temporaries(device));
        common::run(device, &dispatches);
        let all = common::integers(device, grouped.blocks);
        let all = all.as_chunks().0;
        let count = common::integers(device, grouped.block_count)[0] as usize;
        assert!(all[count..].iter().all(|&block| block == [0; 4]), "entries behind the last block");
        Self {
            pairs: common::integers(device, grouped.pairs),
            offsets: common::integers(device, grouped.offsets),
            blocks: all[..count].to_vec(),
        }
    }
}

/// How rows choose.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// Any experts.
    Even,
    /// Most rows want the same few.
    Skewed,
    /// All rows want the same.
    Same,
}

fn random_routing(seed: u64, rows: usize, top_k: usize, experts: usize, choice: Choice) -> Routing {
    let mut random = Random::new(seed);
    let same = random.distinct(top_k, experts);
    let mut routing = Routing { top_k, experts: vec![], weights: vec![] };
    for _ in 0..rows {
        let chosen = match choice {
            Choice::Even => random.distinct(top_k, experts),
            Choice::Skewed if random.one_in(4) => random.distinct(top_k, experts),
            Choice::Skewed | Choice::Same => same.clone(),
        };
        routing.experts.extend(chosen.iter().map(|&expert| expert as u32));
    }
    routing.weights = vec![1.0 / top_k as f32; rows * top_k];
    routing
}

/// Rows, experts, and how many of them a row has. Chunks are of 1024 pairs: 128 and 129 rows of 8.
const CASES: [(usize, usize, usize); 17] = [
    (1, 32, 8),
    (1, 1, 1),
    (3, 512, 16),
    (7, 20, 5),
    (9, 256, 8),
    (31, 32, 8),
    (33, 256, 8),
    (64, 512, 16),
    (65, 512, 16),
    (128, 256, 8),
    (129, 256, 8),
    (200, 20, 5),
    (205, 20, 5),
    (1000, 32, 8),
    (1000, 1, 1),
    (1025, 17, 1),
    (2049, 256, 8),
];

#[test]
fn pairs_are_sorted_and_cut_into_blocks() {
    let Some(mut device) = common::device() else { return };
    for (seed, (rows, experts, top_k)) in (0..).zip(CASES) {
        for choice in [Choice::Even, Choice::Skewed, Choice::Same] {
            let routing = random_routing(seed, rows, top_k, experts, choice);
            for block_rows in [32, 64] {
                let actual = Groups::compute(&mut device, &routing, experts, block_rows);
                let expected = Groups::reference(&routing, experts, block_rows as usize);
                let case = format!("{rows} rows, {top_k} of {experts}, {choice:?}, {block_rows}");
                assert_eq!(actual, expected, "{case}");
            }
        }
    }
}

#[test]
fn the_longest_step_fits() {
    let Some(mut device) = common::device() else { return };
    for (choice, experts, top_k) in [(Choice::Even, 512, 16), (Choice::Same, 256, 8)] {
        let routing = random_routing(1, 16_384, top_k, experts, choice);
        let actual = Groups::compute(&mut device, &routing, experts, 64);
        assert!(actual == Groups::reference(&routing, experts, 64), "{choice:?}");
    }
}

#[test]
fn any_order_of_threads_gives_the_same() {
    let Some(mut device) = common::device() else { return };
    for rows in [100, 400] {
        let routing = random_routing(3, rows, 8, 256, Choice::Skewed);
        let expected = Groups::reference(&routing, 256, 32);
        for order in common::ORDERS {
            device.set_order(order);
            assert_eq!(Groups::compute(&mut device, &routing, 256, 32), expected, "order {order}");
        }
    }
}
