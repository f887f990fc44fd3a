//! The oracle: every fine operation in its plainest form, nothing overridden.
//!
//! Values are f32; sums of products run in f64, so that its rounding is far below that of what it judges.

use crate::batch::Batch;
use crate::cache::{CacheError, CacheSize, HostCache};
use crate::experts::ExpertInput;
use crate::ops::{DeltaTerms, Ops, QueriesKeys};
use crate::route::Routing;
use crate::runner::HostOps;
use crate::tensor::Rows;
use crate::{
    attention, conv_silu, delta_prep, embed, experts, gated_delta, gated_norm, linear, qk_prep,
    rms_norm, route, swiglu,
};
use calla_model::network::{Attention, CheckpointParts, DeltaNet};
use calla_model::{Experts, Matrix, Shape};

/// Which form of the DeltaNet recurrence the reference runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaForm {
    /// Token by token.
    Recurrent,
    /// In chunks of so many tokens.
    Chunked(usize),
}

/// The reference backend with its state.
pub struct Reference {
    shape: Shape,
    cache: HostCache,
    delta_form: DeltaForm,
}

impl Reference {
    /// A reference that runs the recurrence token by token.
    ///
    /// # Errors
    /// If there is not the memory for its state.
    pub fn new(shape: Shape, size: CacheSize) -> Result<Self, CacheError> {
        Self::with_delta_form(shape, size, DeltaForm::Recurrent)
    }

    /// A reference that runs the recurrence in a given form.
    ///
    /// # Errors
    /// If there is not the memory for its state.
    pub fn with_delta_form(
        shape: Shape,
        size: CacheSize,
        delta_form: DeltaForm,
    ) -> Result<Self, CacheError> {
        let cache = HostCache::new(&shape, size)?;
        Ok(Self { shape, cache, delta_form })
    }
}

impl HostOps for Reference {
    fn cache(&self) -> &HostCache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut HostCache {
        &mut self.cache
    }

    fn arithmetic(&self) -> String {
        match self.delta_form {
            DeltaForm::Recurrent => "reference".to_owned(),
            DeltaForm::Chunked(chunk) => format!("reference-chunks-of-{chunk}"),
        }
    }
}

impl Ops for Reference {
    type Parts = CheckpointParts;
    type Tensor = Rows;
    type Routing = Routing;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32]) -> Rows {
        embed::reference(table, tokens)
    }

    fn select_rows(&mut self, x: &Rows, rows: &[usize]) -> Rows {
        Rows::from_vec(x.cols(), rows.iter().flat_map(|&r| x.row(r)).copied().collect())
    }

    fn rms_norm(&mut self, x: &Rows, scale: &Vec<f32>) -> Rows {
        rms_norm::reference(x, scale, self.shape.rms_norm_eps)
    }

    fn linear(&mut self, x: &Rows, weight: &Matrix) -> Rows {
        linear::reference(x, weight)
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        for (x, y) in x.as_mut_slice().iter_mut().zip(y.as_slice()) {
            *x += y;
        }
    }

    fn conv_silu(&mut self, qkv: &Rows, taps: &Vec<f32>, layer: usize, batch: &Batch) -> Rows {
        let mut y = Rows::zeros(qkv.rows(), qkv.cols());
        let state = &mut self.cache.delta[layer];
        for span in batch.spans() {
            for (rows, checkpoint) in span.pieces() {
                conv_silu::reference(qkv, taps, rows, state.windows.entry_mut(span.slot), &mut y);
                if let Some(checkpoint) = checkpoint {
                    state.windows.copy(span.slot, checkpoint);
                }
            }
        }
        y
    }

    fn delta_prep(
        &mut self,
        qkv: &Rows,
        b: &Rows,
        a: &Rows,
        weights: &DeltaNet<CheckpointParts>,
    ) -> DeltaTerms<Rows> {
        delta_prep::reference(&self.shape, qkv, b, a, weights)
    }

    fn gated_delta(&mut self, terms: &DeltaTerms<Rows>, layer: usize, batch: &Batch) -> Rows {
        let mut o = Rows::zeros(terms.v.rows(), terms.v.cols());
        let (shape, slots) = (&self.shape, &mut self.cache.delta[layer]);
        for span in batch.spans() {
            for (rows, checkpoint) in span.pieces() {
                let state = slots.states.entry_mut(span.slot);
                match self.delta_form {
                    DeltaForm::Recurrent => {
                        gated_delta::recurrent(shape, terms, rows, state, &mut o);
                    }
                    DeltaForm::Chunked(chunk) => {
                        gated_delta::chunked(shape, terms, rows, chunk, state, &mut o);
                    }
                }
                if let Some(checkpoint) = checkpoint {
                    slots.states.copy(span.slot, checkpoint);
                }
            }
        }
        o
    }

    fn gated_norm(&mut self, o: &Rows, z: &Rows, scale: &Vec<f32>) -> Rows {
        gated_norm::reference(o, z, scale, self.shape.rms_norm_eps)
    }

    fn qk_prep(
        &mut self,
        q_gate: &Rows,
        k: &Rows,
        weights: &Attention<CheckpointParts>,
        batch: &Batch,
    ) -> QueriesKeys<Rows> {
        qk_prep::reference(&self.shape, q_gate, k, weights, batch)
    }

    fn kv_append(&mut self, k: &Rows, v: &Rows, layer: usize, batch: &Batch) {
        for span in batch.spans() {
            attention::append(k, v, span, &mut self.cache.attention[layer]);
        }
    }

    fn attention(&mut self, q: &Rows, layer: usize, batch: &Batch) -> Rows {
        let mut o = Rows::zeros(q.rows(), q.cols());
        for span in batch.spans() {
            attention::reference(&self.shape, q, span, &self.cache.attention[layer], &mut o);
        }
        o
    }

    fn attention_gate(&mut self, o: &Rows, q_gate: &Rows) -> Rows {
        attention::gate(o, q_gate)
    }

    fn top_k_softmax(&mut self, router_logits: &Rows) -> Routing {
        route::reference(router_logits, self.shape.top_k)
    }

    fn expert_linear(
        &mut self,
        x: &Rows,
        input: ExpertInput,
        routing: &Routing,
        weights: &Experts,
    ) -> Rows {
        experts::expert_linear(x, input, routing, weights)
    }

    fn swiglu(&mut self, gate: &Rows, up: &Rows) -> Rows {
        swiglu::reference(gate, up)
    }

    fn combine(
        &mut self,
        x: &mut Rows,
        routed: &Rows,
        routing: &Routing,
        shared: &Rows,
        shared_gate: &Rows,
    ) {
        experts::combine(x, routed, routing, shared, shared_gate);
    }
}
