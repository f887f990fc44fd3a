//! Each layer's output against the reference on the same weights, with the reference's choice of experts forced in: an
//! expert that is chosen otherwise at a near tie would hide every other difference behind it. Once with each layer's
//! input forced in too, so that what layers make of it is held to a bound, and once with what the layers before gave.
//!
//! `CALLA_LAYERS_MODEL` names another checkpoint than the demo: one of full size takes some seconds a token.

mod common;

use calla_gpu::{Device as _, Dispatch, Range};
use calla_model::network::{CheckpointParts, Layer, Mixer};
use calla_model::{Network, Shape};
use calla_ops::reference::Reference;
use calla_ops::{Batch, CacheSize, Ops as _, Rows, Span, SpanKind};
use calla_testkit::{Random, compare, places};
use common::TestDevice;
use common::network::checkpoint;
use common::planned::Planner;
use std::path::PathBuf;

const SEQUENCES: usize = 3;
/// Tokens of each prompt, in two slices, and of each reply.
const SLICES: [usize; 2] = [9, 15];
const DECODED: usize = 4;
const TOKENS: usize = SLICES[0] + SLICES[1] + DECODED;
/// A page and a slot for each sequence.
const SIZE: CacheSize = CacheSize { pages: SEQUENCES, slots: SEQUENCES };

/// Relative error of a layer's output where its input is the reference's.
const LAYER_ERROR_MAX: f64 = 1e-2;
/// The same where its input is what the layers before it gave. Each rounds activations to bf16 in a prefill.
const NETWORK_ERROR_MAX: f64 = 5e-2;
/// Where the reference's first token leads by more, another first one is counted.
const MARGIN: f64 = 0.5;

/// What one step gives, by whatever computes it.
struct Step {
    /// The residual stream after each layer.
    layers: Vec<Rows>,
    /// Router logits of each layer.
    router: Vec<Rows>,
    logits: Rows,
}

/// What of the reference's step takes the place of what a device's has.
#[derive(Clone, Copy, Default)]
struct Forced<'a> {
    /// The router's logits, by which experts are chosen and weighted.
    experts: Option<&'a Step>,
    /// What layers hand on to the next, and the last one to the output projection.
    inputs: Option<&'a Step>,
}

/// Positions `[from, to)` of all sequences. All logits are wanted.
fn batch(shape: &Shape, prompts: &[Vec<u32>], kind: SpanKind, [from, to]: [usize; 2]) -> Batch {
    let len = to - from;
    let span = |i| Span::new(kind, i * len..(i + 1) * len, from, i, vec![i]);
    let spans = (0..prompts.len()).map(span).collect();
    let tokens: Vec<u32> = prompts.iter().flat_map(|ids| &ids[from..to]).copied().collect();
    let outputs = (0..tokens.len()).collect();
    Batch::new(tokens, spans, outputs, shape.vocab_size, SIZE).expect("a batch")
}

/// Kinds and positions of all steps.
fn steps() -> Vec<(SpanKind, [usize; 2])> {
    let [first, second] = SLICES;
    let prompt = first + second;
    let prefill = [[0, first], [first, prompt]].map(|part| (SpanKind::Prefill, part));
    let decode = (prompt..TOKENS).map(|at| (SpanKind::Decode, [at, at + 1]));
    prefill.into_iter().chain(decode).collect()
}

/// One step of the reference: what [`calla_ops::forward()`] computes, and router logits on the way.
fn reference_step(ops: &mut Reference, network: &Network<CheckpointParts>, batch: &Batch) -> Step {
    let mut x = ops.embed(&network.embed_tokens, batch.tokens());
    let (mut layers, mut router) = (vec![], vec![]);
    let (mut deltas, mut attentions) = (0.., 0..);
    for Layer { mixer, input_layernorm, post_attention_layernorm, moe } in &network.layers {
        match mixer {
            Mixer::DeltaNet(weights) => {
                let inputs = ops.delta_in_proj(&x, input_layernorm, weights);
                let layer = deltas.next().expect("a number");
                let o = ops.delta_step(&inputs, weights, layer, batch);
                ops.delta_out_proj(&mut x, &o, &inputs.z, weights);
            }
            Mixer::Attention(weights) => {
                let inputs = ops.attention_in_proj(&x, input_layernorm, weights);
                let layer = attentions.next().expect("a number");
                let o = ops.attend(&inputs, weights, layer, batch);
                ops.out_proj(&mut x, &o, &weights.o_proj);
            }
        }
        let routed = ops.route(&x, post_attention_layernorm, moe);
        router.push(ops.linear(&routed.h, &moe.gate));
        let activations = ops.experts_up(&routed, moe);
        ops.experts_down(&mut x, &routed, &activations, moe);
        layers.push(x.clone());
    }
    let logits = ops.lm_head(&x, batch.outputs(), &network.norm, network.output_matrix());
    Step { layers, router, logits }
}

/// All steps of the reference. Sequences do not depend on one another, so each has a thread.
fn reference(shape: &Shape, network: &Network<CheckpointParts>, prompts: &[Vec<u32>]) -> Vec<Step> {
    let one = |ids: &Vec<u32>| -> Vec<Step> {
        let mut ops = Reference::new(shape.clone(), SIZE).expect("memory");
        let ids = std::slice::from_ref(ids);
        let batches = steps().into_iter().map(|(kind, part)| batch(shape, ids, kind, part));
        batches.map(|batch| reference_step(&mut ops, network, &batch)).collect()
    };
    let mut sequences: Vec<_> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = prompts.iter().map(|ids| scope.spawn(move || one(ids))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a reference").into_iter()).collect()
    });
    let together = |_| {
        let parts: Vec<Step> = sequences.iter_mut().map(|s| s.next().expect("a step")).collect();
        let joined = |of: &dyn Fn(&Step) -> &Rows| {
            let values = parts.iter().flat_map(|part| of(part).as_slice()).copied().collect();
            Rows::from_vec(of(&parts[0]).cols(), values)
        };
        let all = 0..network.layers.len();
        Step {
            layers: all.clone().map(|i| joined(&|part| &part.layers[i])).collect(),
            router: all.map(|i| joined(&|part| &part.router[i])).collect(),
            logits: joined(&|part| &part.logits),
        }
    };
    steps().iter().map(together).collect()
}

/// A network on the device of tests.
struct OnDevice {
    device: TestDevice,
    planner: Planner,
}

impl OnDevice {
    /// Runs a step kernel by kernel.
    fn step(&mut self, batch: &Batch, forced: Forced<'_>) -> Step {
        let step = self.planner.plan(&mut self.device, batch);
        let (experts, hidden) = (self.planner.shape.experts, self.planner.shape.hidden);
        let (mut layers, mut router) = (vec![], vec![]);
        for dispatch in step.plan.bind(step.arena) {
            if let Some(range) = router_logits(&dispatch) {
                router.push(self.read(range, experts));
                if let Some(reference) = forced.experts {
                    self.write(range, &reference.router[layers.len()]);
                }
            }
            self.device.run(std::slice::from_ref(&dispatch), &[1]).expect("a kernel");
            if let Some(range) = layer_output(&dispatch) {
                layers.push(self.read(range, hidden));
                if let Some(reference) = forced.inputs {
                    self.write(range, &reference.layers[layers.len() - 1]);
                }
            }
        }
        let logits = self.read(step.logits.range, self.planner.shape.vocab_size);
        step.release(&mut self.device);
        Step { layers, router, logits }
    }

    fn write(&mut self, range: Range, rows: &Rows) {
        self.device.write(range, bytemuck::cast_slice(rows.as_slice())).expect("a write");
    }

    fn read(&mut self, range: Range, cols: usize) -> Rows {
        let mut values = vec![0.0_f32; range.len as usize / size_of::<f32>()];
        self.device.read(range, bytemuck::cast_slice_mut(&mut values)).expect("a read");
        Rows::from_vec(cols, values)
    }
}

/// Where a kernel that chooses experts finds their logits.
fn router_logits(dispatch: &Dispatch) -> Option<Range> {
    let binding = match dispatch.entry {
        "top_k" => 0,
        // After the rows and the scale of their norm.
        "expert_qmv_up" => 2,
        _ => return None,
    };
    Some(dispatch.bindings[binding].range)
}

/// The residual stream, if this kernel is a layer's last.
fn layer_output(dispatch: &Dispatch) -> Option<Range> {
    let ends = matches!(dispatch.entry, "combine" | "expert_qmv_down");
    let both = |access: calla_gpu::Access| access.reads() && access.writes();
    let mut binding = dispatch.bindings.iter().filter(|binding| both(binding.access));
    ends.then(|| binding.next().expect("what it adds to").range)
}

/// Errors related to what they are errors of, in the roots of squares: of all rows together, and of the worst row.
fn relative_errors(actual: &Rows, expected: &Rows) -> [f64; 2] {
    let error = |a: &[f32], e: &[f32]| {
        let off =
            a.iter().zip(e).map(|(&a, &e)| (f64::from(a) - f64::from(e)).powi(2)).sum::<f64>();
        (off / e.iter().map(|&e| f64::from(e).powi(2)).sum::<f64>()).sqrt()
    };
    let rows = actual.iter().zip(expected.iter()).map(|(a, e)| error(a, e));
    let worst = rows.max_by(f64::total_cmp).expect("a row");
    [error(actual.as_slice(), expected.as_slice()), worst]
}

#[test]
fn layers_are_the_references_where_experts_are() {
    let model = std::env::var_os("CALLA_LAYERS_MODEL").map_or_else(places::demo, PathBuf::from);
    let Some(mut device) = common::device() else { return };
    let (shape, network) = checkpoint(&model);
    let mut random = Random::new(11);
    let prompts: Vec<Vec<u32>> =
        (0..SEQUENCES).map(|_| random.tokens(TOKENS, shape.vocab_size)).collect();
    let expected = reference(&shape, &network, &prompts);
    let planner = Planner::new(&mut device, shape.clone(), &network, SIZE);
    let mut run = OnDevice { device, planner };

    for is_single in [true, false] {
        run.planner.forget(&mut run.device);
        let mut errors = vec![[[0.0_f64; 2]; 2]; network.layers.len()];
        for ((kind, part), expected) in steps().into_iter().zip(&expected) {
            let forced = Forced { experts: Some(expected), inputs: is_single.then_some(expected) };
            let actual = run.step(&batch(&shape, &prompts, kind, part), forced);
            assert_eq!(actual.layers.len(), network.layers.len(), "{kind:?}");
            assert_eq!(actual.router.len(), network.layers.len(), "{kind:?}");
            for ((layer, actual), errors) in actual.layers.iter().enumerate().zip(&mut errors) {
                let found = relative_errors(actual, &expected.layers[layer]);
                assert!(found.iter().all(|e| e.is_finite()), "{kind:?} {part:?}, layer {layer}");
                let errors = &mut errors[usize::from(kind == SpanKind::Decode)];
                errors.iter_mut().zip(found).for_each(|(most, error)| *most = most.max(error));
            }
        }
        println!("{}", if is_single { "each layer by itself" } else { "all layers before it too" });
        println!("relative errors of all rows and of the worst one: prefill; decode");
        for (layer, [[all, row], [decode_all, decode_row]]) in errors.iter().enumerate() {
            println!("{layer:2}  {all:.1e} {row:.1e};  {decode_all:.1e} {decode_row:.1e}");
        }
        let bound = if is_single { LAYER_ERROR_MAX } else { NETWORK_ERROR_MAX };
        let worst = errors.iter().flatten().map(|&[all, _]| all).max_by(f64::total_cmp);
        assert!(worst.is_some_and(|worst| worst <= bound), "{worst:?} exceeds {bound}");
    }

    run.planner.forget(&mut run.device);
    let (mut other_experts, mut all_experts) = (0, 0);
    let (mut logits, mut expected_logits) = (vec![], vec![]);
    for ((kind, part), expected) in steps().into_iter().zip(&expected) {
        let actual = run.step(&batch(&shape, &prompts, kind, part), Forced::default());
        for (actual, expected) in actual.router.iter().zip(&expected.router) {
            let [actual, expected] =
                [actual, expected].map(|rows| calla_ops::route::reference(rows, shape.top_k));
            let pairs =
                actual.experts.chunks(shape.top_k).zip(expected.experts.chunks(shape.top_k));
            for (actual, expected) in pairs {
                all_experts += expected.len();
                other_experts += expected.iter().filter(|e| !actual.contains(e)).count();
            }
        }
        logits.extend_from_slice(actual.logits.as_slice());
        expected_logits.extend_from_slice(expected.logits.as_slice());
    }
    let [logits, expected] =
        [logits, expected_logits].map(|values| Rows::from_vec(shape.vocab_size, values));
    let metrics = compare::logits(&logits, &expected, MARGIN).expect("logits");
    println!("free: {other_experts} of {all_experts} choices of experts differ; {metrics:?}");
    // Experts may differ here, and of a checkpoint without sense nobody knows what follows from that.
    if model == places::demo() {
        assert!(metrics.top1_margin.is_some_and(|agreeing| agreeing >= 0.95), "{metrics:?}");
    }
}
