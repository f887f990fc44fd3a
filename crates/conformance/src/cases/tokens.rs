//! Tokens in and out: the embedding, the choice of the next token, the step to the one after it.

use super::{On, Verdict};
use crate::check::Check;
use crate::temporaries::Temporaries;
use crate::{quantised, tolerance, values};
use calla_gpu::advance::{Kept, advance};
use calla_gpu::argmax::argmax;
use calla_gpu::embed::embed;
use calla_gpu::sample::{Sampler, sample};
use calla_gpu::step_tables::StepTables;
use calla_gpu::top_candidates::{CANDIDATES, Candidates, NO_TOKEN, top_candidates};
use calla_gpu::{Dtype, SpanEntry};
use calla_ops::Rows;
use calla_ops::sample::{Allowed, History, Sampling, choose};
use calla_testkit::Random;

/// Longer than what one threadgroup looks at.
const VOCAB: usize = 5000;
/// Tokens behind are padding.
const VOCAB_USED: usize = 4990;

pub(super) fn embed_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(tolerance::EMBED);
    let mut random = Random::new(1);
    for bits in [4, 8] {
        let table = quantised::matrix(&mut random, 300, 256, bits);
        let mut ids = random.tokens(9, 300);
        ids[0] = 299;
        let expected = calla_ops::embed::reference(&table, &ids);
        let table = values::matrix(device, &table);
        let tokens = values::u32s(device, &ids, 1);
        let out = values::output(device, ids.len(), 256, Dtype::F32);
        values::run(device, &[embed(&table, tokens, out)]);
        check.within(&format!("{bits} bits"), &values::rows(device, out), &expected);
    }
    check.done()
}

pub(super) fn argmax_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    let mut random = Random::new(2);
    // On a grid, so that many are equal: the first of the largest wins.
    let coarse = (0..3 * VOCAB).map(|_| random.range(0..=40) as f32 / 4.0 - 7.0).collect();
    for logits in [Rows::from_vec(VOCAB, coarse), random.rows(3, VOCAB, 5.0)] {
        let input = values::f32s(device, &logits);
        let out = values::output(device, logits.rows(), 1, Dtype::U32);
        let dispatches = argmax(input, VOCAB_USED as u32, &mut Temporaries(device), out);
        values::run(device, &dispatches);
        let expected: Vec<u32> =
            logits.iter().map(|row| calla_ops::sample::argmax(&row[..VOCAB_USED])).collect();
        check.equal("tokens", &values::integers(device, out), &expected);
    }
    check.done()
}

/// The candidates of a row in order, those that are missing included.
fn candidates_of(row: &[f32]) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    // Stable, so that of equal ones the lower token comes first.
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.resize(CANDIDATES as usize, (NO_TOKEN, 0.0));
    all
}

pub(super) fn top_candidates_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    let mut random = Random::new(3);
    // No zeros: of those there are two.
    let coarse = (0..2 * VOCAB).map(|_| random.range(1..=400) as f32 / 16.0 + 0.01).collect();
    for logits in [Rows::from_vec(VOCAB, coarse), random.rows(2, VOCAB, 5.0)] {
        let input = values::f32s(device, &logits);
        let candidates = Candidates::new(&mut Temporaries(device), logits.rows() as u32);
        let dispatches =
            top_candidates(input, VOCAB_USED as u32, &mut Temporaries(device), &candidates);
        values::run(device, &dispatches);
        let expected: Vec<(u32, f32)> =
            logits.iter().flat_map(|row| candidates_of(&row[..VOCAB_USED])).collect();
        let tokens: Vec<u32> = expected.iter().map(|&(token, _)| token).collect();
        check.equal("tokens", &values::integers(device, candidates.tokens), &tokens);
        let values: Vec<f32> = expected.into_iter().map(|(_, logit)| logit).collect();
        let expected = Rows::from_vec(CANDIDATES as usize, values);
        check.identical("logits", &values::rows(device, candidates.logits), &expected);
    }
    check.done()
}

pub(super) fn sample_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    let mut random = Random::new(4);
    let logits = random.rows(40, 777, 4.0);
    let draws: Vec<(Sampling, u64)> = (0..logits.rows())
        .map(|_| {
            let sampling = Sampling {
                temperature: *random.pick(&[0.0, 0.3, 0.7, 1.0, 1.5]),
                top_k: *random.pick(&[1, 5, 20, 64]),
                top_p: *random.pick(&[1.0, 0.95, 0.5]),
                min_p: *random.pick(&[0.0, 0.05, 0.9]),
                seed: random.bits(),
                ..Sampling::greedy()
            };
            (sampling, random.range(0..=300) as u64)
        })
        .collect();
    let samplers: Vec<Sampler> = draws
        .iter()
        .filter_map(|(sampling, generated)| Sampler::new(sampling, *generated))
        .collect();
    let input = values::f32s(device, &logits);
    let samplers = values::u32s(device, bytemuck::cast_slice(&samplers), 8);
    let candidates = Candidates::new(&mut Temporaries(device), input.rows);
    let out = values::output(device, draws.len(), 1, Dtype::U32);
    let mut dispatches = top_candidates(input, 777, &mut Temporaries(device), &candidates);
    dispatches.push(sample(&candidates, samplers, out));
    values::run(device, &dispatches);
    let expected: Vec<u32> = logits
        .iter()
        .zip(&draws)
        .map(|(row, (sampling, generated))| {
            let mut history = History::default();
            (0..*generated).for_each(|_| history.push(0));
            choose(row, 777, sampling, &history, Allowed::all()).unwrap_or(NO_TOKEN)
        })
        .collect();
    check.equal("tokens", &values::integers(device, out), &expected);
    check.done()
}

pub(super) fn advance_case(device: On<'_>) -> Verdict {
    let mut check = Check::new(0.0);
    const ROWS: u32 = 5;
    let span = |row: u32, steps: u32| SpanEntry {
        first_row: row,
        rows: 1,
        position: 100 + 7 * row + steps,
        // A step turns them round.
        slot_in: 2 * row + steps,
        slot_out: 2 * row + 1 - steps,
        first_page: 3 * row,
        ..SpanEntry::default()
    };
    let spans = |steps| -> Vec<SpanEntry> { (0..ROWS).map(|row| span(row, steps)).collect() };
    let samplers = |steps: u64| -> Vec<Sampler> {
        let sampling = |row| Sampling {
            temperature: 1.0,
            top_k: 20,
            seed: u64::from(row) << 33,
            ..Sampling::greedy()
        };
        // The count of tokens is about to need more than 32 bits.
        let generated = u64::from(u32::MAX) + steps;
        (0..ROWS).filter_map(|row| Sampler::new(&sampling(row), generated)).collect()
    };
    let tables = values::tables(
        device,
        &StepTables {
            tokens: (40..40 + ROWS).collect(),
            positions: (100..100 + ROWS).collect(),
            row_spans: (0..ROWS).collect(),
            spans: spans(0),
            outputs: (0..ROWS).collect(),
            ..StepTables::default()
        },
    );
    let kept = Kept {
        tokens: values::output(device, 3, ROWS as usize, Dtype::U32),
        step: values::u32s(device, &[0], 1),
    };
    let chosen: Vec<u32> = (7..7 + ROWS).collect();
    let input = values::u32s(device, &chosen, 1);
    let drawn = values::u32s(device, bytemuck::cast_slice(&samplers(0)), 8);
    values::run(device, &[advance(input, &tables, Some(drawn), &kept)]);

    let positions: Vec<u32> = (101..101 + ROWS).collect();
    check.equal("tokens", &values::integers(device, tables.tokens), &chosen);
    check.equal("positions", &values::integers(device, tables.positions), &positions);
    let due = spans(1);
    let due = bytemuck::cast_slice::<SpanEntry, u32>(&due);
    check.equal("spans", &values::integers(device, tables.spans), due);
    let due = samplers(1);
    let due = bytemuck::cast_slice::<Sampler, u32>(&due);
    check.equal("samplers", &values::integers(device, drawn), due);
    check.equal("the step", &values::integers(device, kept.step), &[1]);
    let tokens = values::integers(device, kept.tokens);
    check.equal("kept tokens", &tokens[..ROWS as usize], &chosen);
    check.done()
}
