//! One decode step after another without the host.

mod common;

use calla_gpu::advance::{Kept, advance};
use calla_gpu::sample::Sampler;
use calla_gpu::step_tables::StepTables;
use calla_gpu::{Device as _, Dtype, SpanEntry, Tables, Tensor};
use calla_ops::sample::Sampling;
use common::TestDevice;

const STEPS: usize = 3;

struct Step {
    tables: Tables,
    chosen: Tensor,
    samplers: Tensor,
    kept: Kept,
}

fn spans(rows: u32) -> Vec<SpanEntry> {
    let span = |row| SpanEntry {
        first_row: row,
        rows: 1,
        position: 100 + row * 7,
        slot_in: 2 * row,
        slot_out: 2 * row + 1,
        first_page: row * 3,
        first_checkpoint: 5,
        checkpoints: 0,
    };
    (0..rows).map(span).collect()
}

fn samplers(rows: u32, generated: u64) -> Vec<Sampler> {
    let sampler = |row| {
        let sampling = Sampling {
            temperature: 1.0,
            top_k: 20,
            seed: u64::from(row) << 33,
            ..Sampling::greedy()
        };
        Sampler::new(&sampling, generated).expect("no penalties")
    };
    (0..rows).map(sampler).collect()
}

impl Step {
    fn new(device: &mut TestDevice, rows: u32, generated: u64) -> Self {
        let tables = StepTables {
            tokens: (40..40 + rows).collect(),
            positions: (100..100 + rows).collect(),
            row_spans: (0..rows).collect(),
            spans: spans(rows),
            outputs: (0..rows).collect(),
            ..StepTables::default()
        };
        let tables = common::tables(device, &tables);
        let kept = Kept {
            tokens: common::output(device, STEPS, rows as usize, Dtype::U32),
            step: common::u32s(device, &[0], 1),
        };
        let samplers = bytemuck::cast_slice(&samplers(rows, generated)).to_vec();
        Self {
            tables,
            chosen: common::u32s(device, &(7..7 + rows).collect::<Vec<_>>(), 1),
            samplers: common::u32s(device, &samplers, 8),
            kept,
        }
    }
}

#[test]
fn a_step_becomes_the_next() {
    let Some(mut device) = common::device() else { return };
    let generated = u64::from(u32::MAX) - 1;
    for rows in [1, 5, 300] {
        let step = Step::new(&mut device, rows, generated);
        for steps in 1..=4_u32 {
            let chosen: Vec<u32> = (0..rows).map(|row| steps * 1000 + row).collect();
            device.write(step.chosen.range, bytemuck::cast_slice(&chosen)).expect("a write");
            device.set_order(steps);
            let dispatch = advance(step.chosen, &step.tables, Some(step.samplers), &step.kept);
            common::run(&mut device, &[dispatch]);

            assert_eq!(common::integers(&mut device, step.tables.tokens), chosen);
            let positions: Vec<u32> = (0..rows).map(|row| 100 + row + steps).collect();
            assert_eq!(common::integers(&mut device, step.tables.positions), positions);
            let mut expected = spans(rows);
            for span in &mut expected {
                span.position += steps;
                if steps % 2 == 1 {
                    (span.slot_in, span.slot_out) = (span.slot_out, span.slot_in);
                }
            }
            let actual = common::integers(&mut device, step.tables.spans);
            assert_eq!(actual, bytemuck::cast_slice::<SpanEntry, u32>(&expected));
            let expected = samplers(rows, generated + u64::from(steps));
            let actual = common::integers(&mut device, step.samplers);
            assert_eq!(actual, bytemuck::cast_slice::<Sampler, u32>(&expected));
            assert_eq!(common::integers(&mut device, step.kept.step), [steps]);
            let kept = common::integers(&mut device, step.kept.tokens);
            let place = (steps as usize - 1) % STEPS * rows as usize;
            assert_eq!(kept[place..place + rows as usize], chosen);
        }
        // The fourth step took the first's place; the second's and third's are there.
        let kept = common::integers(&mut device, step.kept.tokens);
        let first: Vec<u32> = kept.chunks_exact(rows as usize).map(|step| step[0]).collect();
        assert_eq!(first, [4000, 2000, 3000]);
    }
}

#[test]
fn without_samplers_the_rest_is_the_same() {
    let Some(mut device) = common::device() else { return };
    let step = Step::new(&mut device, 3, 9);
    let dispatch = advance(step.chosen, &step.tables, None, &step.kept);
    common::run(&mut device, &[dispatch]);
    assert_eq!(common::integers(&mut device, step.tables.tokens), [7, 8, 9]);
    assert_eq!(common::integers(&mut device, step.tables.positions), [101, 102, 103]);
    let samplers = samplers(3, 9);
    let actual = common::integers(&mut device, step.samplers);
    assert_eq!(actual, bytemuck::cast_slice::<Sampler, u32>(&samplers));
}
