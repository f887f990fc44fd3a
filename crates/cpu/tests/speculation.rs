//! Rows that may be taken back, drafts, and state as bytes: none of them changes a bit of what follows.

mod common;

use calla_cpu::{Cpu, Isa};
use calla_model::{LayerKind, Shape};
use calla_ops::{
    Batch, CacheSize, Draft, Drafts, Executor, Reference, Rows, Runner, Span, SpanKind,
};
use calla_testkit::weights::Formats;
use common::*;

const SIZE: CacheSize = CacheSize { pages: 8, slots: 6 };
const PAGES: [usize; 2] = [5, 2];

fn executor(drafting: bool, isa: Isa) -> Executor<Cpu> {
    let shape = odd_shape();
    let network = calla_testkit::weights::network(&shape, Formats::Mixed, 1);
    assert!(network.mtp.is_some(), "the network has a draft layer");
    let runner = Executor::new(Cpu::with_isa(shape, SIZE, 2, isa).unwrap(), network);
    if drafting { runner.with_drafts().unwrap() } else { runner }
}

fn step(runner: &mut dyn Runner, tokens: &[u32], spans: Vec<Span>) -> Rows {
    let outputs = (0..tokens.len()).collect();
    let vocab = runner.shape().vocab_size;
    runner.step(&Batch::new(tokens.to_vec(), spans, outputs, vocab, SIZE).unwrap()).unwrap()
}

fn span(rows: std::ops::Range<usize>, position: usize, slot: usize, checkpoints: &[usize]) -> Span {
    let span = Span::new(SpanKind::Decode, rows, position, slot, PAGES.to_vec());
    Span { checkpoints: checkpoints.to_vec(), ..span }
}

fn slot(runner: &mut dyn Runner, slot: usize) -> Vec<u8> {
    let mut bytes = vec![];
    runner.read_slot(slot, &mut bytes).unwrap();
    bytes
}

fn draft(runner: &mut dyn Runner, token: u32, position: usize, slot: usize) -> Vec<u32> {
    let vocab = runner.shape().vocab_size;
    let pages = PAGES.to_vec();
    let draft = Draft { token, position, slot, pages, depth: 3, vocab_used: vocab - 7 };
    runner.draft(&Drafts::new(vec![draft], vocab, SIZE).unwrap()).unwrap().remove(0)
}

/// Logits of 60 tokens and then four decoded ones with their states, as a sequence on its own.
fn one_by_one(runner: &mut dyn Runner, tokens: &[u32]) -> (Rows, Vec<Vec<u8>>) {
    runner.clear_slot(0);
    let mut prefill = span(0..60, 0, 0, &[]);
    prefill.kind = SpanKind::Prefill;
    step(runner, &tokens[..60], vec![prefill]);
    let (mut logits, mut states) = (vec![], vec![]);
    for position in 60..64 {
        let row = step(runner, &tokens[position..=position], vec![span(0..1, position, 0, &[])]);
        logits.extend(row.into_vec());
        states.push(slot(runner, 0));
    }
    (Rows::from_vec(runner.shape().vocab_size, logits), states)
}

#[test]
fn checkpoints_hold_the_state_of_sequences_that_stop_there() {
    for isa in Isa::available() {
        let tokens = Random::new(2).tokens(66, &odd_shape());
        let mut runner = executor(true, isa);
        let (expected, states) = one_by_one(&mut runner, &tokens);
        // The same tokens cut elsewhere, then all four at once beside another sequence.
        runner.clear_slot(1);
        runner.clear_slot(3);
        step(&mut runner, &tokens[..31], vec![span(0..31, 0, 1, &[])]);
        step(&mut runner, &tokens[31..60], vec![span(0..29, 31, 1, &[])]);
        let other = Span { pages: vec![0], ..span(0..1, 0, 3, &[]) };
        let verified = span(1..5, 60, 1, &[4, 0, 2]);
        let fed: Vec<u32> = [&[9][..], &tokens[60..64]].concat();
        let logits = step(&mut runner, &fed, vec![other, verified]);
        for row in 0..4 {
            assert_same_bits(
                &format!("{isa:?}, row {row}"),
                logits.row(row + 1),
                expected.row(row),
            );
            let state = slot(&mut runner, [4, 0, 2, 1][row]);
            assert!(state == states[row], "{isa:?}: the state after row {row} differs");
        }
    }
}

#[test]
fn rejected_rows_leave_no_trace_and_drafts_do_not_change_logits() {
    let tokens = Random::new(3).tokens(70, &odd_shape());
    let mut plain = executor(false, Isa::detect());
    let mut cold = executor(true, Isa::detect());
    let (without, _) = one_by_one(&mut plain, &tokens);
    let (with, _) = one_by_one(&mut cold, &tokens);
    assert_same_bits("drafting on or off", with.as_slice(), without.as_slice());
    assert!(!plain.can_draft() && cold.can_draft());
    let kept = slot(&mut cold, 0);
    let expected = draft(&mut cold, tokens[64], 64, 0);
    assert_eq!(expected.len(), 3);
    assert!(slot(&mut cold, 0) == kept, "drafting moves no recurrent state");
    let next = step(&mut cold, &tokens[64..65], vec![span(0..1, 64, 0, &[])]);
    let after = draft(&mut cold, tokens[65], 65, 0);

    // Two right rows and two wrong ones; the sequence goes on from the second row's checkpoint.
    let mut warm = executor(true, Isa::detect());
    step(&mut warm, &tokens[..62], vec![span(0..62, 0, 1, &[])]);
    draft(&mut warm, tokens[62], 62, 1);
    let fed = [tokens[62], tokens[63], tokens[64] ^ 1, 5];
    step(&mut warm, &fed, vec![span(0..4, 62, 1, &[2, 3, 4])]);
    assert_eq!(draft(&mut warm, tokens[64], 64, 3), expected);
    // It moves to another executor as bytes.
    let mut moved = executor(true, Isa::detect());
    let mut bytes = slot(&mut warm, 3);
    moved.write_slot(5, &bytes).unwrap();
    for page in PAGES {
        warm.read_page(page, &mut bytes).unwrap();
        moved.write_page(page, &bytes).unwrap();
    }
    for (runner, slot) in [(&mut warm, 3), (&mut moved, 5)] {
        let logits = step(runner, &tokens[64..65], vec![span(0..1, 64, slot, &[])]);
        assert_same_bits("after rejected rows", logits.as_slice(), next.as_slice());
        assert_eq!(draft(runner, tokens[65], 65, slot), after);
    }
    assert!(moved.write_page(0, &bytes[1..]).unwrap_err().to_string().contains("bytes"));
}

#[test]
fn the_reference_keeps_checkpoints_too() {
    let shape = Shape { layers: odd_shape().layers[..2].to_vec(), ..odd_shape() };
    let network = calla_testkit::weights::network(&shape, Formats::Mixed, 4);
    let ops = Reference::new(shape.clone(), SIZE).unwrap();
    let mut runner = Executor::new(ops, network).with_drafts().unwrap();
    let tokens = Random::new(5).tokens(64, &shape);
    let (expected, states) = one_by_one(&mut runner, &tokens);
    runner.clear_slot(1);
    step(&mut runner, &tokens[..60], vec![span(0..60, 0, 1, &[])]);
    let logits = step(&mut runner, &tokens[60..], vec![span(0..4, 60, 1, &[4, 0, 2])]);
    assert_same_bits("logits", logits.as_slice(), expected.as_slice());
    for row in 0..4 {
        assert!(slot(&mut runner, [4, 0, 2, 1][row]) == states[row], "state after row {row}");
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_of_the_backend_and_of_drafting() {
    let absurd = CacheSize { pages: 1 << 50, slots: 1 };
    let error = Cpu::new(odd_shape(), absurd, 1).err().expect("no machine has so much");
    assert!(error.to_string().contains("cannot allocate"), "{error}");
    // Only the draft layer has keys and values here.
    let shape = Shape { layers: vec![LayerKind::DeltaNet], ..odd_shape() };
    let network = calla_testkit::weights::network(&shape, Formats::Mixed, 1);
    let runner = Executor::new(Cpu::new(shape, absurd, 1).unwrap(), network);
    let error = runner.with_drafts().err().expect("no machine has so much");
    assert!(error.to_string().contains("KV pages"), "{error}");
}
