//! Records spans of few rows: each weight is read once for up to eight rows, activations stay f32.
//!
//! A layer is seven dispatches (DeltaNet) or nine (attention). Norms, SwiGLU, gates, residuals and the choice of experts
//! happen inside the products beside them, and the shared expert runs beside the router.

use super::Recorder;
use super::tape::{Chosen, Tape, dispatches, product};
use crate::combine::combine;
use crate::expert_qmv::{expert_qmv_down, expert_qmv_up};
use crate::expert_qmv_grouped::{expert_qmv_grouped_down, expert_qmv_grouped_up};
use crate::plan::{Part, Recording};
use crate::products::Product;
use crate::qmv::{Input, qmv, qmv_swiglu};
use crate::tensor::{Dtype, Tensor};
use crate::top_k::top_k;
use crate::weights::{GpuMatrix, GpuParts};
use crate::{attention_decode, delta_step};
use calla_model::Shape;
use calla_model::network::{Attention, DeltaNet, Moe};
use calla_ops::ops::{AttentionInputs, DeltaInputs, ExpertActivations, Routed};
use calla_ops::{Batch, LayerOps};

/// Rows from which on an expert's weights are read once for all that chose it. For fewer, that saves less than the choice
/// before and the sum behind cost as dispatches of their own. A row's results are the same bits either way.
const GROUPED_FROM: u32 = 9;

/// Records decode rows.
pub struct Decode<'a>(pub(super) Tape<'a>);

impl Decode<'_> {
    /// Products with one input.
    fn multiply(&mut self, input: Input, products: &[Product<'_>], add: bool) {
        for group in dispatches(products) {
            self.0.push(qmv(input, &group, add));
        }
    }

    fn normed(&self, x: Tensor, scale: Tensor) -> Input {
        Input::Normed { x, scale, eps: self.0.shape.rms_norm_eps }
    }
}

impl LayerOps for Decode<'_> {
    type Parts = GpuParts;
    type Tensor = Tensor;
    type Routing = Chosen;

    fn shape(&self) -> &Shape {
        self.0.shape
    }

    fn embed(&mut self, table: &GpuMatrix, tokens: &[u32]) -> Tensor {
        self.0.embed(table, tokens.len())
    }

    fn delta_in_proj(
        &mut self,
        x: &Tensor,
        norm: &Tensor,
        weights: &DeltaNet<GpuParts>,
    ) -> DeltaInputs<Tensor> {
        super::delta_in_proj(self, *x, *norm, weights)
    }

    fn delta_step(
        &mut self,
        inputs: &DeltaInputs<Tensor>,
        weights: &DeltaNet<GpuParts>,
        layer: usize,
        _: &Batch,
    ) -> Tensor {
        let shape = self.0.shape;
        let out = self.0.tensor(inputs.qkv.rows, shape.delta_value_dim(), Dtype::F32);
        let (slots, tables) = (&self.0.bindings.delta[layer], &self.0.bindings.tables);
        let &DeltaInputs { qkv, b, a, .. } = inputs;
        let dispatch = delta_step::delta_step(shape, qkv, b, a, weights, slots, tables, out);
        self.0.push(dispatch);
        out
    }

    fn delta_out_proj(
        &mut self,
        x: &mut Tensor,
        o: &Tensor,
        z: &Tensor,
        weights: &DeltaNet<GpuParts>,
    ) {
        let (o, z, scale) = (*o, *z, weights.norm);
        let input = Input::GatedNormed { o, z, scale, eps: self.0.shape.rms_norm_eps };
        self.multiply(input, &[product((&weights.out_proj, *x))], true);
    }

    fn attention_in_proj(
        &mut self,
        x: &Tensor,
        norm: &Tensor,
        weights: &Attention<GpuParts>,
    ) -> AttentionInputs<Tensor> {
        super::attention_in_proj(self, *x, *norm, weights)
    }

    fn attend(
        &mut self,
        inputs: &AttentionInputs<Tensor>,
        weights: &Attention<GpuParts>,
        layer: usize,
        _: &Batch,
    ) -> Tensor {
        let q = self.0.qk_prep(inputs, weights, layer);
        let out = self.0.tensor(q.rows, self.0.shape.query_dim(), Dtype::F32);
        let Tape { shape, bindings, context, recording, .. } = &mut self.0;
        let attended = attention_decode::attention_decode(
            shape,
            q,
            inputs.q_gate,
            &bindings.attention[layer],
            &bindings.tables,
            *context,
            recording,
            out,
        );
        self.0.extend(attended);
        out
    }

    fn out_proj(&mut self, x: &mut Tensor, y: &Tensor, weight: &GpuMatrix) {
        self.multiply(Input::Plain(*y), &[product((weight, *x))], true);
    }

    fn route(
        &mut self,
        x: &Tensor,
        norm: &Tensor,
        weights: &Moe<GpuParts>,
    ) -> Routed<Tensor, Chosen> {
        self.0.same_layer(Part::Moe);
        let products = self.0.router_products(x.rows, weights);
        self.normed_products(*x, *norm, &products);
        let [logits, shared_gate] = products.map(|product| product.out);
        let routing = self.0.routing(x.rows);
        // The experts' products norm the rows, and of few rows choose the experts themselves.
        if x.rows >= GROUPED_FROM {
            self.0.push(top_k(self.0.shape, logits, &routing));
        }
        Routed {
            h: *x,
            routing: Chosen { norm: *norm, logits, routing, grouped: None },
            shared_gate,
        }
    }

    fn experts_up(
        &mut self,
        routed: &Routed<Tensor, Chosen>,
        weights: &Moe<GpuParts>,
    ) -> ExpertActivations<Tensor> {
        let (shape, x) = (self.0.shape, routed.h);
        let Chosen { norm, logits, routing, .. } = &routed.routing;
        let shared = self.0.tensor(x.rows, shape.shared_hidden, Dtype::F32);
        let (gate, up) = (&weights.shared_gate_proj, &weights.shared_up_proj);
        self.0.push(qmv_swiglu(self.normed(x, *norm), gate, up, shared));
        let activations = self.0.tensor(routing.pairs(), shape.expert_hidden, Dtype::F32);
        let (gate, up) = (&weights.gate_proj, &weights.up_proj);
        let eps = shape.rms_norm_eps;
        let dispatch = if x.rows >= GROUPED_FROM {
            expert_qmv_grouped_up(shape, x, *norm, eps, routing, gate, up, activations)
        } else {
            expert_qmv_up(shape, x, *norm, eps, *logits, gate, up, routing, activations)
        };
        self.0.push(dispatch);
        ExpertActivations { routed: activations, shared }
    }

    fn experts_down(
        &mut self,
        x: &mut Tensor,
        routed: &Routed<Tensor, Chosen>,
        activations: &ExpertActivations<Tensor>,
        weights: &Moe<GpuParts>,
    ) {
        let (shape, routing) = (self.0.shape, &routed.routing.routing);
        let &ExpertActivations { routed: acts, shared: shared_acts } = activations;
        let (down, shared_down) = (&weights.down_proj, &weights.shared_down_proj);
        let gate = routed.shared_gate;
        if x.rows >= GROUPED_FROM {
            let out = self.0.tensor(routing.pairs(), shape.hidden, Dtype::F32);
            let shared = self.0.tensor(x.rows, shape.hidden, Dtype::F32);
            self.0.push(expert_qmv_grouped_down(
                shape,
                acts,
                routing,
                shared_acts,
                down,
                shared_down,
                out,
                shared,
            ));
            self.0.push(combine(shape, *x, out, routing, shared, gate));
        } else {
            self.0.push(expert_qmv_down(
                shape,
                acts,
                routing,
                shared_acts,
                gate,
                down,
                shared_down,
                *x,
            ));
        }
    }

    fn lm_head(&mut self, x: &Tensor, rows: &[usize], norm: &Tensor, weight: &GpuMatrix) -> Tensor {
        self.0.lm_head(*x, rows.len(), *norm, weight)
    }
}

impl<'a> Recorder<'a> for Decode<'a> {
    const ACTIVATIONS: Dtype = Dtype::F32;

    fn tape(&mut self) -> &mut Tape<'a> {
        &mut self.0
    }

    fn normed_products(&mut self, x: Tensor, norm: Tensor, products: &[Product<'_>]) {
        self.multiply(self.normed(x, norm), products, false);
    }

    fn products(&mut self, x: Tensor, products: &[Product<'_>], add: bool) {
        self.multiply(Input::Plain(x), products, add);
    }

    fn into_recording(self) -> Recording {
        self.0.recording
    }
}
