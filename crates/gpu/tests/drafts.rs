//! Drafts on a device: those of the reference, whatever is drafted beside and wherever a sequence has been moved.

mod common;

use calla_gpu::{GpuRunner, RunnerSize};
use calla_model::LayerKind;
use calla_ops::mtp::mtp_forward;
use calla_ops::sample::argmax;
use calla_ops::{
    Batch, CacheSize, Draft, Drafts, Executor, Reference, Rows, Runner, Span, SpanKind,
};
use calla_testkit::places;
use common::TestDevice;
use common::sequences::{self, Home, copy, decode, prefill, span, state};

const VOCAB_USED: usize = 4090;

fn device(cache: CacheSize) -> Option<GpuRunner<TestDevice>> {
    let runner = sequences::demo(RunnerSize { cache, sequences: cache.slots, drafting: true })?;
    assert!(runner.can_draft(), "the demo has a draft layer");
    Some(runner)
}

fn draft(home: &Home, token: u32, position: usize, depth: usize) -> Draft {
    let (slot, pages) = (home.slot, home.pages.clone());
    Draft { token, position, slot, pages, depth, vocab_used: VOCAB_USED }
}

fn run(runner: &mut dyn Runner, drafts: Vec<Draft>) -> Vec<Vec<u32>> {
    let drafts = Drafts::new(drafts, runner.shape().vocab_size, runner.cache_size());
    runner.draft(&drafts.expect("drafts")).unwrap_or_else(|error| panic!("{error}"))
}

/// What the reference drafts, and how far each draft is ahead of the second best.
fn specified(executor: &mut Executor<Reference>, draft: &Draft) -> Vec<(u32, f32)> {
    let layer = executor.shape().layers_of(LayerKind::Attention);
    let width = executor.shape().hidden;
    // The row that a slot keeps is the last of its bytes.
    let mut bytes = vec![];
    executor.read_slot(draft.slot, &mut bytes).expect("a slot");
    let kept = &bytes[bytes.len() - 4 * width..];
    let kept = kept.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    let mut hidden = Rows::from_vec(width, kept);
    let (mut token, mut drafted) = (draft.token, vec![]);
    for done in 0..draft.depth {
        let span = Span::new(
            SpanKind::Decode,
            0..1,
            draft.position + done,
            draft.slot,
            draft.pages.clone(),
        );
        let (vocab, cache) = (executor.shape().vocab_size, executor.cache_size());
        let batch = Batch::new(vec![token], vec![span], vec![], vocab, cache).expect("a batch");
        let Executor { ops, network } = executor;
        let mtp = network.mtp.as_ref().expect("a draft layer");
        let rows = mtp_forward(ops, network, mtp, &hidden, layer, &batch);
        let logits = &rows.logits.row(0)[..VOCAB_USED];
        token = argmax(logits);
        let others = logits.iter().enumerate().filter(|&(i, _)| i != token as usize);
        let second = others.map(|(_, &logit)| logit).fold(f32::NEG_INFINITY, f32::max);
        drafted.push((token, logits[token as usize] - second));
        hidden = rows.hidden;
    }
    drafted
}

#[test]
fn drafts_are_those_of_the_reference() {
    const COUNT: usize = 4;
    const STEPS: usize = 4;
    const DEPTH: usize = 3;
    /// Of logits, in nats.
    const TINY: f32 = 0.1;
    let (homes, cache) = sequences::homes(COUNT);
    let Some(mut runner) = device(cache) else { return };
    let (shape, network) = common::network::checkpoint(&places::demo());
    let ops = Reference::new(shape, cache).expect("memory");
    let mut reference = Executor::new(ops, network).with_drafts().expect("memory");
    let recorded = sequences::recorded(COUNT);
    let prompts: Vec<(&Home, &[u32])> =
        homes.iter().zip(&recorded).map(|(home, (ids, len))| (home, &ids[..*len])).collect();
    prefill(&mut runner, &prompts);
    prefill(&mut reference, &prompts);

    let (mut all, mut same, mut clear, mut same_clear, mut right) = (0, 0, 0, 0, 0);
    for step in 0..STEPS {
        let rows: Vec<(&Home, u32, usize)> = homes
            .iter()
            .zip(&recorded)
            .map(|(home, (ids, len))| (home, ids[len + step], len + step))
            .collect();
        let drafts: Vec<Draft> =
            rows.iter().map(|&(home, token, at)| draft(home, token, at, DEPTH)).collect();
        let before: Vec<_> = homes.iter().map(|home| state(&mut runner, home)[0].clone()).collect();
        let drafted = run(&mut runner, drafts.clone());
        for (home, before) in homes.iter().zip(before) {
            assert!(state(&mut runner, home)[0] == before, "drafting moved recurrent state");
        }
        for ((drafted, draft), (ids, _)) in drafted.iter().zip(&drafts).zip(&recorded) {
            assert_eq!(drafted.len(), DEPTH);
            let actual = &ids[draft.position + 1..];
            right += drafted.iter().zip(actual).take_while(|(a, b)| a == b).count();
            for (&drafted, (due, margin)) in drafted.iter().zip(specified(&mut reference, draft)) {
                all += 1;
                same += usize::from(drafted == due);
                clear += usize::from(margin > TINY);
                same_clear += usize::from(margin > TINY && drafted == due);
                // What is drafted after another token is something else.
                if drafted != due {
                    break;
                }
            }
        }
        decode(&mut runner, &rows);
        decode(&mut reference, &rows);
    }
    println!(
        "{same} of {all} drafts are the reference's, {same_clear} of {clear} where the margin is above \
         {TINY}; {right} are what was said"
    );
    assert!(clear * 2 > COUNT * STEPS * DEPTH, "only {clear} drafts have a margin");
    assert!(same_clear * 100 >= clear * 95, "{same_clear} of {clear}");
    assert!(right > 0, "no draft is what was said");
}

#[test]
fn drafts_follow_state_wherever_it_goes() {
    let (homes, cache) = sequences::homes(5);
    let [own, copied, restored, cleared, fresh] = &homes[..] else { panic!("five") };
    let Some(mut runner) = device(cache) else { return };
    let runner: &mut dyn Runner = &mut runner;
    let (ids, len) = sequences::recorded(1).remove(0);
    prefill(runner, &[(own, &ids[..len])]);
    let due = run(runner, vec![draft(own, ids[len], len, 3)]);
    // Another prompt would be drafted otherwise.
    let other = run(runner, vec![draft(fresh, ids[len], len, 3)]);
    assert_ne!(due, other);

    copy(runner, own, copied);
    let bytes = state(runner, own);
    runner.write_slot(restored.slot, &bytes[0]).expect("a slot");
    for (&page, bytes) in restored.pages.iter().zip(&bytes[1..]) {
        runner.write_page(page, bytes).expect("a page");
    }
    for home in [copied, restored] {
        assert_eq!(run(runner, vec![draft(home, ids[len], len, 3)]), due, "{home:?}");
        assert!(state(runner, home)[0] == bytes[0]);
    }
    // All go on alike, one of them in two rows of which the second is wrong: its state is then the checkpoint's.
    let wrong = ids[len + 1] ^ 1;
    let verified =
        Span { checkpoints: vec![cleared.slot], ..span(SpanKind::Decode, 0..2, len, restored) };
    let batch = Batch::new(
        vec![ids[len], wrong],
        vec![verified],
        vec![0, 1],
        runner.shape().vocab_size,
        cache,
    );
    let logits = runner.step(&batch.expect("a batch")).unwrap_or_else(|error| panic!("{error}"));
    let alone = decode(runner, &[(own, ids[len], len), (copied, ids[len], len)]);
    for row in alone.iter() {
        assert_eq!(row, logits.row(0));
    }
    let checkpoint = Home { slot: cleared.slot, pages: restored.pages.clone() };
    let due = run(runner, vec![draft(own, ids[len + 1], len + 1, 3)]);
    let own_state = state(runner, own);
    for home in [copied, &checkpoint] {
        assert!(state(runner, home)[0] == own_state[0], "{home:?}");
        assert_eq!(run(runner, vec![draft(home, ids[len + 1], len + 1, 3)]), due, "{home:?}");
    }

    runner.clear_slot(cleared.slot);
    assert!(state(runner, cleared)[0].iter().all(|&byte| byte == 0), "something is left");
    let first = run(runner, vec![draft(cleared, ids[0], 0, 2)]);
    assert_eq!(first, run(runner, vec![draft(fresh, ids[0], 0, 2)]));
}

#[test]
fn drafts_of_many_kinds_at_once_are_those_alone() {
    let (homes, cache) = sequences::homes(5);
    let Some(mut runner) = device(cache) else { return };
    let recorded = sequences::recorded(homes.len());
    let prompts: Vec<(&Home, &[u32])> =
        homes.iter().zip(&recorded).map(|(home, (ids, len))| (home, &ids[..*len])).collect();
    prefill(&mut runner, &prompts);
    let plain = |i: usize, depth| {
        let (ids, len) = &recorded[i];
        draft(&homes[i], ids[*len], *len, depth)
    };
    let free: Vec<Vec<u32>> =
        (0..homes.len()).flat_map(|i| run(&mut runner, vec![plain(i, 3)])).collect();
    // Where the first draft may not be used, another is.
    let bound = free[1][0].max(free[3][0]).max(1);
    let held = bound as usize;
    let drafts = vec![
        plain(0, 2),
        Draft { vocab_used: held, ..plain(1, 3) },
        plain(2, 3),
        Draft { vocab_used: held, ..plain(3, 1) },
        Draft { vocab_used: 1, ..plain(4, 2) },
    ];
    let alone: Vec<Vec<u32>> =
        drafts.iter().flat_map(|draft| run(&mut runner, vec![draft.clone()])).collect();
    let together = run(&mut runner, drafts);
    assert_eq!(together, alone);
    let depths: Vec<usize> = together.iter().map(Vec::len).collect();
    assert_eq!(depths, [2, 3, 3, 1, 2]);
    assert_eq!((&together[0][..], &together[2]), (&free[0][..2], &free[2]));
    assert!(together[1].iter().chain(&together[3]).all(|&token| token < bound));
    assert!(together[1] != free[1] || together[3][0] != free[3][0], "the bound had no effect");
    assert_eq!(together[4], [0, 0]);
}
