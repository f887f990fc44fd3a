//! What [`forward()`](crate::forward()) needs of a backend: the coarse operations alone.
//!
//! Whatever implements [`Ops`] has them. A backend that records instead of computing has no use for the fine ones, and
//! implements this trait itself.

use crate::batch::Batch;
use crate::ops::{AttentionInputs, DeltaInputs, ExpertActivations, Ops, Routed};
use calla_model::network::{Attention, DeltaNet, Moe};
use calla_model::{Parts, Shape};

/// A matrix handle of a backend.
pub type LayerMatrix<O> = <<O as LayerOps>::Parts as Parts>::Matrix;
/// A vector handle of a backend.
pub type LayerVector<O> = <<O as LayerOps>::Parts as Parts>::Vector;

/// The coarse operations of [`Ops`], where each is documented, and the embedding.
#[expect(missing_docs, reason = "the methods are those of `Ops`, which documents them")]
pub trait LayerOps {
    /// What weights are made of here.
    type Parts: Parts;
    /// Activations `[rows, cols]`.
    type Tensor;
    /// Experts and weights of each row.
    type Routing;

    fn shape(&self) -> &Shape;

    fn embed(&mut self, table: &LayerMatrix<Self>, tokens: &[u32]) -> Self::Tensor;

    fn delta_in_proj(
        &mut self,
        x: &Self::Tensor,
        norm: &LayerVector<Self>,
        weights: &DeltaNet<Self::Parts>,
    ) -> DeltaInputs<Self::Tensor>;

    fn delta_step(
        &mut self,
        inputs: &DeltaInputs<Self::Tensor>,
        weights: &DeltaNet<Self::Parts>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor;

    fn delta_out_proj(
        &mut self,
        x: &mut Self::Tensor,
        o: &Self::Tensor,
        z: &Self::Tensor,
        weights: &DeltaNet<Self::Parts>,
    );

    fn attention_in_proj(
        &mut self,
        x: &Self::Tensor,
        norm: &LayerVector<Self>,
        weights: &Attention<Self::Parts>,
    ) -> AttentionInputs<Self::Tensor>;

    fn attend(
        &mut self,
        inputs: &AttentionInputs<Self::Tensor>,
        weights: &Attention<Self::Parts>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor;

    fn out_proj(&mut self, x: &mut Self::Tensor, y: &Self::Tensor, weight: &LayerMatrix<Self>);

    fn route(
        &mut self,
        x: &Self::Tensor,
        norm: &LayerVector<Self>,
        weights: &Moe<Self::Parts>,
    ) -> Routed<Self::Tensor, Self::Routing>;

    fn experts_up(
        &mut self,
        routed: &Routed<Self::Tensor, Self::Routing>,
        weights: &Moe<Self::Parts>,
    ) -> ExpertActivations<Self::Tensor>;

    fn experts_down(
        &mut self,
        x: &mut Self::Tensor,
        routed: &Routed<Self::Tensor, Self::Routing>,
        activations: &ExpertActivations<Self::Tensor>,
        weights: &Moe<Self::Parts>,
    );

    fn lm_head(
        &mut self,
        x: &Self::Tensor,
        rows: &[usize],
        norm: &LayerVector<Self>,
        weight: &LayerMatrix<Self>,
    ) -> Self::Tensor;
}

/// Operations that compute have the coarse ones.
impl<O: Ops + ?Sized> LayerOps for O {
    type Parts = O::Parts;
    type Tensor = O::Tensor;
    type Routing = O::Routing;

    fn shape(&self) -> &Shape {
        Ops::shape(self)
    }

    fn embed(&mut self, table: &LayerMatrix<Self>, tokens: &[u32]) -> Self::Tensor {
        Ops::embed(self, table, tokens)
    }

    fn delta_in_proj(
        &mut self,
        x: &Self::Tensor,
        norm: &LayerVector<Self>,
        weights: &DeltaNet<Self::Parts>,
    ) -> DeltaInputs<Self::Tensor> {
        Ops::delta_in_proj(self, x, norm, weights)
    }

    fn delta_step(
        &mut self,
        inputs: &DeltaInputs<Self::Tensor>,
        weights: &DeltaNet<Self::Parts>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor {
        Ops::delta_step(self, inputs, weights, layer, batch)
    }

    fn delta_out_proj(
        &mut self,
        x: &mut Self::Tensor,
        o: &Self::Tensor,
        z: &Self::Tensor,
        weights: &DeltaNet<Self::Parts>,
    ) {
        Ops::delta_out_proj(self, x, o, z, weights);
    }

    fn attention_in_proj(
        &mut self,
        x: &Self::Tensor,
        norm: &LayerVector<Self>,
        weights: &Attention<Self::Parts>,
    ) -> AttentionInputs<Self::Tensor> {
        Ops::attention_in_proj(self, x, norm, weights)
    }

    fn attend(
        &mut self,
        inputs: &AttentionInputs<Self::Tensor>,
        weights: &Attention<Self::Parts>,
        layer: usize,
        batch: &Batch,
    ) -> Self::Tensor {
        Ops::attend(self, inputs, weights, layer, batch)
    }

    fn out_proj(&mut self, x: &mut Self::Tensor, y: &Self::Tensor, weight: &LayerMatrix<Self>) {
        Ops::out_proj(self, x, y, weight);
    }

    fn route(
        &mut self,
        x: &Self::Tensor,
        norm: &LayerVector<Self>,
        weights: &Moe<Self::Parts>,
    ) -> Routed<Self::Tensor, Self::Routing> {
        Ops::route(self, x, norm, weights)
    }

    fn experts_up(
        &mut self,
        routed: &Routed<Self::Tensor, Self::Routing>,
        weights: &Moe<Self::Parts>,
    ) -> ExpertActivations<Self::Tensor> {
        Ops::experts_up(self, routed, weights)
    }

    fn experts_down(
        &mut self,
        x: &mut Self::Tensor,
        routed: &Routed<Self::Tensor, Self::Routing>,
        activations: &ExpertActivations<Self::Tensor>,
        weights: &Moe<Self::Parts>,
    ) {
        Ops::experts_down(self, x, routed, activations, weights);
    }

    fn lm_head(
        &mut self,
        x: &Self::Tensor,
        rows: &[usize],
        norm: &LayerVector<Self>,
        weight: &LayerMatrix<Self>,
    ) -> Self::Tensor {
        Ops::lm_head(self, x, rows, norm, weight)
    }
}
