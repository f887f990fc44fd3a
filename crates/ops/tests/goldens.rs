//! The reference against logits recorded from Hugging Face transformers and MLX-LM.

use calla_eval::{Golden, read_goldens};
use calla_model::network::CheckpointParts;
use calla_model::shape::PAGE_TOKENS;
use calla_model::{LayerKind, Network, Shape};
use calla_ops::mtp::mtp_forward;
use calla_ops::runner::{Executor, HostOps};
use calla_ops::{Batch, CacheSize, Ops, Reference, Rows, Span, SpanKind, forward};
use calla_testkit::goldens::{Bars, require};
use calla_testkit::places;
use calla_weights::Checkpoint;
use std::path::Path;

/// The bars, which leave room for the rounding of two f32 implementations.
const BARS: Bars = Bars { top1_above: &[(1e-3, 1.0)], kl_mean: 1e-6, logprob_diff: 2e-3 };

fn load(dir: &Path) -> (Shape, Network<CheckpointParts>) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    (checkpoint.shape().clone(), checkpoint.load().unwrap())
}

fn longest(goldens: &[Golden]) -> CacheSize {
    CacheSize::one_sequence(goldens.iter().map(|g| g.ids.len()).max().unwrap())
}

fn require_demo(what: &str, prompts: std::ops::Range<usize>) {
    let goldens = read_goldens(&places::demo().join("goldens.npz")).unwrap();
    let goldens = &goldens[prompts];
    let (shape, network) = load(&places::demo());
    let mut runner = Executor { ops: Reference::new(shape, longest(goldens)).unwrap(), network };
    require(what, &mut runner, goldens, &BARS);
}

#[test]
fn the_demo_model_answers_short_prompts_as_transformers_does() {
    require_demo("reference, demo prompts 0..10", 0..10);
}

#[test]
fn the_demo_model_answers_long_prompts_as_transformers_does() {
    require_demo("reference, demo prompts 10..12", 10..12);
}

/// A checkpoint with logits and residual streams of all positions.
fn require_full(dir: &Path, goldens: &Path) {
    let golden = &read_goldens(goldens).unwrap()[0];
    let (shape, network) = load(dir);
    let mut ops = Reference::new(shape.clone(), CacheSize::one_sequence(golden.ids.len())).unwrap();
    let batch = whole(&golden.ids, &shape, ops.cache_size());
    let mut worst = 0.0_f32;
    let mut seen = 0;
    forward(&mut ops, &network, &batch, |layer, x: &Rows| {
        if let Some(expected) = golden.hidden.get(layer) {
            let difference = calla_testkit::compare::within(x, expected, 1e-3)
                .unwrap_or_else(|e| panic!("{}, after layer {layer}: {e}", dir.display()));
            worst = worst.max(difference.max_relative);
            seen += 1;
        }
    });
    assert_eq!(seen, golden.hidden.len());
    println!("{}: residual streams within {worst:.1e} of their rms", dir.display());
    let mut runner = Executor { ops, network };
    require(&dir.display().to_string(), &mut runner, std::slice::from_ref(golden), &BARS);
}

#[test]
fn a_checkpoint_by_mlx_lm_has_its_logits_and_residual_streams() {
    let Some(tiny) = places::beside("tiny") else { return };
    require_full(&tiny, &tiny.join("golden.npz"));
    require_full(&tiny, &tiny.join("golden_hf.npz"));
}

#[test]
fn odd_checkpoints_have_their_logits_and_residual_streams() {
    for (dir, goldens) in places::fixtures() {
        require_full(&dir, &goldens);
    }
}

fn whole(ids: &[u32], shape: &Shape, cache: CacheSize) -> Batch {
    let rows = 0..ids.len();
    let pages = (0..ids.len().div_ceil(PAGE_TOKENS)).collect();
    let span = Span::new(SpanKind::Prefill, rows.clone(), 0, 0, pages);
    Batch::new(ids.to_vec(), vec![span], rows.collect(), shape.vocab_size, cache).unwrap()
}

#[test]
fn the_mtp_layer_drafts_what_the_training_network_drafts() {
    let goldens = read_goldens(&places::demo().join("goldens.npz")).unwrap();
    let (shape, network) = load(&places::demo());
    let mtp = network.mtp.as_ref().expect("the demo checkpoint holds the layer");
    let (mut worst, mut compared, mut accepted) = (0.0_f32, 0, 0);
    for golden in &goldens[..6] {
        let cache = CacheSize::one_sequence(golden.ids.len());
        let mut ops = Reference::new(shape.clone(), cache).unwrap();
        let mut last = Rows::default();
        forward(&mut ops, &network, &whole(&golden.ids, &shape, cache), |layer, x| {
            if layer == shape.layers.len() {
                last = x.clone();
            }
        });
        // Position i is drafted from the hidden row of i and the token at i + 1, so the last has no draft.
        let rows: Vec<usize> = (0..golden.ids.len() - 1).collect();
        let hidden = ops.select_rows(&last, &rows);
        let hidden = ops.rms_norm(&hidden, &network.norm);
        let alone = Shape { layers: vec![LayerKind::Attention], ..shape.clone() };
        let mut draft_ops = Reference::new(alone, cache).unwrap();
        let batch = whole(&golden.ids[1..], &shape, cache);
        let drafts = mtp_forward(&mut draft_ops, &network, mtp, &hidden, 0, &batch);

        let expected = golden.mtp.as_ref().expect("the demo's goldens hold the layer's logits");
        for (position, logits) in drafts.logits.iter().enumerate() {
            let (ids, values) = (expected.ids(position), expected.values(position));
            for (&id, &value) in ids.iter().zip(values) {
                let off = (logits[id as usize] - value).abs();
                assert!(off < 5e-3, "{}, position {position}: {id} off by {off}", golden.name);
                worst = worst.max(off);
            }
            let first = calla_eval::metrics::arg_max(logits);
            let margin = values[0] - values[1];
            assert!(first == ids[0] || margin < 0.01, "{}, position {position}", golden.name);
            compared += 1;
            accepted += usize::from(golden.ids.get(position + 2) == Some(&first));
        }
    }
    println!("drafts: {compared} positions, logits off by at most {worst:.1e}, {accepted} drafted");
    // Text that a model of the data would continue: a layer that is loaded wrong drafts nothing right.
    assert!(accepted * 4 > compared, "{accepted} of {compared} drafts were the token that came");
}
