//! Rows on their way to the draft layer.

mod common;

use calla_gpu::mtp_rows::{keep_rows, previous_rows, side_by_side};
use calla_gpu::step_tables::StepTables;
use calla_gpu::{Dtype, SpanEntry, Tables};
use calla_ops::Rows;
use calla_testkit::{Random, compare};
use common::TestDevice;

/// Spans of these lengths over random slots, and their checkpoints where they have any.
struct Layout {
    spans: Vec<SpanEntry>,
    checkpoints: Vec<u32>,
    rows: usize,
    slots: usize,
}

impl Layout {
    fn new(random: &mut Random, lengths: &[(usize, bool)]) -> Self {
        let slots = lengths.iter().map(|(rows, _)| rows + 1).sum::<usize>() + 2;
        let mut free = random.distinct(slots, slots).into_iter().map(|slot| slot as u32);
        let mut layout = Self { spans: vec![], checkpoints: vec![], rows: 0, slots };
        for &(rows, with_checkpoints) in lengths {
            let count = if with_checkpoints { rows - 1 } else { 0 };
            let first_checkpoint = layout.checkpoints.len() as u32;
            layout.checkpoints.extend(free.by_ref().take(count));
            layout.spans.push(SpanEntry {
                first_row: layout.rows as u32,
                rows: rows as u32,
                slot_in: free.next().expect("a slot"),
                slot_out: free.next().expect("a slot"),
                first_checkpoint,
                checkpoints: count as u32,
                ..SpanEntry::default()
            });
            layout.rows += rows;
        }
        layout
    }

    fn tables(&self, device: &mut TestDevice) -> Tables {
        let spans = self.spans.iter();
        let row_spans: Vec<u32> =
            (0..).zip(spans).flat_map(|(i, span)| vec![i; span.rows as usize]).collect();
        let tables = StepTables {
            tokens: vec![u32::MAX; self.rows],
            row_spans,
            spans: self.spans.clone(),
            checkpoints: self.checkpoints.clone(),
            ..StepTables::default()
        };
        common::tables(device, &tables)
    }
}

#[test]
fn predecessors_come_from_slots_and_rows_go_there() {
    let Some(mut device) = common::device() else { return };
    let steps: [&[(usize, bool)]; 4] = [
        &[(1, true)],
        &[(1, false), (5, true), (1, true), (3, true)],
        &[(33, false), (2, true), (64, false)],
        &[(2, false), (200, false)],
    ];
    for (seed, lengths) in (0..).zip(steps) {
        let random = &mut Random::new(seed);
        for hidden in [64, 192, 256, 2048] {
            let layout = Layout::new(random, lengths);
            let h = random.rows(layout.rows, hidden, 1.0);
            let kept = random.rows(layout.slots, hidden, 1.0);
            let (mut previous, mut after) = (Rows::zeros(layout.rows, hidden), kept.clone());
            for span in &layout.spans {
                for i in 0..span.rows {
                    let row = (span.first_row + i) as usize;
                    let before =
                        if i == 0 { kept.row(span.slot_in as usize) } else { h.row(row - 1) };
                    previous.row_mut(row).copy_from_slice(before);
                    let slot = if i + 1 == span.rows {
                        span.slot_out
                    } else if span.checkpoints > 0 {
                        layout.checkpoints[(span.first_checkpoint + i) as usize]
                    } else {
                        continue;
                    };
                    after.row_mut(slot as usize).copy_from_slice(h.row(row));
                }
            }
            for order in common::ORDERS {
                device.set_order(order);
                let tables = layout.tables(&mut device);
                let (gpu_h, gpu_kept) =
                    (common::f32s(&mut device, &h), common::f32s(&mut device, &kept));
                let out = common::output(&mut device, layout.rows, hidden, Dtype::F32);
                let dispatches = [
                    previous_rows(gpu_h, gpu_kept, &tables, out),
                    keep_rows(gpu_h, gpu_kept, &tables),
                ];
                common::run(&mut device, &dispatches);
                compare::identical(&common::rows(&mut device, out), &previous).unwrap();
                compare::identical(&common::rows(&mut device, gpu_kept), &after).unwrap();
            }
        }
    }
}

#[test]
fn halves_lie_side_by_side() {
    let Some(mut device) = common::device() else { return };
    for (rows, cols) in [(1, 64), (7, 192), (33, 256), (3, 2048)] {
        let mut random = Random::new(rows as u64);
        let (left, right) = (random.rows(rows, cols, 1.0), random.rows(rows, cols, 1.0));
        let joined = left.iter().zip(right.iter()).flat_map(|(l, r)| [l, r].concat());
        let joined = Rows::from_vec(2 * cols, joined.collect());
        let out = common::output(&mut device, rows, 2 * cols, Dtype::F32);
        let halves = (common::f32s(&mut device, &left), common::f32s(&mut device, &right));
        common::run(&mut device, &[side_by_side(halves.0, halves.1, out)]);
        compare::identical(&common::rows(&mut device, out), &joined).unwrap();
        let out = common::output(&mut device, rows, 2 * cols, Dtype::Bf16);
        let halves = (common::bf16s(&mut device, &left), common::bf16s(&mut device, &right));
        common::run(&mut device, &[side_by_side(halves.0, halves.1, out)]);
        compare::identical(&common::rows(&mut device, out), &common::rounded(&joined)).unwrap();
    }
}
