//! Whole networks through the plan, against logits that other software recorded.

mod common;

use calla_gpu::RunnerSize;
use calla_ops::CacheSize;
use calla_testkit::goldens::{Bars, read_goldens, require};
use calla_testkit::places;
use common::network::{checkpoint, runner};

/// What bf16 in MLX reaches on the same file is 98.6 % and 2.3e-3.
const DEMO: Bars =
    Bars { top1_above: &[(0.5, 1.0), (0.25, 0.98)], kl_mean: 2e-3, logprob_diff: 3.0 };

#[test]
fn the_demo_model_predicts_what_transformers_does() {
    let goldens = read_goldens(&places::demo().join("goldens.npz")).unwrap();
    let tokens = goldens.iter().map(|golden| golden.ids.len()).max().unwrap();
    let (shape, network) = checkpoint(&places::demo());
    let cache = CacheSize::one_sequence(tokens);
    let size = RunnerSize { cache, sequences: 1, drafting: false };
    let Some(mut runner) = runner(&shape, &network, size) else { return };
    require("plan, demo", &mut runner, &goldens, &DEMO);
}
