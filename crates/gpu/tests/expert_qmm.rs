//! Products of grouped rows with the matrices of their experts against the reference.

mod common;

use calla_gpu::expert_qmm::{expert_qmm_down, expert_qmm_up};
use calla_gpu::{Device as _, Dtype, GpuExperts, Grouped};
use calla_model::{Experts, Shape};
use calla_ops::experts::{ExpertInput, expert_linear};
use calla_ops::route::Routing;
use calla_ops::{Rows, swiglu};
use calla_testkit::{Random, compare};
use common::temporaries::Temporaries;
use common::{TestDevice, quantised, tolerance};
use half::bf16;

/// Rows, experts, top_k, hidden, expert hidden, bits.
type Case = (usize, usize, usize, usize, usize, usize);

/// One row; an expert with a row more than a block; experts without rows; all experts of every row; odd widths.
const CASES: [Case; 8] = [
    (1, 32, 8, 256, 64, 4),
    (7, 20, 5, 192, 64, 8),
    (9, 1, 1, 64, 128, 4),
    (33, 4, 2, 128, 64, 4),
    (63, 2, 2, 64, 64, 8),
    (65, 1, 1, 320, 64, 4),
    (64, 20, 5, 64, 192, 4),
    (200, 32, 8, 64, 64, 4),
];

struct Layer {
    shape: Shape,
    x: Rows,
    routing: Routing,
    gate: Experts,
    up: Experts,
    down: Experts,
}

impl Layer {
    fn random(seed: u64, (rows, experts, top_k, hidden, expert_hidden, bits): Case) -> Self {
        let mut random = Random::new(seed);
        // Up may have other bits than gate.
        let up_bits = if seed.is_multiple_of(4) { 12 - bits } else { bits };
        let shape = Shape { hidden, experts, top_k, expert_hidden, ..Shape::demo() };
        // Some experts are liked so much that they fill blocks.
        let mut logits = random.rows(rows, experts, 1.0);
        for row in logits.iter_mut() {
            row[0] += 2.0;
            row[experts / 2] += 1.0;
        }
        Self {
            x: common::rounded(&random.rows(rows, hidden, 1.0)),
            routing: calla_ops::route::reference(&logits, top_k),
            gate: quantised::experts(&mut random, experts, expert_hidden, hidden, bits),
            up: quantised::experts(&mut random, experts, expert_hidden, hidden, up_bits),
            down: quantised::experts(&mut random, experts, hidden, expert_hidden, bits),
            shape,
        }
    }

    fn pairs(&self) -> usize {
        self.routing.experts.len()
    }

    /// Pairs in sorted order.
    fn sorted(&self) -> Vec<usize> {
        (0..self.shape.experts).flat_map(|expert| self.routing.pairs_of(expert)).collect()
    }

    /// The pairs by expert as the device holds them.
    fn grouped(&self, device: &mut TestDevice, block_rows: u32) -> Grouped {
        let pairs = self.pairs() as u32;
        let grouped = Grouped::new(&self.shape, pairs, block_rows, &mut Temporaries(device));
        let (mut offsets, mut blocks) = (vec![0], vec![]);
        for expert in 0..self.shape.experts {
            let mut first = offsets[expert];
            let end = first + self.routing.pairs_of(expert).count() as u32;
            offsets.push(end);
            while first < end {
                let count = block_rows.min(end - first);
                blocks.extend([expert as u32, first, count, 0]);
                first += count;
            }
        }
        let count = blocks.len() as u32 / 4;
        assert!(count <= grouped.blocks.rows);
        blocks.resize(4 * grouped.blocks.rows as usize, 0);
        let sorted: Vec<u32> = self.sorted().into_iter().map(|pair| pair as u32).collect();
        let parts = [
            (grouped.pairs, sorted),
            (grouped.offsets, offsets),
            (grouped.blocks, blocks),
            (grouped.block_count, vec![count]),
        ];
        for (tensor, values) in parts {
            device.write(tensor.range, bytemuck::cast_slice(&values)).expect("a write");
        }
        grouped
    }

    /// SwiGLU of gate and up, in sorted order.
    fn run_up(&self, device: &mut TestDevice, block_rows: u32) -> Rows {
        let x = common::bf16s(device, &self.x);
        let [gate, up] = [&self.gate, &self.up].map(|experts| common::experts(device, experts));
        let grouped = self.grouped(device, block_rows);
        let out = common::output(device, self.pairs(), self.shape.expert_hidden, Dtype::Bf16);
        common::run(device, &[expert_qmm_up(&self.shape, x, &gate, &up, &grouped, out)]);
        common::rows(device, out)
    }

    /// Down of `acts` in sorted order, in the order of pairs.
    fn run_down(&self, device: &mut TestDevice, acts: &Rows, block_rows: u32) -> Rows {
        let acts = common::bf16s(device, acts);
        let down = common::experts(device, &self.down);
        let grouped = self.grouped(device, block_rows);
        let out = common::output(device, self.pairs(), self.shape.hidden, Dtype::F32);
        common::run(device, &[expert_qmm_down(&self.shape, acts, &down, &grouped, out)]);
        common::rows(device, out)
    }
}

/// Rows at `indices`.
fn select(x: &Rows, indices: &[usize]) -> Rows {
    let values = indices.iter().flat_map(|&row| x.row(row).iter().copied());
    Rows::from_vec(x.cols(), values.collect())
}

/// `x[i]` at row `indices[i]`.
fn scatter(x: &Rows, indices: &[usize]) -> Rows {
    let mut out = Rows::zeros(x.rows(), x.cols());
    for (row, &index) in x.iter().zip(indices) {
        out.row_mut(index).copy_from_slice(row);
    }
    out
}

#[test]
fn up_matches_the_reference() {
    let Some(mut device) = common::device() else { return };
    let (mut exact, mut all) = (0, 0);
    for (seed, case) in (1..).zip(CASES) {
        let layer = Layer::random(seed, case);
        let product = |experts: &Experts| {
            expert_linear(&layer.x, ExpertInput::PerRow, &layer.routing, experts)
        };
        let due = swiglu::reference(&product(&layer.gate), &product(&layer.up));
        let due = select(&due, &layer.sorted());
        let found = layer.run_up(&mut device, 32);
        for (found, due) in found.as_slice().iter().zip(due.as_slice()) {
            // Rounding is monotone: what is rounded lies between the roundings of the bounds.
            let off = tolerance::QMM_SWIGLU * due.abs().max(1.0);
            let [low, high] = [due - off, due + off].map(|v| bf16::from_f32(v).to_f32());
            assert!((low..=high).contains(found), "{case:?}: {found} instead of {due}");
            exact += u32::from(*found == bf16::from_f32(*due).to_f32());
            all += 1;
        }
        compare::identical(&layer.run_up(&mut device, 64), &found).unwrap();
    }
    println!("{exact} of {all} are the rounded reference");
}

#[test]
fn down_matches_the_reference() {
    let Some(mut device) = common::device() else { return };
    let mut worst = 0.0_f32;
    for (seed, case) in (21..).zip(CASES) {
        let layer = Layer::random(seed, case);
        let acts = Random::new(seed).rows(layer.pairs(), layer.shape.expert_hidden, 1.0);
        let acts = common::rounded(&acts);
        let by_pair = scatter(&acts, &layer.sorted());
        let due = expert_linear(&by_pair, ExpertInput::PerPair, &layer.routing, &layer.down);
        let found = layer.run_down(&mut device, &acts, 64);
        let off = compare::within(&found, &due, tolerance::QMM)
            .unwrap_or_else(|error| panic!("{case:?}: {error}"));
        worst = worst.max(off.max_relative);
        compare::identical(&layer.run_down(&mut device, &acts, 32), &found).unwrap();
    }
    println!("worst: {worst:.1e}");
}

#[test]
fn neighbours_and_order_do_not_matter() {
    let Some(mut device) = common::device() else { return };
    let layer = Layer::random(41, (70, 8, 3, 128, 64, 4));
    let acts = layer.run_up(&mut device, 64);
    let out = layer.run_down(&mut device, &acts, 64);
    for order in common::ORDERS {
        device.set_order(order);
        for block_rows in [32, 64] {
            compare::identical(&layer.run_up(&mut device, block_rows), &acts).unwrap();
            compare::identical(&layer.run_down(&mut device, &acts, block_rows), &out).unwrap();
        }
    }
    device.set_order(0);
    let by_pair = scatter(&acts, &layer.sorted());
    for rows in [0..1, 33..34, 5..70, 69..70] {
        let pairs: Vec<usize> = (rows.start * 3..rows.end * 3).collect();
        let routing = Routing {
            top_k: 3,
            experts: layer.routing.experts[pairs[0]..pairs[0] + pairs.len()].to_vec(),
            weights: layer.routing.weights[pairs[0]..pairs[0] + pairs.len()].to_vec(),
        };
        let alone = Layer {
            shape: layer.shape.clone(),
            x: select(&layer.x, &rows.collect::<Vec<_>>()),
            routing,
            gate: layer.gate.clone(),
            up: layer.up.clone(),
            down: layer.down.clone(),
        };
        let found = alone.run_up(&mut device, 32);
        let found_by_pair = scatter(&found, &alone.sorted());
        compare::identical(&found_by_pair, &select(&by_pair, &pairs)).unwrap();
        let found = alone.run_down(&mut device, &found, 64);
        compare::identical(&found, &select(&out, &pairs)).unwrap();
    }
}

#[test]
fn traffic_counts_chosen_experts_once() {
    let Some(mut device) = common::device() else { return };
    for (rows, touched) in [(2, 10), (7, 20)] {
        let layer = Layer::random(61, (rows, 20, 5, 192, 64, 4));
        let grouped = layer.grouped(&mut device, 32);
        let down: GpuExperts = common::experts(&mut device, &layer.down);
        let pairs = layer.pairs();
        let acts = common::output(&mut device, pairs, 64, Dtype::Bf16);
        let out = common::output(&mut device, pairs, 192, Dtype::F32);
        let dispatch = expert_qmm_down(&layer.shape, acts, &down, &grouped, out);
        let groups = grouped.pairs.range.len + grouped.blocks.range.len + 4;
        let expected = acts.range.len + groups + touched * down.expert_bytes();
        assert_eq!(dispatch.traffic.read, expected);
        assert_eq!(dispatch.traffic.written, out.range.len);
        assert_eq!(dispatch.flops, 2 * pairs as u64 * 192 * 64);
    }
}
