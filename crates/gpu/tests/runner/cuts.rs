//! A prompt's state and logits are the same bits whether it is computed at once, in slices, or from a snapshot on, as
//! long as it is divided at its cuts and spans name the cuts inside them.

use crate::sequences::{Model, Sequence, TestRunner, joined, require_same, step};
use calla_ops::{Rows, Runner as _};
use calla_testkit::{Random, compare};

const TOKENS: usize = 150;
/// One chunk of 64 between the first two, then short ones.
const CUTS: [usize; 4] = [9, 80, 101, 102];

/// The whole prompt in slices that end at `ends`.
fn sliced(runner: &mut TestRunner, prompt: &Sequence, ends: &[usize]) -> Rows {
    prompt.forget(runner);
    let mut start = 0;
    let mut logits = vec![];
    for &end in ends.iter().chain([&TOKENS]) {
        logits.extend(step(runner, &[prompt.prefill(start..end, &CUTS)]));
        start = end;
    }
    joined(&logits)
}

#[test]
fn slices_that_end_at_cuts_change_nothing() {
    let model = Model::small(1);
    let Some(mut runner) = model.runner() else { return };
    let prompt = model.sequence(2, 3, TOKENS);
    let cold = sliced(&mut runner, &prompt, &[]);
    let state = prompt.state(&mut runner);
    let mut random = Random::new(1);
    let mut subsets = vec![CUTS.to_vec()];
    for _ in 0..3 {
        subsets.push(CUTS.into_iter().filter(|_| random.one_in(2)).collect());
    }
    for ends in subsets {
        let logits = sliced(&mut runner, &prompt, &ends);
        require_same(&logits, &cold, &format!("slices that end at {ends:?}"));
        prompt.state(&mut runner).require(&state, &format!("slices that end at {ends:?}"));
    }
}

/// What the test above would not see if it could not see anything.
#[test]
fn cuts_that_are_not_named_show() {
    let model = Model::small(1);
    let Some(mut runner) = model.runner() else { return };
    let prompt = model.sequence(2, 3, TOKENS);
    let cold = sliced(&mut runner, &prompt, &[]);
    let state = prompt.state(&mut runner);
    prompt.forget(&mut runner);
    let uncut = step(&mut runner, &[prompt.prefill(0..TOKENS, &[])]).remove(0);
    let before_first_cut = |rows: &Rows| {
        let cols = rows.cols();
        Rows::from_vec(cols, rows.as_slice()[..CUTS[0] * cols].to_vec())
    };
    // Nothing but the chunks differs, so rows before the first cut are the same.
    require_same(&before_first_cut(&uncut), &before_first_cut(&cold), "rows before the first cut");
    assert!(compare::identical(&uncut, &cold).is_err(), "logits are the same without cuts");
    assert!(prompt.state(&mut runner) != state, "the state is the same without cuts");
}

#[test]
fn a_prompt_goes_on_from_a_snapshot_at_a_cut() {
    let model = Model::small(1);
    let Some(mut runner) = model.runner() else { return };
    let prompt = model.sequence(2, 3, TOKENS);
    let cold = sliced(&mut runner, &prompt, &[]);
    let state = prompt.state(&mut runner);
    let other = model.sequence(5, 12, 40);
    for cut in [CUTS[0], CUTS[1]] {
        let what = format!("from a snapshot at {cut}");
        prompt.forget(&mut runner);
        let first = step(&mut runner, &[prompt.prefill(0..cut, &CUTS)]).remove(0);
        let snapshot = prompt.state(&mut runner);
        // A copy in other slots and pages goes on while the first runs something else.
        let copy = Sequence { slot: 7, pages: vec![20, 17, 22], ..prompt.clone() };
        runner.copy_slot(prompt.slot, copy.slot);
        for (&from, &to) in prompt.pages.iter().zip(&copy.pages) {
            runner.copy_page(from, to);
        }
        step(
            &mut runner,
            &[prompt.decode(cut..cut + 1), other.prefill(0..other.tokens.len(), &[])],
        );
        let rest = step(&mut runner, &[copy.prefill(cut..TOKENS, &CUTS)]).remove(0);
        require_same(&joined(&[first.clone(), rest]), &cold, &format!("a copy {what}"));
        copy.state(&mut runner).require(&state, &format!("a copy {what}"));
        // Bytes that were read go on where another sequence was.
        let restored = Sequence { slot: other.slot, pages: vec![13, 12, 14], ..prompt.clone() };
        restored.restore(&mut runner, &snapshot);
        let rest = step(&mut runner, &[restored.prefill(cut..TOKENS, &CUTS)]).remove(0);
        require_same(&joined(&[first, rest]), &cold, &format!("bytes {what}"));
        restored.state(&mut runner).require(&state, &format!("bytes {what}"));
    }
}
