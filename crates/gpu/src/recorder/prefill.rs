//! Records spans of many rows: products in tiles, the recurrence in chunks, experts over rows sorted by expert.
//!
//! Activations are bf16; the residual stream, router logits, gates and whatever is added to the stream are f32. No
//! result depends on the tiles chosen.

use super::Recorder;
use super::tape::{Bindings, Chosen, Tape, dispatches, product};
use crate::attention_prefill::attention_prefill;
use crate::combine::combine;
use crate::delta_prep::delta_prep;
use crate::expert_qmm::{expert_qmm_down, expert_qmm_up};
use crate::gated_delta::gated_delta;
use crate::gated_norm::gated_norm;
use crate::group_rows::group_rows;
use crate::plan::{Part, Recording};
use crate::products::Product;
use crate::qmm::{RowTile, qmm, qmm_swiglu};
use crate::routing::Grouped;
use crate::tensor::{Dtype, Tensor};
use crate::top_k::top_k;
use crate::weights::{GpuMatrix, GpuParts};
use calla_model::Shape;
use calla_model::network::{Attention, DeltaNet, Moe};
use calla_ops::ops::{AttentionInputs, DeltaInputs, DeltaTerms, ExpertActivations, Routed};
use calla_ops::{Batch, LayerOps};

/// Records prefill rows.
pub struct Prefill<'a>(pub(super) Tape<'a>);

/// Rows from which on larger tiles are used.
const LARGE_TILES_FROM: u32 = 128;
/// The same for pairs of an expert, on average.
const LARGE_BLOCKS_FROM: u32 = 48;

fn row_tile(rows: u32) -> RowTile {
    if rows < LARGE_TILES_FROM { RowTile::R32 } else { RowTile::R64 }
}

impl LayerOps for Prefill<'_> {
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
        let &DeltaInputs { qkv, b, a, .. } = inputs;
        let (shape, rows) = (self.0.shape, qkv.rows);
        let mut tensor = |cols, dtype| self.0.tensor(rows, cols, dtype);
        let (keys, values) = (shape.delta_key_dim(), shape.delta_value_dim());
        let terms = DeltaTerms {
            q: tensor(keys, Dtype::Bf16),
            k: tensor(keys, Dtype::Bf16),
            v: tensor(values, Dtype::Bf16),
            beta: tensor(shape.delta_value_heads, Dtype::F32),
            log_decay: tensor(shape.delta_value_heads, Dtype::F32),
        };
        let out = tensor(values, Dtype::Bf16);
        let Bindings { tables, delta, .. } = self.0.bindings;
        let slots = &delta[layer];
        self.0.push(delta_prep(shape, qkv, b, a, weights, slots, &tables, &terms));
        let dispatches = gated_delta(shape, &terms, slots, &tables, &mut self.0.recording, out);
        self.0.extend(dispatches);
        out
    }

    fn delta_out_proj(
        &mut self,
        x: &mut Tensor,
        o: &Tensor,
        z: &Tensor,
        weights: &DeltaNet<GpuParts>,
    ) {
        let normed = self.0.tensor(o.rows, self.0.shape.delta_value_dim(), Dtype::Bf16);
        self.0.push(gated_norm(*o, *z, weights.norm, self.0.shape.rms_norm_eps, normed));
        self.out_proj(x, &normed, &weights.out_proj);
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
        let (shape, context) = (self.0.shape, self.0.context);
        let out = self.0.tensor(q.rows, shape.query_dim(), Dtype::Bf16);
        let Bindings { tables, attention, .. } = self.0.bindings;
        let pool = &attention[layer];
        self.0.push(attention_prefill(shape, q, inputs.q_gate, pool, &tables, context, out));
        out
    }

    fn out_proj(&mut self, x: &mut Tensor, y: &Tensor, weight: &GpuMatrix) {
        self.products(*y, &[product((weight, *x))], true);
    }

    fn route(
        &mut self,
        x: &Tensor,
        norm: &Tensor,
        weights: &Moe<GpuParts>,
    ) -> Routed<Tensor, Chosen> {
        self.0.same_layer(Part::Moe);
        let shape = self.0.shape;
        let h = self.0.rms_norm(*x, *norm, Dtype::Bf16);
        let products = self.0.router_products(x.rows, weights);
        self.products(h, &products, false);
        let [logits, shared_gate] = products.map(|product| product.out);
        let routing = self.0.routing(x.rows);
        self.0.push(top_k(shape, logits, &routing));
        let pairs = routing.pairs();
        let large = pairs as usize >= LARGE_BLOCKS_FROM as usize * shape.experts;
        let block_rows = if large { RowTile::R64 } else { RowTile::R32 }.rows();
        let grouped = Grouped::new(shape, pairs, block_rows, &mut self.0.recording);
        let dispatches = group_rows(shape, &routing, &grouped, &mut self.0.recording);
        self.0.extend(dispatches);
        let routing = Chosen { norm: *norm, logits, routing, grouped: Some(grouped) };
        Routed { h, routing, shared_gate }
    }

    fn experts_up(
        &mut self,
        routed: &Routed<Tensor, Chosen>,
        weights: &Moe<GpuParts>,
    ) -> ExpertActivations<Tensor> {
        let (shape, h) = (self.0.shape, routed.h);
        let shared = self.0.tensor(h.rows, shape.shared_hidden, Dtype::Bf16);
        let (gate, up) = (&weights.shared_gate_proj, &weights.shared_up_proj);
        self.0.push(qmm_swiglu(h, gate, up, shared, row_tile(h.rows)));
        let grouped = grouped(routed);
        let activations = self.0.tensor(grouped.pairs.cols, shape.expert_hidden, Dtype::Bf16);
        let (gate, up) = (&weights.gate_proj, &weights.up_proj);
        self.0.push(expert_qmm_up(shape, h, gate, up, &grouped, activations));
        ExpertActivations { routed: activations, shared }
    }

    fn experts_down(
        &mut self,
        x: &mut Tensor,
        routed: &Routed<Tensor, Chosen>,
        activations: &ExpertActivations<Tensor>,
        weights: &Moe<GpuParts>,
    ) {
        let shape = self.0.shape;
        let grouped = grouped(routed);
        let pairs = self.0.tensor(grouped.pairs.cols, shape.hidden, Dtype::F32);
        let down = &weights.down_proj;
        self.0.push(expert_qmm_down(shape, activations.routed, down, &grouped, pairs));
        let shared = self.0.tensor(x.rows, shape.hidden, Dtype::F32);
        let down = product((&weights.shared_down_proj, shared));
        self.products(activations.shared, &[down], false);
        let routing = &routed.routing.routing;
        self.0.push(combine(shape, *x, pairs, routing, shared, routed.shared_gate));
    }

    fn lm_head(&mut self, x: &Tensor, rows: &[usize], norm: &Tensor, weight: &GpuMatrix) -> Tensor {
        self.0.lm_head(*x, rows.len(), *norm, weight)
    }
}

/// The rows sorted by expert.
fn grouped(routed: &Routed<Tensor, Chosen>) -> Grouped {
    routed.routing.grouped.expect("`route` of this recorder sorts rows")
}

impl<'a> Recorder<'a> for Prefill<'a> {
    const ACTIVATIONS: Dtype = Dtype::Bf16;

    fn tape(&mut self) -> &mut Tape<'a> {
        &mut self.0
    }

    fn normed_products(&mut self, x: Tensor, norm: Tensor, products: &[Product<'_>]) {
        let h = self.0.rms_norm(x, norm, Dtype::Bf16);
        self.products(h, products, false);
    }

    fn products(&mut self, x: Tensor, products: &[Product<'_>], add: bool) {
        for group in dispatches(products) {
            self.0.push(qmm(x, &group, add, row_tile(x.rows)));
        }
    }

    fn into_recording(self) -> Recording {
        self.0.recording
    }
}
