//! The trait of operations that a backend implements, at two levels of coarseness.

use crate::batch::Batch;
use crate::experts::ExpertInput;
use calla_model::network::{Attention, DeltaNet, Moe};
use calla_model::{Parts, Shape};

/// A matrix handle of a backend.
pub type MatrixOf<O> = <<O as Ops>::Parts as Parts>::Matrix;
/// An experts handle of a backend.
pub type ExpertsOf<O> = <<O as Ops>::Parts as Parts>::Experts;
/// A vector handle of a backend.
pub type VectorOf<O> = <<O as Ops>::Parts as Parts>::Vector;

/// What leaves a DeltaNet input projection.
pub struct DeltaInputs<T> {
    /// Queries, keys, values before the convolution `[rows, channels]`.
    pub qkv: T,
    /// Output gate `[rows, value heads * 128]`.
    pub z: T,
    /// Write strength before its sigmoid `[rows, value heads]`.
    pub b: T,
    /// Decay input `[rows, value heads]`.
    pub a: T,
}

/// What the DeltaNet recurrence takes, per row and head.
pub struct DeltaTerms<T> {
    /// Queries, unit length times 1/sqrt(128) `[rows, key heads * 128]`.
    pub q: T,
    /// Keys, unit length `[rows, key heads * 128]`.
    pub k: T,
    /// Values `[rows, value heads * 128]`.
    pub v: T,
    /// Write strength in (0, 1) `[rows, value heads]`.
    pub beta: T,
    /// Logarithm of the decay, at most 0 `[rows, value heads]`.
    pub log_decay: T,
}

/// What leaves an attention input projection.
pub struct AttentionInputs<T> {
    /// Per head 256 query then 256 gate values `[rows, heads * 512]`.
    pub q_gate: T,
    /// Keys `[rows, kv heads * 256]`.
    pub k: T,
    /// Values `[rows, kv heads * 256]`.
    pub v: T,
}

/// Queries and keys ready for attention.
pub struct QueriesKeys<T> {
    /// Queries after norm and RoPE `[rows, heads * 256]`.
    pub q: T,
    /// Keys after norm and RoPE `[rows, kv heads * 256]`.
    pub k: T,
}

/// Rows with the experts they go to.
pub struct Routed<T, R> {
    /// Normed rows `[rows, hidden]`.
    pub h: T,
    /// Experts and weights of each row.
    pub routing: R,
    /// Gate of the shared expert before its sigmoid `[rows, 1]`.
    pub shared_gate: T,
}

/// Inner activations of the experts.
pub struct ExpertActivations<T> {
    /// Routed experts, pair `row * top_k + rank`: `[rows * top_k, inner]`.
    pub routed: T,
    /// Shared expert `[rows, shared inner]`.
    pub shared: T,
}

/// The operations of the network.
///
/// Implementations must keep two promises. A row's result never depends on the number of rows, on their
/// split into batches, or on its neighbours; and every coarse method computes what its default body does,
/// within the tolerance that the conformance suite states for the backend.
///
/// Arguments are consistent by construction (a [`Batch`] and a network of one [`Shape`]), so operations
/// do not return errors: a device that fails reports it when results are read.
pub trait Ops {
    /// What weights are made of here.
    type Parts: Parts;
    /// Activations `[rows, cols]`.
    type Tensor;
    /// Experts and weights of each row.
    type Routing;

    /// Shape of the network.
    fn shape(&self) -> &Shape;

    // Fine operations: no defaults.

    /// Rows of the embedding `[tokens, hidden]`.
    fn embed(&mut self, table: &MatrixOf<Self>, tokens: &[u32]) -> Self::Tensor;

    /// Copies chosen rows, in order.
    fn select_rows(&mut self, x: &Self::Tensor, rows: &[usize]) -> Self::Tensor;

    /// See [`crate::rms_norm`].
    fn rms_norm(&mut self, x: &Self::Tensor, scale: &VectorOf<Self>) -> Self::Tensor;

    /// See [`crate::linear`].
    fn linear(&mut self, x: &Self::Tensor, weight: &MatrixOf<Self>) -> Self::Tensor;

    /// `x += y`, element by element.
    fn add(&mut self, x: &mut Self::Tensor, y: &Self::Tensor);

    /// See [`crate::conv_silu`]. `layer` counts DeltaNet layers; the window of each span's slot moves on.
    fn conv_silu(
        &mut self,
        qkv: &Self::Tensor,
        taps: &VectorOf<Self>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor;

    /// See [`crate::delta_prep`]. `qkv` is after the convolution.
    fn delta_prep(
        &mut self,
        qkv: &Self::Tensor,
        b: &Self::Tensor,
        a: &Self::Tensor,
        weights: &DeltaNet<Self::Parts>,
    ) -> DeltaTerms<Self::Tensor>;

    /// See [`crate::gated_delta`]. `layer` counts DeltaNet layers; the state of each span's slot moves on.
    fn gated_delta(
        &mut self,
        terms: &DeltaTerms<Self::Tensor>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor;

    /// See [`crate::gated_norm`].
    fn gated_norm(
        &mut self,
        o: &Self::Tensor,
        z: &Self::Tensor,
        scale: &VectorOf<Self>,
    ) -> Self::Tensor;

    /// See [`crate::qk_prep`].
    fn qk_prep(
        &mut self,
        q_gate: &Self::Tensor,
        k: &Self::Tensor,
        weights: &Attention<Self::Parts>,
        batch: &Batch,
    ) -> QueriesKeys<Self::Tensor>;

    /// Writes keys and values of the batch into its pages. `layer` counts attention layers.
    fn kv_append(&mut self, k: &Self::Tensor, v: &Self::Tensor, layer: usize, batch: &Batch);

    /// See [`crate::attention`]. Keys and values, those of the batch included, are read from the pages.
    fn attention(&mut self, q: &Self::Tensor, layer: usize, batch: &Batch) -> Self::Tensor;

    /// `o * sigmoid(gate)`, the gates being the second half of each head in `q_gate`.
    fn attention_gate(&mut self, o: &Self::Tensor, q_gate: &Self::Tensor) -> Self::Tensor;

    /// See [`crate::route`].
    fn top_k_softmax(&mut self, router_logits: &Self::Tensor) -> Self::Routing;

    /// See [`crate::experts::expert_linear`].
    fn expert_linear(
        &mut self,
        x: &Self::Tensor,
        input: ExpertInput,
        routing: &Self::Routing,
        weights: &ExpertsOf<Self>,
    ) -> Self::Tensor;

    /// See [`crate::swiglu`].
    fn swiglu(&mut self, gate: &Self::Tensor, up: &Self::Tensor) -> Self::Tensor;

    /// See [`crate::experts::combine`].
    fn combine(
        &mut self,
        x: &mut Self::Tensor,
        routed: &Self::Tensor,
        routing: &Self::Routing,
        shared: &Self::Tensor,
        shared_gate: &Self::Tensor,
    );

    // Coarse operations: the defaults are their specification.

    /// Norm and input projections of a DeltaNet layer; `x` is the residual stream.
    fn delta_in_proj(
        &mut self,
        x: &Self::Tensor,
        norm: &VectorOf<Self>,
        weights: &DeltaNet<Self::Parts>,
    ) -> DeltaInputs<Self::Tensor> {
        let h = self.rms_norm(x, norm);
        DeltaInputs {
            qkv: self.linear(&h, &weights.in_proj_qkv),
            z: self.linear(&h, &weights.in_proj_z),
            b: self.linear(&h, &weights.in_proj_b),
            a: self.linear(&h, &weights.in_proj_a),
        }
    }

    /// Convolution, normalisation and recurrence of a DeltaNet layer: `[rows, value heads * 128]`.
    fn delta_step(
        &mut self,
        inputs: &DeltaInputs<Self::Tensor>,
        weights: &DeltaNet<Self::Parts>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor {
        let qkv = self.conv_silu(&inputs.qkv, &weights.conv1d, layer, batch);
        let terms = self.delta_prep(&qkv, &inputs.b, &inputs.a, weights);
        self.gated_delta(&terms, layer, batch)
    }

    /// Gated norm, output projection and residual of a DeltaNet layer.
    fn delta_out_proj(
        &mut self,
        x: &mut Self::Tensor,
        o: &Self::Tensor,
        z: &Self::Tensor,
        weights: &DeltaNet<Self::Parts>,
    ) {
        let o = self.gated_norm(o, z, &weights.norm);
        self.out_proj(x, &o, &weights.out_proj);
    }

    /// Norm and input projections of an attention layer; `x` is the residual stream.
    fn attention_in_proj(
        &mut self,
        x: &Self::Tensor,
        norm: &VectorOf<Self>,
        weights: &Attention<Self::Parts>,
    ) -> AttentionInputs<Self::Tensor> {
        let h = self.rms_norm(x, norm);
        AttentionInputs {
            q_gate: self.linear(&h, &weights.q_proj),
            k: self.linear(&h, &weights.k_proj),
            v: self.linear(&h, &weights.v_proj),
        }
    }

    /// Norm, RoPE, cache append, attention and gate of an attention layer: `[rows, heads * 256]`.
    fn attend(
        &mut self,
        inputs: &AttentionInputs<Self::Tensor>,
        weights: &Attention<Self::Parts>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor {
        let ready = self.qk_prep(&inputs.q_gate, &inputs.k, weights, batch);
        self.kv_append(&ready.k, &inputs.v, layer, batch);
        let o = self.attention(&ready.q, layer, batch);
        self.attention_gate(&o, &inputs.q_gate)
    }

    /// Output projection and residual: `x += weight y`.
    fn out_proj(&mut self, x: &mut Self::Tensor, y: &Self::Tensor, weight: &MatrixOf<Self>) {
        let y = self.linear(y, weight);
        self.add(x, &y);
    }

    /// Norm, router and choice of experts; `x` is the residual stream.
    fn route(
        &mut self,
        x: &Self::Tensor,
        norm: &VectorOf<Self>,
        weights: &Moe<Self::Parts>,
    ) -> Routed<Self::Tensor, Self::Routing> {
        let h = self.rms_norm(x, norm);
        let logits = self.linear(&h, &weights.gate);
        let routing = self.top_k_softmax(&logits);
        let shared_gate = self.linear(&h, &weights.shared_expert_gate);
        Routed { h, routing, shared_gate }
    }

    /// Gate, up and SwiGLU of the chosen and the shared experts.
    fn experts_up(
        &mut self,
        routed: &Routed<Self::Tensor, Self::Routing>,
        weights: &Moe<Self::Parts>,
    ) -> ExpertActivations<Self::Tensor> {
        let (h, routing) = (&routed.h, &routed.routing);
        let gate = self.expert_linear(h, ExpertInput::PerRow, routing, &weights.gate_proj);
        let up = self.expert_linear(h, ExpertInput::PerRow, routing, &weights.up_proj);
        let shared_gate = self.linear(h, &weights.shared_gate_proj);
        let shared_up = self.linear(h, &weights.shared_up_proj);
        ExpertActivations {
            routed: self.swiglu(&gate, &up),
            shared: self.swiglu(&shared_gate, &shared_up),
        }
    }

    /// Down projections, weighted sum and residual of the experts.
    fn experts_down(
        &mut self,
        x: &mut Self::Tensor,
        routed: &Routed<Self::Tensor, Self::Routing>,
        activations: &ExpertActivations<Self::Tensor>,
        weights: &Moe<Self::Parts>,
    ) {
        let y = self.expert_linear(
            &activations.routed,
            ExpertInput::PerPair,
            &routed.routing,
            &weights.down_proj,
        );
        let shared = self.linear(&activations.shared, &weights.shared_down_proj);
        self.combine(x, &y, &routed.routing, &shared, &routed.shared_gate);
    }

    /// Last norm and output projection of the rows whose logits are wanted: `[outputs, vocabulary]`.
    fn lm_head(
        &mut self,
        x: &Self::Tensor,
        rows: &[usize],
        norm: &VectorOf<Self>,
        weight: &MatrixOf<Self>,
    ) -> Self::Tensor {
        let x = self.select_rows(x, rows);
        let h = self.rms_norm(&x, norm);
        self.linear(&h, weight)
    }
}
