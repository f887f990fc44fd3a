//! A row's result is the same bits however its sequence is cut, with whom it is batched, and on how many
//! threads.

mod common;

use calla_cpu::{Cpu, Isa};
use calla_model::network::CheckpointParts;
use calla_model::shape::schedule;
use calla_model::{Network, Shape};
use calla_ops::runner::HostOps;
use calla_ops::{CacheSize, Reference, Rows, forward};
use common::*;

const SIZE: CacheSize = CacheSize { pages: 24, slots: 4 };

fn odd_network(seed: u64) -> (Shape, Network<CheckpointParts>) {
    let shape = odd_shape();
    let formats = [affine(4, 64), affine(4, 32), affine(8, 64), affine(4, 64), affine(6, 32)];
    let network = Random::new(seed).network(&shape, &formats);
    (shape, network)
}

fn cpu(shape: &Shape, threads: usize) -> Cpu {
    Cpu::new(shape.clone(), SIZE, threads).unwrap()
}

/// Logits of all rows of one sequence, cut before each of `cuts`.
fn run(
    cpu: &mut Cpu,
    network: &Network<CheckpointParts>,
    tokens: &[u32],
    cuts: &[usize],
    slot: usize,
    pages: &[usize],
) -> Rows {
    cpu.clear_slot(slot);
    let shape = calla_ops::Ops::shape(cpu).clone();
    let mut logits = vec![];
    let mut start = 0;
    for &end in cuts.iter().chain([&tokens.len()]) {
        if end > start {
            let batch = batch(&shape, SIZE, &[(slot, start, &tokens[start..end], pages)]);
            logits.extend(forward(cpu, network, &batch, |_, _| {}).into_vec());
            start = end;
        }
    }
    Rows::from_vec(shape.vocab_size, logits)
}

const PAGES: [usize; 5] = [0, 1, 2, 3, 4];

#[test]
fn decoding_equals_prefill_at_every_length_to_300() {
    // One layer of each kind keeps 300 prefills cheap.
    let shape = Shape { layers: schedule(2, 2), ..odd_shape() };
    let network = Random::new(1).network(&shape, &[affine(4, 64), affine(4, 32), affine(8, 64)]);
    let tokens = Random::new(2).tokens(300, &shape);
    for isa in Isa::available() {
        let mut cpu = Cpu::with_isa(shape.clone(), SIZE, 1, isa).unwrap();
        let each: Vec<usize> = (1..300).collect();
        let decoded = run(&mut cpu, &network, &tokens, &each, 0, &PAGES);
        let prefilled = run(&mut cpu, &network, &tokens, &[], 0, &PAGES);
        assert_same_bits(&format!("{isa:?}"), prefilled.as_slice(), decoded.as_slice());
        // The last logits of every prompt length; a full sweep on the best instruction set only.
        let step = if isa == Isa::detect() { 1 } else { 37 };
        for len in (1..300).step_by(step) {
            let logits = run(&mut cpu, &network, &tokens[..len], &[], 0, &PAGES);
            assert_same_bits(&format!("{len}"), logits.row(len - 1), decoded.row(len - 1));
        }
    }
}

#[test]
fn random_cuts_pages_and_slots_change_nothing() {
    let (shape, network) = odd_network(3);
    let mut random = Random::new(4);
    let mut cpu = cpu(&shape, 2);
    for _ in 0..12 {
        let len = 1 + random.below(300);
        let tokens = random.tokens(len, &shape);
        let expected = run(&mut cpu, &network, &tokens, &[], 0, &PAGES);
        let mut cuts: Vec<usize> = (0..random.below(9)).map(|_| random.below(len)).collect();
        cuts.sort_unstable();
        let shift = random.below(SIZE.pages);
        let pages: Vec<usize> = (0..5).map(|i| (7 * i + shift) % SIZE.pages).collect();
        let slot = random.below(SIZE.slots);
        let actual = run(&mut cpu, &network, &tokens, &cuts, slot, &pages);
        assert_same_bits(&format!("{cuts:?}"), actual.as_slice(), expected.as_slice());
    }
}

#[test]
fn sequences_that_share_batches_do_not_see_each_other() {
    let (shape, network) = odd_network(5);
    let mut random = Random::new(6);
    let mut cpu = cpu(&shape, 2);
    let lens = [150, 40, 97, 5];
    let tokens = lens.map(|len| random.tokens(len, &shape));
    let alone = tokens.each_ref().map(|t| run(&mut cpu, &network, t, &[], 0, &PAGES));
    // Three pages each, from one shuffled list.
    let mut order: Vec<usize> = (0..SIZE.pages).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    for slot in 0..4 {
        cpu.clear_slot(slot);
    }
    let mut done = [0; 4];
    while done.iter().zip(&lens).any(|(done, len)| done < len) {
        let mut parts = vec![];
        let mut rows = vec![];
        for i in 0..4 {
            let most = (lens[i] - done[i]).min([1, 3, 40][random.below(3)]);
            if most == 0 || random.below(4) == 0 {
                continue;
            }
            let part = done[i]..done[i] + most;
            parts.push((3 - i, part.start, &tokens[i][part.clone()], &order[3 * i..3 * i + 3]));
            rows.extend(part.map(|row| (i, row)));
            done[i] += most;
        }
        if parts.is_empty() {
            continue;
        }
        let batch = batch(&shape, SIZE, &parts);
        let logits = forward(&mut cpu, &network, &batch, |_, _| {});
        for (logits, &(i, row)) in logits.iter().zip(&rows) {
            assert_same_bits(&format!("sequence {i} row {row}"), logits, alone[i].row(row));
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let (shape, network) = odd_network(7);
    let tokens = Random::new(8).tokens(210, &shape);
    let expected = run(&mut cpu(&shape, 1), &network, &tokens, &[], 0, &PAGES);
    for threads in [2, 3, 8] {
        let actual = run(&mut cpu(&shape, threads), &network, &tokens, &[100, 101], 0, &PAGES);
        assert_same_bits(&format!("{threads} threads"), actual.as_slice(), expected.as_slice());
    }
}

#[test]
fn logits_are_those_of_the_reference() {
    let (shape, network) = odd_network(9);
    let tokens = Random::new(10).tokens(120, &shape);
    let mut oracle = Reference::new(shape.clone(), SIZE).unwrap();
    let expected = forward(&mut oracle, &network, &whole(&shape, SIZE, &tokens), |_, _| {});
    for isa in Isa::available() {
        let mut cpu = Cpu::with_isa(shape.clone(), SIZE, 2, isa).unwrap();
        let actual = forward(&mut cpu, &network, &whole(&shape, SIZE, &tokens), |_, _| {});
        // Random weights leave the choice between two experts to the last bits now and then, so most rows
        // are close and the rest are only as likely as such ties.
        let close = actual.iter().zip(expected.iter()).filter(|(a, e)| {
            let size = e.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            a.iter().zip(*e).all(|(a, e)| (a - e).abs() <= 1e-3 * size)
        });
        let close = close.count();
        assert!(close >= 114, "{close} of 120 rows are close on {isa:?}");
    }
}
