//! A backend stripped of its fused operations: coarse methods fall back to their default bodies.

use calla_model::Shape;
use calla_model::network::{Attention, DeltaNet};
use calla_ops::Batch;
use calla_ops::experts::ExpertInput;
use calla_ops::ops::{DeltaTerms, ExpertsOf, MatrixOf, Ops, QueriesKeys, VectorOf};
use calla_ops::{HostCache, runner::HostOps};

/// Delegates fine operations to `B` and overrides no coarse one: what `B`'s fused operations must equal.
pub struct Composed<B>(pub B);

impl<B: Ops> Ops for Composed<B> {
    type Parts = B::Parts;
    type Tensor = B::Tensor;
    type Routing = B::Routing;

    fn shape(&self) -> &Shape {
        self.0.shape()
    }

    fn embed(&mut self, table: &MatrixOf<B>, tokens: &[u32]) -> B::Tensor {
        self.0.embed(table, tokens)
    }

    fn select_rows(&mut self, x: &B::Tensor, rows: &[usize]) -> B::Tensor {
        self.0.select_rows(x, rows)
    }

    fn rms_norm(&mut self, x: &B::Tensor, scale: &VectorOf<B>) -> B::Tensor {
        self.0.rms_norm(x, scale)
    }

    fn linear(&mut self, x: &B::Tensor, weight: &MatrixOf<B>) -> B::Tensor {
        self.0.linear(x, weight)
    }

    fn add(&mut self, x: &mut B::Tensor, y: &B::Tensor) {
        self.0.add(x, y);
    }

    fn conv_silu(
        &mut self,
        qkv: &B::Tensor,
        taps: &VectorOf<B>,
        layer: usize,
        batch: &Batch,
    ) -> B::Tensor {
        self.0.conv_silu(qkv, taps, layer, batch)
    }

    fn delta_prep(
        &mut self,
        qkv: &B::Tensor,
        b: &B::Tensor,
        a: &B::Tensor,
        weights: &DeltaNet<B::Parts>,
    ) -> DeltaTerms<B::Tensor> {
        self.0.delta_prep(qkv, b, a, weights)
    }

    fn gated_delta(
        &mut self,
        terms: &DeltaTerms<B::Tensor>,
        layer: usize,
        batch: &Batch,
    ) -> B::Tensor {
        self.0.gated_delta(terms, layer, batch)
    }

    fn gated_norm(&mut self, o: &B::Tensor, z: &B::Tensor, scale: &VectorOf<B>) -> B::Tensor {
        self.0.gated_norm(o, z, scale)
    }

    fn qk_prep(
        &mut self,
        q_gate: &B::Tensor,
        k: &B::Tensor,
        weights: &Attention<B::Parts>,
        batch: &Batch,
    ) -> QueriesKeys<B::Tensor> {
        self.0.qk_prep(q_gate, k, weights, batch)
    }

    fn kv_append(&mut self, k: &B::Tensor, v: &B::Tensor, layer: usize, batch: &Batch) {
        self.0.kv_append(k, v, layer, batch);
    }

    fn attention(&mut self, q: &B::Tensor, layer: usize, batch: &Batch) -> B::Tensor {
        self.0.attention(q, layer, batch)
    }

    fn attention_gate(&mut self, o: &B::Tensor, q_gate: &B::Tensor) -> B::Tensor {
        self.0.attention_gate(o, q_gate)
    }

    fn top_k_softmax(&mut self, router_logits: &B::Tensor) -> B::Routing {
        self.0.top_k_softmax(router_logits)
    }

    fn expert_linear(
        &mut self,
        x: &B::Tensor,
        input: ExpertInput,
        routing: &B::Routing,
        weights: &ExpertsOf<B>,
    ) -> B::Tensor {
        self.0.expert_linear(x, input, routing, weights)
    }

    fn swiglu(&mut self, gate: &B::Tensor, up: &B::Tensor) -> B::Tensor {
        self.0.swiglu(gate, up)
    }

    fn combine(
        &mut self,
        x: &mut B::Tensor,
        routed: &B::Tensor,
        routing: &B::Routing,
        shared: &B::Tensor,
        shared_gate: &B::Tensor,
    ) {
        self.0.combine(x, routed, routing, shared, shared_gate);
    }
}

impl<B: HostOps> HostOps for Composed<B> {
    fn cache(&self) -> &HostCache {
        self.0.cache()
    }

    fn cache_mut(&mut self) -> &mut HostCache {
        self.0.cache_mut()
    }

    fn arithmetic(&self) -> String {
        self.0.arithmetic()
    }

    fn clear_slot(&mut self, slot: usize) {
        self.0.clear_slot(slot);
    }
}
