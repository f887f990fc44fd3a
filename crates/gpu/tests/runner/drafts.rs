//! Guesses of the draft layer: the reference's, the same with whom they are made, and without a trace.

use crate::rows::{SEQUENCES, Sequences, prompt_len, sequences};
use crate::sequences::{Model, SIZE, require_same, step};
use calla_model::Shape;
use calla_ops::runner::Executor;
use calla_ops::{Draft, Drafts, Reference, Runner};
use calla_testkit::Random;

const DEPTH: usize = 3;

/// Guesses after the prompts of some sequences, each with its depth and its number of tokens to guess among.
fn guess(
    runner: &mut dyn Runner,
    sequences: &Sequences,
    of: &[(usize, usize, usize)],
) -> Vec<Vec<u32>> {
    let draft = |&(index, depth, vocab_used): &(usize, usize, usize)| {
        let sequence = &sequences.all[index];
        let position = prompt_len(index);
        Draft {
            token: sequence.tokens[position],
            position,
            slot: sequence.slot,
            pages: sequence.pages.clone(),
            depth,
            vocab_used,
        }
    };
    let (vocab, cache) = (runner.shape().vocab_size, runner.cache_size());
    let drafts = Drafts::new(of.iter().map(draft).collect(), vocab, cache).expect("drafts");
    runner.draft(&drafts).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn guesses_are_those_of_the_reference() {
    // All experts, so that no tie between two of them decides.
    let small = Model::small(5);
    let model = Model { shape: Shape { experts: 5, top_k: 5, ..small.shape }, seed: 5 };
    let Some(mut runner) = model.runner() else { return };
    let (of_runner, _) = sequences(&model, &mut runner);
    let ops = Reference::new(model.shape.clone(), SIZE).expect("memory");
    let executor = Executor::new(ops, model.network());
    let mut reference = executor.with_drafts().expect("memory");
    let (of_reference, _) = sequences(&model, &mut reference);
    let each: Vec<_> = (0..SEQUENCES).map(|index| (index, DEPTH, model.shape.vocab_size)).collect();
    let actual = guess(&mut runner, &of_runner, &each);
    let expected = guess(&mut reference, &of_reference, &each);
    let same = |depth: usize| {
        actual.iter().zip(&expected).filter(|(a, e)| a[..depth] == e[..depth]).count()
    };
    println!("{} of {SEQUENCES} first guesses, {} of all", same(1), same(DEPTH));
    // One in 300 would be by chance.
    assert!(same(1) >= SEQUENCES - 2, "{actual:?} instead of {expected:?}");
    assert!(same(DEPTH) >= SEQUENCES / 2, "{actual:?} instead of {expected:?}");
}

#[test]
fn guesses_do_not_see_each_other_and_leave_no_trace() {
    let model = Model::small(2);
    let Some(mut runner) = model.runner() else { return };
    let (sequences, _) = sequences(&model, &mut runner);
    let mut random = Random::new(8);
    let vocab = model.shape.vocab_size;
    let each: Vec<(usize, usize, usize)> = (0..SEQUENCES)
        .map(|index| (index, random.range(1..=DEPTH), *random.pick(&[vocab, 40])))
        .collect();
    let alone: Vec<Vec<u32>> =
        each.iter().map(|&draft| guess(&mut runner, &sequences, &[draft]).remove(0)).collect();
    for (guesses, &(_, depth, vocab_used)) in alone.iter().zip(&each) {
        assert_eq!(guesses.len(), depth);
        assert!(guesses.iter().all(|&token| (token as usize) < vocab_used), "{guesses:?}");
    }
    let order = random.distinct(SEQUENCES, SEQUENCES);
    let together: Vec<_> = order.iter().map(|&index| each[index]).collect();
    for (guesses, &index) in guess(&mut runner, &sequences, &together).iter().zip(&order) {
        assert_eq!(guesses, &alone[index], "sequence {index} in {order:?}");
    }
    // Slots are as they were, and steps go on as if there had been no guesses.
    for (sequence, state) in sequences.all.iter().zip(&sequences.states) {
        assert!(sequence.state(&mut runner).slot == state.slot, "slot {}", sequence.slot);
    }
    let all: Vec<_> = (0..SEQUENCES).map(|index| sequences.decode(index)).collect();
    let after = step(&mut runner, &all);
    let states: Vec<_> = (0..SEQUENCES).map(|i| sequences.all[i].state(&mut runner)).collect();
    sequences.restore(&mut runner);
    for (index, logits) in step(&mut runner, &all).iter().enumerate() {
        require_same(&after[index], logits, &format!("sequence {index} after guesses"));
        let state = sequences.all[index].state(&mut runner);
        assert!(states[index].slot == state.slot, "sequence {index} after guesses");
    }
}
