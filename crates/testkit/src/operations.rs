//! Every operation of [`calla_ops::Ops`] as a call on inputs, fine ones first.

use crate::conformance::{DynOps, Inputs, Operation};
use calla_ops::Rows;
use calla_ops::experts::ExpertInput;
use calla_ops::ops::{AttentionInputs, DeltaInputs, ExpertActivations, Routed};
use calla_ops::route::Routing;

/// All operations, in the order of the trait. `select_rows`, which has no row of its own per row of a
/// batch, and `kv_append`, which shows only in `attention`, have no entry.
#[must_use]
pub fn all() -> Vec<Operation> {
    let fine = |name, bound, run| Operation { name, coarse: false, bound: Some(bound), run };
    let coarse = |name, bound, run| Operation { name, coarse: true, bound: Some(bound), run };
    vec![
        fine("embed", |t| t.decode, embed),
        fine("rms_norm", |t| t.elementwise, rms_norm),
        fine("linear", |t| t.linear, linear),
        fine("add", |_| 0.0, add),
        fine("conv_silu", |t| t.elementwise, conv_silu),
        fine("delta_prep", |t| t.elementwise, delta_prep),
        fine("gated_delta", |t| t.recurrence, gated_delta),
        fine("gated_norm", |t| t.elementwise, gated_norm),
        fine("qk_prep", |t| t.elementwise, qk_prep),
        fine("attention", |t| t.attention, attention),
        fine("attention_gate", |t| t.elementwise, attention_gate),
        fine("top_k_softmax", |t| t.elementwise, top_k_softmax),
        fine("expert_linear_per_row", |t| t.linear, expert_linear_per_row),
        fine("expert_linear_per_pair", |t| t.linear, expert_linear_per_pair),
        fine("swiglu", |t| t.elementwise, swiglu),
        fine("combine", |t| t.elementwise, combine),
        coarse("delta_in_proj", |t| t.linear, delta_in_proj),
        coarse("delta_step", |t| t.recurrence, delta_step),
        coarse("delta_out_proj", |t| t.linear, delta_out_proj),
        coarse("attention_in_proj", |t| t.linear, attention_in_proj),
        coarse("attend", |t| t.attention, attend),
        coarse("out_proj", |t| t.linear, out_proj),
        // Near ties may fall either way: `Suite::chooses_experts` compares it with the reference.
        Operation { name: "route", coarse: true, bound: None, run: route },
        coarse("experts_up", |t| t.experts, experts_up),
        coarse("experts_down", |t| t.linear, experts_down),
        coarse("lm_head", |t| t.linear, lm_head),
    ]
}

/// One of [`all`].
///
/// # Panics
/// If there is none of that name.
#[must_use]
pub fn named(name: &str) -> Operation {
    let mut operations = all().into_iter();
    operations.find(|op| op.name == name).unwrap_or_else(|| panic!("no operation \"{name}\""))
}

fn residual(i: &Inputs<'_>) -> Rows {
    i.rows("x", i.shape().hidden, 1.5)
}

fn hidden(i: &Inputs<'_>) -> Rows {
    i.rows("h", i.shape().hidden, 1.0)
}

fn embed(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    vec![ops.embed(&i.model.network.embed_tokens, i.batch.tokens())]
}

fn rms_norm(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    vec![ops.rms_norm(&residual(i), &i.model.network.norm)]
}

fn linear(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let moe = &i.model.network.layers[0].moe;
    let inner = i.rows("inner", i.shape().shared_hidden, 1.0);
    vec![
        ops.linear(&hidden(i), i.model.network.output_matrix()),
        ops.linear(&hidden(i), &moe.gate),
        ops.linear(&hidden(i), &moe.shared_expert_gate),
        ops.linear(&inner, &moe.shared_down_proj),
    ]
}

fn add(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let mut x = residual(i);
    ops.add(&mut x, &hidden(i));
    vec![x]
}

fn conv_silu(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let qkv = i.rows("qkv", i.shape().conv_dim(), 1.0);
    vec![ops.conv_silu(&qkv, &i.model.delta().1.conv1d, 0, i.batch)]
}

fn delta_gates(i: &Inputs<'_>) -> (Rows, Rows) {
    let heads = i.shape().delta_value_heads;
    (i.rows("b", heads, 1.0), i.rows("a", heads, 1.0))
}

fn delta_prep(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let (b, a) = delta_gates(i);
    let qkv = i.rows("qkv", i.shape().conv_dim(), 1.0);
    let terms = ops.delta_prep(&qkv, &b, &a, i.model.delta().1);
    vec![terms.q, terms.k, terms.v, terms.beta, terms.log_decay]
}

fn gated_delta(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let (b, a) = delta_gates(i);
    let qkv = i.rows("qkv", i.shape().conv_dim(), 1.0);
    let terms = calla_ops::delta_prep::reference(i.shape(), &qkv, &b, &a, i.model.delta().1);
    vec![ops.gated_delta(&terms, 0, i.batch)]
}

fn gated_norm(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let width = i.shape().delta_value_dim();
    let (o, z) = (i.rows("o", width, 0.3), i.rows("z", width, 1.0));
    vec![ops.gated_norm(&o, &z, &i.model.delta().1.norm)]
}

fn qk_prep(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let q_gate = i.rows("q_gate", 2 * i.shape().query_dim(), 1.0);
    let k = i.rows("k", i.shape().kv_dim(), 1.0);
    let ready = ops.qk_prep(&q_gate, &k, i.model.attention().1, i.batch);
    vec![ready.q, ready.k]
}

fn attention(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let (k, v) = (i.rows("k", i.shape().kv_dim(), 1.0), i.rows("v", i.shape().kv_dim(), 1.0));
    ops.kv_append(&k, &v, 0, i.batch);
    vec![ops.attention(&i.rows("q", i.shape().query_dim(), 1.0), 0, i.batch)]
}

fn attention_gate(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let q_gate = i.rows("q_gate", 2 * i.shape().query_dim(), 1.0);
    vec![ops.attention_gate(&i.rows("o", i.shape().query_dim(), 0.3), &q_gate)]
}

/// `[rows, experts]`: the weight of each chosen expert, 0 of others.
fn dense(routing: &Routing, experts: usize) -> Rows {
    let mut weights = Rows::zeros(routing.rows(), experts);
    for (pair, (&expert, &weight)) in routing.experts.iter().zip(&routing.weights).enumerate() {
        weights.row_mut(pair / routing.top_k)[expert as usize] = weight;
    }
    weights
}

fn top_k_softmax(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let routing = ops.top_k_softmax(&i.router_logits());
    let order = routing.experts.iter().map(|&e| e as f32).collect();
    vec![dense(&routing, i.shape().experts), Rows::from_vec(routing.top_k, order)]
}

fn expert_linear_per_row(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let moe = &i.model.network.layers[0].moe;
    vec![ops.expert_linear(&hidden(i), ExpertInput::PerRow, &i.routing(), &moe.up_proj)]
}

fn expert_linear_per_pair(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let moe = &i.model.network.layers[0].moe;
    let x = i.pair_rows("pairs", i.shape().expert_hidden);
    vec![ops.expert_linear(&x, ExpertInput::PerPair, &i.routing(), &moe.down_proj)]
}

fn swiglu(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let width = i.shape().expert_hidden;
    vec![ops.swiglu(&i.pair_rows("gate", width), &i.pair_rows("up", width))]
}

fn combine(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let mut x = residual(i);
    let routed = i.pair_rows("routed", i.shape().hidden);
    let shared_gate = i.rows("shared gate", 1, 1.0);
    ops.combine(&mut x, &routed, &i.routing(), &hidden(i), &shared_gate);
    vec![x]
}

fn delta_in_proj(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let (layer, weights) = i.model.delta();
    let inputs = ops.delta_in_proj(&residual(i), &layer.input_layernorm, weights);
    vec![inputs.qkv, inputs.z, inputs.b, inputs.a]
}

fn delta_step(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let (b, a) = delta_gates(i);
    let qkv = i.rows("qkv", i.shape().conv_dim(), 1.0);
    let z = i.rows("z", i.shape().delta_value_dim(), 1.0);
    vec![ops.delta_step(&DeltaInputs { qkv, z, b, a }, i.model.delta().1, 0, i.batch)]
}

fn delta_out_proj(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let width = i.shape().delta_value_dim();
    let (o, z) = (i.rows("o", width, 0.3), i.rows("z", width, 1.0));
    let mut x = residual(i);
    ops.delta_out_proj(&mut x, &o, &z, i.model.delta().1);
    vec![x]
}

fn attention_in_proj(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let (layer, weights) = i.model.attention();
    let inputs = ops.attention_in_proj(&residual(i), &layer.input_layernorm, weights);
    vec![inputs.q_gate, inputs.k, inputs.v]
}

fn attend(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let inputs = AttentionInputs {
        q_gate: i.rows("q_gate", 2 * i.shape().query_dim(), 1.0),
        k: i.rows("k", i.shape().kv_dim(), 1.0),
        v: i.rows("v", i.shape().kv_dim(), 1.0),
    };
    vec![ops.attend(&inputs, i.model.attention().1, 0, i.batch)]
}

fn out_proj(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let mut x = residual(i);
    let y = i.rows("y", i.shape().query_dim(), 1.0);
    ops.out_proj(&mut x, &y, &i.model.attention().1.o_proj);
    vec![x]
}

fn route(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let layer = &i.model.network.layers[0];
    let routed = ops.route(&residual(i), &layer.post_attention_layernorm, &layer.moe);
    vec![dense(&routed.routing, i.shape().experts), routed.h, routed.shared_gate]
}

/// Rows already routed by the reference, so that no near tie can send them elsewhere.
fn routed(i: &Inputs<'_>) -> Routed<Rows, Routing> {
    let shared_gate = i.rows("shared gate", 1, 1.0);
    Routed { h: hidden(i), routing: i.routing(), shared_gate }
}

fn experts_up(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let activations = ops.experts_up(&routed(i), &i.model.network.layers[0].moe);
    vec![activations.routed, activations.shared]
}

fn experts_down(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let mut x = residual(i);
    let activations = ExpertActivations {
        routed: i.pair_rows("pairs", i.shape().expert_hidden),
        shared: i.rows("inner", i.shape().shared_hidden, 1.0),
    };
    ops.experts_down(&mut x, &routed(i), &activations, &i.model.network.layers[0].moe);
    vec![x]
}

fn lm_head(ops: &mut DynOps, i: &Inputs<'_>) -> Vec<Rows> {
    let network = &i.model.network;
    let outputs = i.batch.outputs();
    vec![ops.lm_head(&residual(i), outputs, &network.norm, network.output_matrix())]
}
