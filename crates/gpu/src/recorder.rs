//! Records the network's one forward pass as dispatches: what [`calla_ops::forward()`] calls on a GPU.
//!
//! There are two recorders, as there are two arithmetics: [`Decode`] for spans of few rows, of which each is computed
//! as it would be alone, and [`Prefill`] for spans of many. They record the same network with other kernels.

mod decode;
mod draft;
mod generate;
mod prefill;
mod tape;

pub use decode::Decode;
pub use draft::{DraftBindings, record_draft};
pub use generate::{Feedback, record_generation};
pub use prefill::Prefill;
pub use tape::{Bindings, Chosen};

use crate::plan::{Part, Recording};
use crate::products::Product;
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuParts;
use calla_model::network::{Attention, DeltaNet};
use calla_model::{Network, Shape};
use calla_ops::forward::residual_stream;
use calla_ops::ops::{AttentionInputs, DeltaInputs};
use calla_ops::{Batch, LayerOps, SpanKind};
use tape::Tape;

/// Records one step: the forward pass of a batch whose spans are all of one kind, with the logits of its output rows
/// in `bindings.logits`.
///
/// `context`: the most positions that any row sees. No result depends on it; it sizes decode attention, and what traffic
/// and operations are said to be.
///
/// With `bindings.kept`, the rows that drafts start from are kept and the draft layer's keys and values written, as
/// `calla_ops::runner` does.
///
/// # Panics
/// If `bindings` are not those of the shape and the batch, or spans are of both kinds.
#[must_use]
pub fn record_step(
    shape: &Shape,
    network: &Network<GpuParts>,
    batch: &Batch,
    bindings: Bindings<'_>,
    context: u32,
) -> Recording {
    let kind = batch.spans()[0].kind;
    assert!(batch.spans().iter().all(|span| span.kind == kind), "spans of two kinds");
    let tape = Tape::new(shape, bindings, context);
    match kind {
        SpanKind::Decode => step(Decode(tape), network, batch).into_recording(),
        SpanKind::Prefill => step(Prefill(tape), network, batch).into_recording(),
    }
}

fn step<'a, R: Recorder<'a>>(mut recorder: R, network: &Network<GpuParts>, batch: &Batch) -> R {
    let x = residual_stream(&mut recorder, network, batch, |_, _| {});
    recorder.lm_head(&x, batch.outputs(), &network.norm, network.output_matrix());
    let kept = recorder.tape().bindings.kept;
    if let Some((kept, mtp)) = kept.zip(network.mtp.as_ref()) {
        draft::keep(&mut recorder, network, mtp, kept, x);
    }
    recorder
}

/// What the recorders are beside their layers.
trait Recorder<'a>: LayerOps<Parts = GpuParts, Tensor = Tensor, Routing = Chosen> {
    /// Type of activations.
    const ACTIVATIONS: Dtype;

    /// What is recorded.
    fn tape(&mut self) -> &mut Tape<'a>;

    /// Products with rows of the residual stream after their norm.
    fn normed_products(&mut self, x: Tensor, norm: Tensor, products: &[Product<'_>]);

    /// Products with activations.
    fn products(&mut self, x: Tensor, products: &[Product<'_>], add: bool);

    /// What was recorded.
    fn into_recording(self) -> Recording;
}

/// Norm and input projections of the next layer, a DeltaNet one. What the convolution takes is always bf16, and what decides
/// over decays and writes f32.
fn delta_in_proj<'a, R: Recorder<'a>>(
    recorder: &mut R,
    x: Tensor,
    norm: Tensor,
    weights: &DeltaNet<GpuParts>,
) -> DeltaInputs<Tensor> {
    recorder.tape().next_layer(Part::DeltaNet);
    let matrices = [
        (&weights.in_proj_qkv, Dtype::Bf16),
        (&weights.in_proj_z, R::ACTIVATIONS),
        (&weights.in_proj_b, Dtype::F32),
        (&weights.in_proj_a, Dtype::F32),
    ];
    let products = recorder.tape().products(x.rows, matrices);
    recorder.normed_products(x, norm, &products);
    let [qkv, z, b, a] = products.map(|product| product.out);
    DeltaInputs { qkv, z, b, a }
}

/// Norm and input projections of the next layer, an attention one.
fn attention_in_proj<'a, R: Recorder<'a>>(
    recorder: &mut R,
    x: Tensor,
    norm: Tensor,
    weights: &Attention<GpuParts>,
) -> AttentionInputs<Tensor> {
    recorder.tape().next_layer(Part::Attention);
    let matrices = [&weights.q_proj, &weights.k_proj, &weights.v_proj];
    let matrices = matrices.map(|matrix| (matrix, R::ACTIVATIONS));
    let products = recorder.tape().products(x.rows, matrices);
    recorder.normed_products(x, norm, &products);
    let [q_gate, k, v] = products.map(|product| product.out);
    AttentionInputs { q_gate, k, v }
}
