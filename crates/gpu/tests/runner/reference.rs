//! Logits of random networks against the reference in f32, and those of recorded checkpoints.

use crate::common::network::{checkpoint, runner};
use crate::common::tolerance::{NETWORK, NETWORK_MEDIAN, NETWORK_MEDIAN_CHOSEN, NETWORK_OTHER_ROW};
use crate::sequences::{Model, SIZE, Sequence, joined, step};
use calla_gpu::{RunnerSize, UploadError, upload};
use calla_model::{LayerKind, Shape};
use calla_ops::runner::Executor;
use calla_ops::{CacheSize, Reference, Rows};
use calla_testkit::goldens::{Bars, read_goldens, require};
use calla_testkit::{Random, places, shapes};
use std::ops::Range;
use std::path::PathBuf;

/// A shape with the same proportions whose widths are what kernels take.
fn fitted(shape: Shape) -> Shape {
    let width = |width: usize| width.next_multiple_of(64);
    Shape {
        hidden: width(shape.hidden),
        expert_hidden: width(shape.expert_hidden),
        shared_hidden: width(shape.shared_hidden),
        mtp_layers: 0,
        ..shape
    }
}

/// Distance of each row from the expected one, relative to that one's root mean square.
fn distances(actual: &Rows, expected: &Rows) -> Vec<f64> {
    assert_eq!((actual.rows(), actual.cols()), (expected.rows(), expected.cols()));
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let distance = |(a, e): (&[f32], &[f32])| {
        let off = squares(&mut a.iter().zip(e).map(|(&a, &e)| f64::from(a - e)));
        (off / squares(&mut e.iter().map(|&e| f64::from(e)))).sqrt()
    };
    actual.iter().zip(expected.iter()).map(distance).collect()
}

/// The middle one and the largest.
fn median_and_worst(mut distances: Vec<f64>) -> (f64, f64) {
    distances.sort_by(f64::total_cmp);
    (distances[distances.len() / 2], distances[distances.len() - 1])
}

/// Requires rows as close as arithmetic allows. Where experts are chosen, ties fall the other way now and then, and with
/// them all rows that see such a row: most, but not all, are close.
fn require_close(what: &str, actual: &Rows, expected: &Rows, all_experts: bool) {
    let (median, worst) = median_and_worst(distances(actual, expected));
    println!("{what}: median {median:.1e}, worst {worst:.1e}");
    let bound = if all_experts { NETWORK_MEDIAN } else { NETWORK_MEDIAN_CHOSEN };
    assert!(median <= bound, "{what}: most rows are {median:.2e} off, allowed {bound:.0e}");
    if all_experts {
        assert!(worst <= NETWORK, "{what}: a row is {worst:.2e} off, allowed {NETWORK:.0e}");
    }
}

/// Rows of a range.
fn part(all: &Rows, rows: Range<usize>) -> Rows {
    let cols = all.cols();
    Rows::from_vec(cols, all.as_slice()[rows.start * cols..rows.end * cols].to_vec())
}

/// Each shape with a choice of experts, and without one, so that nothing hides what else there is.
fn models() -> Vec<Model> {
    let layers = vec![LayerKind::DeltaNet, LayerKind::DeltaNet, LayerKind::Attention];
    let small = Shape { layers, ..shapes::small() };
    let mut all = vec![];
    for shape in [small, shapes::odd(), shapes::random(&mut Random::new(6))] {
        all.push(Shape { experts: 5, top_k: 5, ..shape.clone() });
        all.push(shape);
    }
    all.push(shapes::tiny());
    (20..).zip(all).map(|(seed, shape)| Model { shape: fitted(shape), seed }).collect()
}

/// Positions that are decoded too.
const DECODED: usize = 24;

#[test]
fn logits_are_those_of_the_reference() {
    for model in models() {
        let Some(mut runner) = model.runner() else { return };
        let prompt = model.sequence(3, 2, 77);
        let whole = prompt.prefill(0..prompt.tokens.len(), &[]);
        let ops = Reference::new(model.shape.clone(), SIZE).expect("memory");
        let mut reference = Executor::new(ops, model.network());
        let expected = step(&mut reference, std::slice::from_ref(&whole)).remove(0);
        let all_experts = model.shape.experts == model.shape.top_k;
        let what = |how: &str| format!("{how}, seed {}, {:?}", model.seed, model.shape);
        // Otherwise nothing would be seen below.
        let (apart, _) =
            median_and_worst(distances(&part(&expected, 1..77), &part(&expected, 0..76)));
        assert!(apart > NETWORK_OTHER_ROW, "{}: rows are {apart:.2e} apart", what("reference"));

        let prefilled = step(&mut runner, &[whole]).remove(0);
        require_close(&what("prefill"), &prefilled, &expected, all_experts);
        let decoding = Sequence { slot: 6, pages: vec![9, 8], ..prompt.clone() };
        let decode = |at| step(&mut runner, &[decoding.decode(at..at + 1)]).remove(0);
        let decoded = joined(&(0..DECODED).map(decode).collect::<Vec<_>>());
        require_close(&what("decode"), &decoded, &part(&expected, 0..DECODED), all_experts);
        let prefilled = part(&prefilled, 0..DECODED);
        require_close(&what("decode and prefill"), &decoded, &prefilled, all_experts);
    }
}

/// What bf16 leaves of the predictions of random weights, of which no expert is sure: MLX, in bf16 too, recorded some of
/// these goldens, those of `transformers` are f32.
const RANDOM: Bars = Bars { top1_above: &[(0.5, 1.0)], kl_mean: 5e-3, logprob_diff: 1.0 };

#[test]
fn checkpoints_in_formats_of_kernels_have_their_logits_and_others_are_refused() {
    let mut checkpoints: Vec<(PathBuf, PathBuf)> = places::fixtures();
    if let Some(tiny) = places::beside("tiny") {
        for name in ["golden.npz", "golden_hf.npz"] {
            checkpoints.push((tiny.clone(), tiny.join(name)));
        }
    }
    for (dir, goldens) in checkpoints {
        let (shape, network) = checkpoint(&dir);
        let Some(mut device) = crate::common::device() else { return };
        match upload(&mut device, &network, &shape) {
            Ok(_) => {}
            Err(error @ (UploadError::Shape(_) | UploadError::Format { .. })) => {
                println!("{}: {error}", dir.display());
                assert!(error.to_string().contains("--device cpu"), "{error}");
                continue;
            }
            Err(error) => panic!("{}: {error}", dir.display()),
        }
        drop(device);
        let goldens = read_goldens(&goldens).expect("goldens");
        let tokens = goldens.iter().map(|golden| golden.ids.len()).max().expect("a golden");
        let cache = CacheSize::one_sequence(tokens);
        let size = RunnerSize { cache, sequences: 1, drafting: false };
        let Some(mut runner) = runner(&shape, &network, size) else { return };
        require(&dir.display().to_string(), &mut runner, &goldens, &RANDOM);
    }
}
