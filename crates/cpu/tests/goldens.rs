//! The CPU backend against logits recorded from Hugging Face transformers and MLX-LM.

use calla_cpu::Cpu;
use calla_ops::runner::Executor;
use calla_ops::{Batch, CacheSize, Draft, Drafts, Runner, Span, SpanKind};
use calla_testkit::goldens::{Bars, Golden, Reply, greedy_reply, read_goldens, require};
use calla_testkit::places;
use calla_weights::Checkpoint;
use std::path::Path;

/// What arithmetic in f32 reaches, with room: the same divergence from transformers as the reference's.
/// (What is asked of any backend is looser: the same first token above a margin of 0.5 and at 99 % above 0.1,
/// mean divergence below 1e-3. MLX in bf16 reaches 97.6 % and 2.3e-3 on the same file.)
const DEMO: Bars =
    Bars { top1_above: &[(0.5, 1.0), (0.1, 1.0), (1e-3, 1.0)], kl_mean: 1e-5, logprob_diff: 2e-3 };

/// Random weights flip experts easily (llama.cpp with 8-bit activations measures 4.3e-3), but not in f32.
const RANDOM: Bars = Bars { top1_above: &[(1e-3, 1.0)], kl_mean: 1e-6, logprob_diff: 2e-3 };

fn runner(dir: &Path, goldens: &[Golden]) -> Executor<Cpu> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let tokens = goldens.iter().map(|g| g.ids.len()).max().unwrap();
    let cache = CacheSize::one_sequence(tokens);
    let ops = Cpu::new(checkpoint.shape().clone(), cache, 0).unwrap();
    Executor::new(ops, checkpoint.load().unwrap())
}

#[test]
fn the_demo_model_predicts_what_transformers_does() {
    let goldens = read_goldens(&places::demo().join("goldens.npz")).unwrap();
    let mut runner = runner(&places::demo(), &goldens);
    require("CPU, demo", &mut runner, &goldens, &DEMO);
}

#[test]
fn the_demo_model_replies_greedily_what_transformers_does() {
    let goldens = read_goldens(&places::demo().join("goldens.npz")).unwrap();
    let mut runner = runner(&places::demo(), &goldens);
    let config = std::fs::read_to_string(places::demo().join("generation_config.json")).unwrap();
    let ends = places::end_tokens(&config);
    let mut same = 0;
    for golden in &goldens {
        let reply = greedy_reply(&mut runner, golden, &ends, 0.1);
        println!("{}: {reply:?}", golden.name);
        same += usize::from(matches!(reply, Reply::Same(_)));
    }
    // A close call may excuse a reply or two, not most of them.
    assert!(same >= 10, "only {same} of {} replies are the recorded ones", goldens.len());
}

/// The runner's draft layer has one entry that the training network's has not (that of the first token), so
/// the same tokens are asked for, not the same logits.
#[test]
fn the_demo_model_drafts_what_the_training_network_drafted() {
    let goldens = read_goldens(&places::demo().join("goldens.npz")).unwrap();
    let mut runner = runner(&places::demo(), &goldens).with_drafts().unwrap();
    let (vocab, cache) = (runner.shape().vocab_size, runner.cache_size());
    let pages: Vec<usize> = (0..cache.pages).collect();
    let config = std::fs::read_to_string(places::demo().join("generation_config.json")).unwrap();
    let ends = places::end_tokens(&config);
    let (mut drafted, mut recorded, mut right) = (0, 0, 0);
    for golden in &goldens {
        let mtp = golden.mtp.as_ref().expect("the demo's goldens hold the layer's logits");
        runner.clear_slot(0);
        let feed = |runner: &mut Executor<Cpu>, tokens: &[u32], position: usize| {
            let rows = 0..tokens.len();
            let span = Span::new(SpanKind::Prefill, rows, position, 0, pages.clone());
            let batch = Batch::new(tokens.to_vec(), vec![span], vec![], vocab, cache).unwrap();
            runner.step(&batch).unwrap();
        };
        feed(&mut runner, &golden.ids[..golden.prompt_len], 0);
        for position in golden.prompt_len..golden.ids.len() - 1 {
            let token = golden.ids[position];
            if ends.contains(&token) {
                break;
            }
            let pages = pages.clone();
            let draft = Draft { token, position, slot: 0, pages, depth: 1, vocab_used: vocab };
            let drafts = Drafts::new(vec![draft], vocab, cache).unwrap();
            let guess = runner.draft(&drafts).unwrap()[0][0];
            drafted += 1;
            recorded += usize::from(guess == mtp.ids(position - 1)[0]);
            right += usize::from(guess == golden.ids[position + 1]);
            feed(&mut runner, &[token], position);
        }
    }
    println!("{drafted} drafts, {recorded} as recorded, {right} the token that came");
    assert!(drafted > 200);
    assert!(recorded * 100 >= drafted * 98, "{recorded} of {drafted} drafts are those recorded");
}

#[test]
fn a_checkpoint_by_mlx_lm_has_its_logits() {
    let Some(tiny) = places::beside("tiny") else { return };
    for name in ["golden.npz", "golden_hf.npz"] {
        let goldens = read_goldens(&tiny.join(name)).unwrap();
        require(&format!("CPU, tiny/{name}"), &mut runner(&tiny, &goldens), &goldens, &RANDOM);
    }
}

#[test]
fn odd_checkpoints_have_their_logits() {
    for (dir, goldens) in places::fixtures() {
        let goldens = read_goldens(&goldens).unwrap();
        let what = format!("CPU, {}", dir.display());
        require(&what, &mut runner(&dir, &goldens), &goldens, &RANDOM);
    }
}
