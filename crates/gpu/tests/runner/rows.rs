//! A row's result is the same bits with whom it is batched, in whatever order, slots and pages.

use crate::sequences::{Model, Part, Sequence, State, joined, require_same, step};
use calla_ops::{Rows, Runner};
use calla_testkit::Random;

/// More than a product of decode rows takes at once.
pub(crate) const SEQUENCES: usize = 9;

/// Tokens of the prompt of a sequence, which has six more.
pub(crate) fn prompt_len(index: usize) -> usize {
    [5, 1, 33, 64, 70, 2, 7, 31, 12][index]
}

/// Sequences over pages of their own.
pub(crate) struct Sequences {
    pub(crate) all: Vec<Sequence>,
    /// State after the prompt.
    pub(crate) states: Vec<State>,
}

/// Sequences whose prompts were computed one by one.
pub(crate) fn sequences(model: &Model, runner: &mut dyn Runner) -> (Sequences, Vec<Rows>) {
    let mut all = vec![];
    let mut page = 0;
    for index in 0..SEQUENCES {
        // Slots from the last to the first.
        let sequence = model.sequence(SEQUENCES - index, page, prompt_len(index) + 6);
        page += sequence.pages.len();
        all.push(sequence);
    }
    let prompt = |(index, sequence): (usize, &Sequence)| {
        step(runner, &[sequence.prefill(0..prompt_len(index), &[])]).remove(0)
    };
    let logits = all.iter().enumerate().map(prompt).collect();
    let states = all.iter().map(|sequence| sequence.state(runner)).collect();
    (Sequences { all, states }, logits)
}

impl Sequences {
    pub(crate) fn restore(&self, runner: &mut dyn Runner) {
        for (sequence, state) in self.all.iter().zip(&self.states) {
            sequence.restore(runner, state);
        }
    }

    pub(crate) fn decode(&self, index: usize) -> Part<'_> {
        self.all[index].decode(prompt_len(index)..prompt_len(index) + 1)
    }
}

#[test]
fn prompts_do_not_see_each_other() {
    let model = Model::small(2);
    let Some(mut runner) = model.runner() else { return };
    let (sequences, alone) = sequences(&model, &mut runner);
    for seed in 0..2 {
        let mut random = Random::new(seed);
        let order = random.distinct(5 + 4 * seed as usize, SEQUENCES);
        sequences.all.iter().for_each(|sequence| sequence.forget(&mut runner));
        let parts: Vec<_> = order
            .iter()
            .map(|&index| sequences.all[index].prefill(0..prompt_len(index), &[]))
            .collect();
        for (logits, &index) in step(&mut runner, &parts).iter().zip(&order) {
            let what = format!("prompt {index} of {order:?}");
            require_same(logits, &alone[index], &what);
            sequences.all[index].state(&mut runner).require(&sequences.states[index], &what);
        }
    }
}

#[test]
fn decode_rows_do_not_see_each_other() {
    let model = Model::small(2);
    let Some(mut runner) = model.runner() else { return };
    let (sequences, _) = sequences(&model, &mut runner);
    let alone: Vec<_> = (0..SEQUENCES)
        .map(|index| {
            let logits = step(&mut runner, &[sequences.decode(index)]).remove(0);
            (logits, sequences.all[index].state(&mut runner))
        })
        .collect();
    let mut random = Random::new(3);
    for count in 2..=SEQUENCES {
        sequences.restore(&mut runner);
        let order = random.distinct(count, SEQUENCES);
        let parts: Vec<_> = order.iter().map(|&index| sequences.decode(index)).collect();
        for (logits, &index) in step(&mut runner, &parts).iter().zip(&order) {
            let what = format!("row of sequence {index} in {order:?}");
            require_same(logits, &alone[index].0, &what);
            sequences.all[index].state(&mut runner).require(&alone[index].1, &what);
        }
    }
}

#[test]
fn prompts_and_decode_rows_in_one_batch_are_what_they_are_apart() {
    let model = Model::small(2);
    let Some(mut runner) = model.runner() else { return };
    let (sequences, prompts) = sequences(&model, &mut runner);
    let decoded: Vec<Rows> =
        [0, 4].map(|index| step(&mut runner, &[sequences.decode(index)]).remove(0)).to_vec();
    let after: Vec<_> = [0, 4].map(|index| sequences.all[index].state(&mut runner)).to_vec();

    sequences.restore(&mut runner);
    let [a, b] = [2, 8].map(|index| &sequences.all[index]);
    a.forget(&mut runner);
    b.forget(&mut runner);
    let parts = [
        sequences.decode(0),
        a.prefill(0..prompt_len(2), &[]),
        sequences.decode(4),
        b.prefill(0..prompt_len(8), &[]),
    ];
    let logits = step(&mut runner, &parts);
    let expected = [&decoded[0], &prompts[2], &decoded[1], &prompts[8]];
    for (i, (logits, expected)) in logits.iter().zip(expected).enumerate() {
        require_same(logits, expected, &format!("part {i}"));
    }
    for (i, index) in [0, 4].into_iter().enumerate() {
        sequences.all[index].state(&mut runner).require(&after[i], "a decode row beside a prompt");
    }
    for (sequence, index) in [(a, 2), (b, 8)] {
        sequence
            .state(&mut runner)
            .require(&sequences.states[index], "a prompt beside decode rows");
    }
}

#[test]
fn several_decode_rows_are_one_after_the_other_and_leave_checkpoints() {
    let model = Model::small(2);
    let Some(mut runner) = model.runner() else { return };
    let (sequences, _) = sequences(&model, &mut runner);
    // Over the end of a page, and within one.
    let [first, second] = [(3, 4), (6, 3)];
    let mut expected = vec![];
    for (index, rows) in [first, second] {
        let (sequence, start) = (&sequences.all[index], prompt_len(index));
        let one = |position: usize| {
            let logits = step(&mut runner, &[sequence.decode(position..position + 1)]).remove(0);
            (logits, sequence.state(&mut runner))
        };
        let (logits, states): (Vec<Rows>, Vec<State>) = (start..start + rows).map(one).unzip();
        expected.push((joined(&logits), states));
    }
    sequences.restore(&mut runner);
    let checkpoints = [vec![11, 0, 10], vec![]];
    let part = |i: usize, (index, rows): (usize, usize)| {
        let start = prompt_len(index);
        sequences.all[index].decode(start..start + rows).with_checkpoints(&checkpoints[i])
    };
    let parts = [part(0, first), sequences.decode(0), part(1, second)];
    let logits = step(&mut runner, &parts);
    require_same(&logits[0], &expected[0].0, "four rows with checkpoints");
    require_same(&logits[2], &expected[1].0, "three rows without checkpoints");
    for ((index, _), (_, states)) in [first, second].into_iter().zip(&expected) {
        let state = sequences.all[index].state(&mut runner);
        state.require(states.last().expect("rows"), "after several rows");
    }
    for (&slot, state) in checkpoints[0].iter().zip(&expected[0].1) {
        let mut bytes = vec![];
        runner.read_slot(slot, &mut bytes).expect("a slot");
        assert!(bytes == state.slot, "checkpoint in slot {slot}");
    }
}
