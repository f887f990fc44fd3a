//! Every operation against the reference, on every instruction set of this machine.

mod common;

use calla_cpu::{Cpu, Isa};
use calla_model::Shape;
use calla_model::network::CheckpointParts;
use calla_model::network::{Attention, DeltaNet, Layer, Mixer};
use calla_ops::experts::ExpertInput;
use calla_ops::ops::DeltaTerms;
use calla_ops::route::Routing;
use calla_ops::runner::HostOps;
use calla_ops::{Batch, CacheSize, Ops, Reference, Rows};
use common::*;

/// Sums of f32 products against sums in f64, relative to the largest result.
const SUMS: f32 = 2e-6;
/// Element by element: a few roundings and the exponential.
const ELEMENTS: f32 = 5e-7;
/// A recurrence or a softmax over hundreds of steps.
const STEPS: f32 = 1e-5;

const ROWS: [usize; 13] = [1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 200];

const SIZE: CacheSize = CacheSize { pages: 12, slots: 3 };

fn backends(shape: &Shape) -> Vec<Cpu> {
    let make = |isa| Cpu::with_isa(shape.clone(), SIZE, 2, isa).unwrap();
    Isa::available().into_iter().map(make).collect()
}

#[test]
fn linear_in_every_format() {
    let shape = odd_shape();
    let mut random = Random::new(1);
    for (i, stored) in all_formats().into_iter().enumerate() {
        for (out, cols) in [(1, 128), (33, 384), (70, 1152)] {
            let weight = random.matrix(out, cols, stored);
            let x = random.rows(ROWS[i % ROWS.len()], cols);
            let expected = calla_ops::linear::reference(&x, &weight);
            let first = Rows::from_vec(cols, x.row(0).to_vec());
            for mut cpu in backends(&shape) {
                let what = format!("{weight:?}, {} rows on {:?}", x.rows(), cpu.isa());
                let y = cpu.linear(&x, &weight);
                assert_close(&what, &y, &expected, SUMS);
                assert_same_bits(&what, cpu.linear(&first, &weight).as_slice(), y.row(0));
            }
        }
    }
}

#[test]
fn linear_with_every_number_of_rows_and_odd_widths() {
    let shape = odd_shape();
    let mut random = Random::new(2);
    for rows in ROWS {
        for stored in [affine(4, 64), affine(4, 32), affine(8, 64)] {
            let weight = random.matrix(777, 192, stored);
            let x = random.rows(rows, 192);
            let expected = calla_ops::linear::reference(&x, &weight);
            for mut cpu in backends(&shape) {
                let what = format!("{rows} rows on {:?}", cpu.isa());
                assert_close(&what, &cpu.linear(&x, &weight), &expected, SUMS);
            }
        }
    }
    // Unquantised widths need not be whole vectors.
    for cols in [1, 15, 17, 100] {
        let weight = random.matrix(5, cols, all_formats()[cols % 3]);
        let x = random.rows(3, cols);
        let expected = calla_ops::linear::reference(&x, &weight);
        for mut cpu in backends(&shape) {
            assert_close("narrow", &cpu.linear(&x, &weight), &expected, SUMS);
        }
    }
}

#[test]
fn nan_in_a_row_stays_in_that_row() {
    let shape = odd_shape();
    let mut random = Random::new(3);
    let weight = random.matrix(40, 192, affine(4, 64));
    let mut x = random.rows(7, 192);
    x.row_mut(3)[100] = f32::NAN;
    for mut cpu in backends(&shape) {
        let y = cpu.linear(&x, &weight);
        for (row, y) in y.iter().enumerate() {
            assert!(y.iter().all(|v| v.is_nan() == (row == 3)), "row {row} on {:?}", cpu.isa());
        }
    }
}

#[test]
fn instruction_sets_agree_bit_for_bit() {
    let simd: Vec<Isa> = Isa::available().into_iter().filter(|&i| i != Isa::Portable).collect();
    let [first, others @ ..] = &simd[..] else {
        println!("skipped: this machine has no vector instruction set to compare");
        return;
    };
    let shape = odd_shape();
    let mut random = Random::new(4);
    let network = random.network(&shape, &all_formats());
    let tokens = random.tokens(100, &shape);
    let run = |isa| {
        let mut cpu = Cpu::with_isa(shape.clone(), SIZE, 1, isa).unwrap();
        calla_ops::forward(&mut cpu, &network, &whole(&shape, SIZE, &tokens), |_, _| {})
    };
    let expected = run(*first);
    for isa in others {
        assert_same_bits(&format!("{isa:?}"), run(*isa).as_slice(), expected.as_slice());
    }
}

#[test]
fn elementwise_operations() {
    let shape = odd_shape();
    let mut random = Random::new(5);
    for rows in [1, 3, 33] {
        for cols in [96, 100, 192] {
            let (mut x, y) = (random.rows(rows, cols), random.rows(rows, cols));
            // From tiny to saturated.
            for (i, x) in x.as_mut_slice().iter_mut().enumerate() {
                *x *= [0.01, 1.0, 10.0, 100.0][i % 4];
            }
            let scale = random.vector(cols);
            let mut oracle = Reference::new(shape.clone(), SIZE).unwrap();
            for mut cpu in backends(&shape) {
                let isa = cpu.isa();
                let what = |op: &str| format!("{op} [{rows}, {cols}] on {isa:?}");
                let expected = oracle.rms_norm(&x, &scale);
                assert_close(&what("rms_norm"), &cpu.rms_norm(&x, &scale), &expected, ELEMENTS);
                let expected = oracle.swiglu(&x, &y);
                assert_close(&what("swiglu"), &cpu.swiglu(&x, &y), &expected, ELEMENTS);
                let (mut actual, mut expected) = (x.clone(), x.clone());
                cpu.add(&mut actual, &y);
                oracle.add(&mut expected, &y);
                assert_same_bits(&what("add"), actual.as_slice(), expected.as_slice());
                let picked = cpu.select_rows(&x, &[rows - 1, 0]);
                assert_eq!(picked.row(1), x.row(0));
                assert_eq!(picked.row(0), x.row(rows - 1));
            }
        }
    }
    for extreme in [f32::INFINITY, 1e30, 200.0, -200.0, -1e30] {
        let x = Rows::from_vec(1, vec![extreme]);
        let one = Rows::from_vec(1, vec![1.0]);
        for mut cpu in backends(&shape) {
            let expected = if extreme > 0.0 { extreme } else { 0.0 };
            assert_eq!(cpu.swiglu(&x, &one).row(0)[0], expected, "silu({extreme})");
            let nan = Rows::from_vec(1, vec![f32::NAN]);
            assert!(cpu.swiglu(&nan, &one).row(0)[0].is_nan());
        }
    }
}

/// Two sequences, the second in the middle of its life, on scattered pages.
fn ragged(shape: &Shape, random: &mut Random, rows: usize) -> Batch {
    let (first, second) = (random.tokens(rows, shape), random.tokens(5, shape));
    batch(shape, SIZE, &[(2, 0, &first, &[7, 3, 11, 0]), (0, 61, &second, &[5, 2])])
}

fn layers(shape: &Shape, random: &mut Random) -> (Layer<CheckpointParts>, Layer<CheckpointParts>) {
    let formats = [affine(4, 64), affine(8, 32), affine(4, 32)];
    let mut layers = random.network(shape, &formats).layers;
    let is_attention = |layer: &Layer<_>| matches!(layer.mixer, Mixer::Attention(_));
    let attention = layers.iter().position(is_attention).expect("an attention layer");
    let attention = layers.remove(attention);
    (layers.remove(0), attention)
}

fn delta(layer: &Layer<CheckpointParts>) -> &DeltaNet<CheckpointParts> {
    match &layer.mixer {
        Mixer::DeltaNet(weights) => weights,
        Mixer::Attention(_) => panic!("an attention layer"),
    }
}

fn attention(layer: &Layer<CheckpointParts>) -> &Attention<CheckpointParts> {
    match &layer.mixer {
        Mixer::Attention(weights) => weights,
        Mixer::DeltaNet(_) => panic!("a DeltaNet layer"),
    }
}

/// Both with the same random state.
fn with_state(shape: &Shape, random: &mut Random, cpu: &mut Cpu) -> Reference {
    let mut oracle = Reference::new(shape.clone(), SIZE).unwrap();
    let cache = oracle.cache_mut();
    for layer in &mut cache.delta {
        let values = random.vector(layer.states.len());
        layer.states.copy_from_slice(&values);
        let values = random.vector(layer.windows.len());
        layer.windows.copy_from_slice(&values);
    }
    for layer in &mut cache.attention {
        let values = random.vector(layer.keys.len());
        layer.keys.copy_from_slice(&values);
        let values = random.vector(layer.values.len());
        layer.values.copy_from_slice(&values);
    }
    *cpu.cache_mut() = oracle.cache().clone();
    oracle
}

#[test]
fn delta_net_operations() {
    for shape in [odd_shape(), Shape::demo()] {
        let mut random = Random::new(6);
        let (layer, _) = layers(&shape, &mut random);
        let weights = delta(&layer);
        let heads = shape.delta_value_heads;
        for rows in [1, 2, 3, 4, 65, 200] {
            let batch = ragged(&shape, &mut random, rows);
            let n = batch.rows();
            let qkv = random.rows(n, shape.conv_dim());
            let (b, a) = (random.rows(n, heads), random.rows(n, heads));
            let z = random.rows(n, shape.delta_value_dim());
            for mut cpu in backends(&shape) {
                let isa = cpu.isa();
                let what = |op: &str| format!("{op}, {rows} rows on {isa:?}");
                let mut oracle = with_state(&shape, &mut random, &mut cpu);
                let expected = oracle.conv_silu(&qkv, &weights.conv1d, 0, &batch);
                let actual = cpu.conv_silu(&qkv, &weights.conv1d, 0, &batch);
                assert_close(&what("conv_silu"), &actual, &expected, ELEMENTS);
                assert_eq!(cpu.cache().delta[0].windows, oracle.cache().delta[0].windows);

                let expected = oracle.delta_prep(&qkv, &b, &a, weights);
                let actual = cpu.delta_prep(&qkv, &b, &a, weights);
                let pairs = |t: &DeltaTerms<Rows>| {
                    [t.q.clone(), t.k.clone(), t.v.clone(), t.beta.clone(), t.log_decay.clone()]
                };
                for (actual, expected) in pairs(&actual).iter().zip(&pairs(&expected)) {
                    assert_close(&what("delta_prep"), actual, expected, ELEMENTS);
                }

                let o = oracle.gated_delta(&expected, 0, &batch);
                let actual = cpu.gated_delta(&expected, 0, &batch);
                assert_close(&what("gated_delta"), &actual, &o, STEPS);
                let state = |states: &[f32]| Rows::from_vec(states.len(), states.to_vec());
                let expected = state(&oracle.cache().delta[0].states);
                let actual = state(&cpu.cache().delta[0].states);
                assert_close(&what("state"), &actual, &expected, STEPS);

                let expected = oracle.gated_norm(&o, &z, &weights.norm);
                let actual = cpu.gated_norm(&o, &z, &weights.norm);
                assert_close(&what("gated_norm"), &actual, &expected, ELEMENTS);

                let x = random.rows(n, shape.hidden);
                let expected = oracle.delta_in_proj(&x, &layer.input_layernorm, weights);
                let actual = cpu.delta_in_proj(&x, &layer.input_layernorm, weights);
                assert_close(&what("qkv"), &actual.qkv, &expected.qkv, SUMS);
                assert_close(&what("z"), &actual.z, &expected.z, SUMS);
                assert_close(&what("b"), &actual.b, &expected.b, SUMS);
                assert_close(&what("a"), &actual.a, &expected.a, SUMS);
                let mut oracle = with_state(&shape, &mut random, &mut cpu);
                let o = oracle.delta_step(&expected, weights, 0, &batch);
                let actual = cpu.delta_step(&expected, weights, 0, &batch);
                assert_close(&what("delta_step"), &actual, &o, STEPS);
                let (mut actual, mut y) = (x.clone(), x.clone());
                oracle.delta_out_proj(&mut y, &o, &expected.z, weights);
                cpu.delta_out_proj(&mut actual, &o, &expected.z, weights);
                assert_close(&what("delta_out_proj"), &actual, &y, SUMS);
            }
        }
    }
}

#[test]
fn attention_operations() {
    for shape in
        [odd_shape(), Shape::demo(), Shape { kv_heads: 4, attention_heads: 4, ..odd_shape() }]
    {
        let mut random = Random::new(7);
        let (_, layer) = layers(&shape, &mut random);
        let weights = attention(&layer);
        for rows in [1, 2, 3, 64, 65, 200] {
            let batch = ragged(&shape, &mut random, rows);
            let n = batch.rows();
            let x = random.rows(n, shape.hidden);
            for mut cpu in backends(&shape) {
                let isa = cpu.isa();
                let what = |op: &str| format!("{op}, {rows} rows on {isa:?}");
                let mut oracle = with_state(&shape, &mut random, &mut cpu);
                let inputs = oracle.attention_in_proj(&x, &layer.input_layernorm, weights);
                let actual = cpu.attention_in_proj(&x, &layer.input_layernorm, weights);
                assert_close(&what("q_gate"), &actual.q_gate, &inputs.q_gate, SUMS);
                assert_close(&what("k"), &actual.k, &inputs.k, SUMS);
                assert_close(&what("v"), &actual.v, &inputs.v, SUMS);

                let expected = oracle.qk_prep(&inputs.q_gate, &inputs.k, weights, &batch);
                let actual = cpu.qk_prep(&inputs.q_gate, &inputs.k, weights, &batch);
                assert_close(&what("q"), &actual.q, &expected.q, ELEMENTS);
                assert_close(&what("k"), &actual.k, &expected.k, ELEMENTS);

                oracle.kv_append(&expected.k, &inputs.v, 0, &batch);
                cpu.kv_append(&expected.k, &inputs.v, 0, &batch);
                assert_eq!(cpu.cache().attention[0].keys, oracle.cache().attention[0].keys);
                assert_eq!(cpu.cache().attention[0].values, oracle.cache().attention[0].values);

                let o = oracle.attention(&expected.q, 0, &batch);
                let actual = cpu.attention(&expected.q, 0, &batch);
                assert_close(&what("attention"), &actual, &o, STEPS);
                let expected = oracle.attention_gate(&o, &inputs.q_gate);
                let actual = cpu.attention_gate(&o, &inputs.q_gate);
                assert_close(&what("attention_gate"), &actual, &expected, ELEMENTS);

                let expected = oracle.attend(&inputs, weights, 0, &batch);
                let actual = cpu.attend(&inputs, weights, 0, &batch);
                assert_close(&what("attend"), &actual, &expected, STEPS);
                let (mut actual, mut y) = (x.clone(), x.clone());
                oracle.out_proj(&mut y, &expected, &weights.o_proj);
                cpu.out_proj(&mut actual, &expected, &weights.o_proj);
                assert_close(&what("out_proj"), &actual, &y, SUMS);
            }
        }
    }
}

#[test]
fn expert_operations() {
    for shape in [odd_shape(), Shape::demo()] {
        let mut random = Random::new(8);
        let (layer, _) = layers(&shape, &mut random);
        let moe = &layer.moe;
        for rows in ROWS {
            let x = random.rows(rows, shape.hidden);
            let mut oracle = Reference::new(shape.clone(), SIZE).unwrap();
            for mut cpu in backends(&shape) {
                let isa = cpu.isa();
                let what = |op: &str| format!("{op}, {rows} rows on {isa:?}");
                let routed = oracle.route(&x, &layer.post_attention_layernorm, moe);
                let actual = cpu.route(&x, &layer.post_attention_layernorm, moe);
                assert_close(&what("h"), &actual.h, &routed.h, ELEMENTS);
                // A single output may cancel to far below its terms.
                assert_close(&what("gate"), &actual.shared_gate, &routed.shared_gate, 1e-4);
                assert_eq!(actual.routing.experts, routed.routing.experts, "{}", what("experts"));
                let weights = |r: &Routing| Rows::from_vec(shape.top_k, r.weights.clone());
                let expected = weights(&routed.routing);
                assert_close(&what("weights"), &weights(&actual.routing), &expected, STEPS);

                let (h, routing) = (&routed.h, &routed.routing);
                let per_row = ExpertInput::PerRow;
                let expected = oracle.expert_linear(h, per_row, routing, &moe.up_proj);
                let actual = cpu.expert_linear(h, per_row, routing, &moe.up_proj);
                assert_close(&what("expert_linear"), &actual, &expected, SUMS);

                let up = oracle.experts_up(&routed, moe);
                let actual = cpu.experts_up(&routed, moe);
                assert_close(&what("routed up"), &actual.routed, &up.routed, SUMS);
                assert_close(&what("shared up"), &actual.shared, &up.shared, SUMS);

                let (mut actual, mut expected) = (x.clone(), x.clone());
                cpu.experts_down(&mut actual, &routed, &up, moe);
                oracle.experts_down(&mut expected, &routed, &up, moe);
                assert_close(&what("experts_down"), &actual, &expected, SUMS);
            }
        }
    }
}

#[test]
fn equal_and_nan_logits_are_routed_as_the_reference_routes_them() {
    let shape = odd_shape();
    let mut random = Random::new(9);
    let mut logits = Rows::zeros(50, 20);
    for (i, logit) in logits.as_mut_slice().iter_mut().enumerate() {
        *logit = [-0.0, 0.0, 1.0, -1.0, 0.5][random.below(5)];
        if i % 97 == 0 {
            *logit = f32::NAN;
        }
    }
    let expected = Reference::new(shape.clone(), SIZE).unwrap().top_k_softmax(&logits);
    for mut cpu in backends(&shape) {
        let actual = cpu.top_k_softmax(&logits);
        assert_eq!(actual.experts, expected.experts);
        assert_same_bits("weights", &actual.weights, &expected.weights);
    }
}

#[test]
fn embedding_and_logits() {
    let shape = odd_shape();
    let mut random = Random::new(10);
    let network = random.network(&shape, &all_formats());
    let tokens = random.tokens(9, &shape);
    let x = random.rows(9, shape.hidden);
    let mut oracle = Reference::new(shape.clone(), SIZE).unwrap();
    for mut cpu in backends(&shape) {
        let expected = oracle.embed(&network.embed_tokens, &tokens);
        assert_eq!(cpu.embed(&network.embed_tokens, &tokens), expected);
        let expected = oracle.lm_head(&x, &[2, 8], &network.norm, network.output_matrix());
        let actual = cpu.lm_head(&x, &[2, 8], &network.norm, network.output_matrix());
        assert_close("logits", &actual, &expected, SUMS);
    }
}
