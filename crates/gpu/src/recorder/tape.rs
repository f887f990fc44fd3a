//! What both recorders write to, and what they bind.

use crate::dispatch::Dispatch;
use crate::embed::embed;
use crate::plan::{Part, Recording};
use crate::products::{PRODUCTS_MAX, Product};
use crate::qk_prep::qk_prep;
use crate::qmv::{Input, qmv};
use crate::rms_norm::rms_norm;
use crate::rotations::Rotations;
use crate::routing::{Grouped, Routing};
use crate::scratch::Scratch;
use crate::shape_constants::width;
use crate::state::{DeltaSlots, KvPool};
use crate::tables::Tables;
use crate::tensor::{Dtype, Tensor};
use crate::weights::{GpuMatrix, GpuParts};
use calla_model::network::{Attention, Moe};
use calla_model::{LayerKind, Shape};
use calla_ops::ops::AttentionInputs;

/// What a step works on that outlives it.
#[derive(Clone, Copy, Debug)]
pub struct Bindings<'a> {
    /// What its rows are.
    pub tables: Tables,
    /// Angles of rotary embedding.
    pub rotations: Rotations,
    /// KV pages per attention layer; the draft layer's are the last when drafting.
    pub attention: &'a [KvPool],
    /// Recurrent state per DeltaNet layer.
    pub delta: &'a [DeltaSlots],
    /// When drafting: the last row of each sequence after the last norm, f32 `[slots, hidden]`.
    pub kept: Option<Tensor>,
    /// Receives the logits of the output rows, f32 `[outputs, vocabulary]`.
    pub logits: Tensor,
}

/// The choice of experts of some rows, and what it was made from.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// Scale of the norm in front of the experts, f32 `[1, hidden]`.
    pub(super) norm: Tensor,
    /// Router logits, f32 `[n, experts]`.
    pub(super) logits: Tensor,
    /// Experts and weights of each row.
    pub(super) routing: Routing,
    /// Rows sorted by expert, in a prefill.
    pub(super) grouped: Option<Grouped>,
}

/// Dispatches in the order in which the forward pass asks for them.
pub(super) struct Tape<'a> {
    pub(super) shape: &'a Shape,
    pub(super) bindings: Bindings<'a>,
    pub(super) context: u32,
    pub(super) recording: Recording,
    part: Part,
    /// In front of labels: `layers.3`.
    place: String,
    layers: usize,
}

impl<'a> Tape<'a> {
    pub(super) fn new(shape: &'a Shape, bindings: Bindings<'a>, context: u32) -> Self {
        Self {
            shape,
            bindings,
            context,
            recording: Recording::default(),
            part: Part::Embedding,
            place: String::new(),
            layers: 0,
        }
    }

    /// What follows is the mixer of the next layer.
    pub(super) fn next_layer(&mut self, part: Part) {
        // The draft layer comes after those of the network and stays a part of the draft.
        if self.part != Part::Draft {
            self.enter(part, format!("layers.{}", self.layers));
            self.layers += 1;
        }
    }

    /// What follows is a part of the layer at hand.
    pub(super) fn same_layer(&mut self, part: Part) {
        if self.part != Part::Draft {
            self.part = part;
        }
    }

    /// What follows is `part`, named `place` in labels.
    pub(super) fn enter(&mut self, part: Part, place: impl Into<String>) {
        (self.part, self.place) = (part, place.into());
    }

    /// Which attention layer of the cache is the draft layer's.
    pub(super) fn draft_layer(&self) -> usize {
        self.shape.layers_of(LayerKind::Attention)
    }

    pub(super) fn push(&mut self, dispatch: Dispatch) {
        let label = if self.place.is_empty() {
            dispatch.entry.to_owned()
        } else {
            format!("{} {}", self.place, dispatch.entry)
        };
        self.recording.push(self.part, dispatch.label(label));
    }

    pub(super) fn extend(&mut self, dispatches: Vec<Dispatch>) {
        dispatches.into_iter().for_each(|dispatch| self.push(dispatch));
    }

    pub(super) fn tensor(&mut self, rows: u32, cols: usize, dtype: Dtype) -> Tensor {
        self.recording.tensor(rows, width(cols), dtype)
    }

    /// Products of `rows` rows with `matrices`, into new tensors of a type each.
    pub(super) fn products<'w, const N: usize>(
        &mut self,
        rows: u32,
        matrices: [(&'w GpuMatrix, Dtype); N],
    ) -> [Product<'w>; N] {
        matrices.map(|(weight, dtype)| {
            let out = self.recording.tensor(rows, weight.rows, dtype);
            Product { weight, out }
        })
    }

    /// Those with the router and the gate of the shared expert.
    pub(super) fn router_products<'w>(
        &mut self,
        rows: u32,
        weights: &'w Moe<GpuParts>,
    ) -> [Product<'w>; 2] {
        let matrices = [&weights.gate, &weights.shared_expert_gate];
        self.products(rows, matrices.map(|matrix| (matrix, Dtype::F32)))
    }

    pub(super) fn embed(&mut self, table: &GpuMatrix, rows: usize) -> Tensor {
        let tokens = self.bindings.tables.tokens;
        assert_eq!(tokens.rows as usize, rows, "tables of another batch");
        let out = self.tensor(tokens.rows, self.shape.hidden, Dtype::F32);
        self.push(embed(table, tokens, out));
        out
    }

    /// RMS norm of rows in f32.
    pub(super) fn rms_norm(&mut self, x: Tensor, scale: Tensor, dtype: Dtype) -> Tensor {
        let out = self.recording.tensor(x.rows, x.cols, dtype);
        self.push(rms_norm(x, scale, self.shape.rms_norm_eps, out));
        out
    }

    /// Norm, RoPE and cache append of activations: queries.
    pub(super) fn qk_prep(
        &mut self,
        inputs: &AttentionInputs<Tensor>,
        weights: &Attention<GpuParts>,
        layer: usize,
    ) -> Tensor {
        let &AttentionInputs { q_gate, k, v } = inputs;
        let q = self.tensor(q_gate.rows, self.shape.query_dim(), q_gate.dtype);
        let Bindings { tables, rotations, attention, .. } = &self.bindings;
        let (shape, pool) = (self.shape, &attention[layer]);
        self.push(qk_prep(shape, q_gate, k, v, weights, rotations, tables, pool, q));
        q
    }

    /// Logits of the output rows: the same products in a prefill as in a decode.
    pub(super) fn lm_head(
        &mut self,
        x: Tensor,
        outputs: usize,
        norm: Tensor,
        weight: &GpuMatrix,
    ) -> Tensor {
        let (rows, out) = (self.bindings.tables.outputs, self.bindings.logits);
        assert_eq!(rows.rows as usize, outputs, "tables of another batch");
        self.enter(Part::LmHead, "lm_head");
        if outputs > 0 {
            let input = Input::Selected { x, rows, scale: norm, eps: self.shape.rms_norm_eps };
            self.push(qmv(input, &[Product { weight, out }], false));
        }
        out
    }

    pub(super) fn routing(&mut self, rows: u32) -> Routing {
        let experts = self.tensor(rows, self.shape.top_k, Dtype::U32);
        Routing { experts, weights: self.tensor(rows, self.shape.top_k, Dtype::F32) }
    }
}

/// A matrix and where its product goes.
pub(super) fn product((weight, out): (&GpuMatrix, Tensor)) -> Product<'_> {
    Product { weight, out }
}

/// Products of one input as dispatches take them: matrices of equal bits together, at most four.
pub(super) fn dispatches<'a>(products: &[Product<'a>]) -> Vec<Vec<Product<'a>>> {
    let mut groups: Vec<Vec<Product<'_>>> = vec![];
    for &product in products {
        let fits = |group: &&mut Vec<Product<'_>>| {
            group.len() < PRODUCTS_MAX && group[0].weight.bits == product.weight.bits
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(product),
            None => groups.push(vec![product]),
        }
    }
    groups
}
