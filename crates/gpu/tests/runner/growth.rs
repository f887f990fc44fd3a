//! Longer contexts and larger batches one after the other: what a runner holds grows, and no result tells.

use crate::sequences::{Model, Part, SIZE, Sequence, TestRunner, require_same, step};
use calla_gpu::Choice;
use calla_ops::sample::argmax;
use calla_ops::{Batch, Runner as _, Span, SpanKind};

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

/// Its plan is recorded for the first step, and has room for what the last one sees.
#[test]
fn a_generation_goes_on_beyond_the_context_that_it_starts_with() {
    const START: usize = 125;
    const STEPS: usize = 6;
    let model = Model::small(5);
    let Some(mut runner) = model.runner() else { return };
    let vocab = model.shape.vocab_size;
    let [mut by_host, by_device] = [(1, 0), (2, 3)].map(|(slot, first_page)| Sequence {
        tokens: model.sequence(0, 0, START + STEPS).tokens,
        ..model.sequence(slot, first_page, START + STEPS)
    });
    for sequence in [&by_host, &by_device] {
        step(&mut runner, &[sequence.prefill(0..START, &[])]);
    }
    let (slot, pages) = (by_device.slot, by_device.pages.clone());
    let span = Span::new(SpanKind::Decode, 0..1, START, slot, pages);
    let batch = Batch::new(vec![by_device.tokens[START]], vec![span], vec![0], vocab, SIZE);
    let batch = batch.expect("a batch");
    let generated = runner.generate(&batch, Choice::MostLikely, vocab, STEPS).expect("tokens");

    let mut expected = vec![];
    for at in START..START + STEPS {
        let logits = step(&mut runner, &[by_host.decode(at..at + 1)]).remove(0);
        let next = argmax(logits.row(0));
        expected.push(next);
        by_host.tokens.truncate(at + 1);
        by_host.tokens.push(next);
    }
    assert_eq!(generated, [expected]);
    let expected = by_host.state(&mut runner);
    by_device.state(&mut runner).require(&expected, "after a generation");
}

/// Whenever a buffer that plans bind grows, all of them are lost, and recording one takes as long as some tokens.
#[test]
fn what_follows_a_prompt_does_not_cost_it_its_plans() {
    let model = Model::small(6);
    let Some(mut runner) = model.runner() else { return };
    let vocab = model.shape.vocab_size;
    let sequences: Vec<Sequence> = (0..4).map(|i| model.sequence(i, 3 * i, 150)).collect();
    let batch = |tokens: usize, kind, outputs| {
        let first = &sequences[0];
        let span = Span::new(kind, 0..tokens, 0, first.slot, first.pages.clone());
        Batch::new(first.tokens[..tokens].to_vec(), vec![span], outputs, vocab, SIZE)
            .expect("a batch")
    };
    let (slice, first) =
        (batch(130, SpanKind::Prefill, vec![]), batch(1, SpanKind::Decode, vec![0]));
    let mut round = || {
        let mut recorded = vec![];
        let mut run = |what: &dyn Fn(&mut TestRunner)| {
            what(&mut runner);
            recorded.push(runner.has_prepared());
        };
        run(&|runner| drop(runner.step(&slice).expect("no logits")));
        run(&|runner| drop(step(runner, &[sequences[0].decode(130..131)])));
        run(&|runner| {
            let all: Vec<Part<'_>> = sequences.iter().map(|s| s.decode(140..141)).collect();
            step(runner, &all);
        });
        run(&|runner| {
            runner.generate(&first, Choice::MostLikely, vocab, 3).expect("tokens");
        });
        recorded
    };
    assert_eq!(round(), [true; 4]);
    assert_eq!(round(), [false; 4]);
}
