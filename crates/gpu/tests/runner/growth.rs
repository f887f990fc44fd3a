//! Longer contexts and larger batches one after the other: what a runner holds grows, and no result tells.

use crate::sequences::{Model, Part, Sequence, TestRunner, require_same, step};

/// Rows and sequences of each step, and the context that it ends with: past buckets of plans, and back.
const STEPS: [(usize, usize, usize); 6] =
    [(1, 1, 4), (9, 2, 40), (70, 1, 130), (1, 5, 131), (30, 4, 290), (1, 1, 5)];

#[test]
fn a_runner_that_has_grown_gives_what_a_fresh_one_does() {
    let model = Model::small(4);
    let Some(mut runner) = model.runner() else { return };
    let sequences: Vec<Sequence> = (0..5).map(|i| model.sequence(i, 0, 300)).collect();
    let mut scratch = vec![];
    for (rows, count, context) in STEPS {
        let pages = context.div_ceil(64);
        let over = |i: usize| Sequence {
            pages: (i * pages..(i + 1) * pages).rev().collect(),
            ..sequences[i].clone()
        };
        // At most 24 pages.
        let sequences: Vec<Sequence> = (0..count).map(over).collect();
        let run = |runner: &mut TestRunner| {
            sequences.iter().for_each(|sequence| sequence.forget(runner));
            // Nothing lies before the rows but zeros, which are as good as any other past.
            let parts: Vec<Part<'_>> = sequences
                .iter()
                .map(|sequence| match rows {
                    1 => sequence.decode(context - 1..context),
                    _ => sequence.prefill(context - rows..context, &[]),
                })
                .collect();
            step(runner, &parts)
        };
        let actual = run(&mut runner);
        scratch.push(runner.scratch_bytes());
        let Some(mut fresh) = model.runner() else { return };
        let what = format!("{count} sequences of {rows} rows, context {context}");
        for (actual, expected) in actual.iter().zip(&run(&mut fresh)) {
            require_same(actual, expected, &what);
        }
    }
    assert!(scratch.is_sorted() && scratch.first() < scratch.last(), "{scratch:?}");
}
