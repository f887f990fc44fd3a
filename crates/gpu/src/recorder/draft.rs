//! Records the multi-token-prediction layer: what a step keeps for it, and one draft.
//!
//! It is `calla_ops::mtp`, with the decoder layer that all backends share.

use super::Recorder;
use super::decode::Decode;
use super::tape::{Bindings, Tape};
use crate::argmax::argmax;
use crate::mtp_rows::{keep_rows, previous_rows, side_by_side};
use crate::plan::{Part, Recording};
use crate::products::Product;
use crate::rms_norm::rms_norm;
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuParts;
use calla_model::network::{Mixer, Mtp};
use calla_model::{Network, Shape};
use calla_ops::Batch;
use calla_ops::forward::decoder_layer;

/// Keeps the rows that drafts start from, and writes the draft layer's keys and values: those of a row's token, from
/// the row before it. `x` is the residual stream after the last layer.
pub(super) fn keep<'a, R: Recorder<'a>>(
    recorder: &mut R,
    network: &Network<GpuParts>,
    mtp: &Mtp<GpuParts>,
    kept: Tensor,
    x: Tensor,
) {
    let tape = recorder.tape();
    tape.enter(Part::Draft, "draft");
    let h = tape.rms_norm(x, network.norm, Dtype::F32);
    let previous = tape.tensor(x.rows, tape.shape.hidden, Dtype::F32);
    let tables = tape.bindings.tables;
    tape.push(previous_rows(h, kept, &tables, previous));
    tape.push(keep_rows(h, kept, &tables));
    let x = layer_input(recorder, network, mtp, previous);
    let Mixer::Attention(weights) = &mtp.layer.mixer else {
        panic!("the draft layer is an attention layer")
    };
    // Nobody attends here; queries are computed as their projection shares a dispatch with the keys'.
    let inputs = recorder.attention_in_proj(&x, &mtp.layer.input_layernorm, weights);
    let layer = recorder.tape().draft_layer();
    recorder.tape().qk_prep(&inputs, weights, layer);
}

/// What a guess works on, beside a step's bindings.
#[derive(Clone, Copy, Debug)]
pub struct DraftBindings {
    /// Hidden rows, f32 `[n, hidden]`: those in front of the rows' tokens, then those of the guesses.
    pub hidden: Tensor,
    /// Only tokens below this one are guessed.
    pub vocab_used: u32,
    /// Receives the guesses, u32 `[n, 1]`.
    pub guesses: Tensor,
}

/// Records one greedy guess for each row, from its hidden row and its token (`bindings.tables.tokens`), which leaves
/// logits in `bindings.logits`. `batch` has a span of one row for each.
///
/// # Panics
/// If the network has no draft layer, or bindings are not those of the shape and the batch.
#[must_use]
pub fn record_draft(
    shape: &Shape,
    network: &Network<GpuParts>,
    batch: &Batch,
    bindings: Bindings<'_>,
    context: u32,
    draft: &DraftBindings,
) -> Recording {
    let mtp = network.mtp.as_ref().expect("a draft layer");
    let (logits, hidden) = (bindings.logits, draft.hidden);
    let mut recorder = Decode(Tape::new(shape, bindings, context));
    recorder.tape().enter(Part::Draft, "draft");
    let mut x = layer_input(&mut recorder, network, mtp, hidden);
    let layer = recorder.tape().draft_layer();
    decoder_layer(&mut recorder, &mtp.layer, &mut x, layer, batch);
    recorder.tape().push(rms_norm(x, mtp.norm, shape.rms_norm_eps, hidden));
    let weight = network.output_matrix();
    recorder.products(hidden, &[Product { weight, out: logits }], false);
    let tape = recorder.tape();
    let guesses = argmax(logits, draft.vocab_used, &mut tape.recording, draft.guesses);
    tape.extend(guesses);
    recorder.into_recording()
}

/// `fc [ RMS(embed[token]) ; RMS(hidden) ]`.
fn layer_input<'a, R: Recorder<'a>>(
    recorder: &mut R,
    network: &Network<GpuParts>,
    mtp: &Mtp<GpuParts>,
    hidden: Tensor,
) -> Tensor {
    let tape = recorder.tape();
    let embedded = tape.embed(&network.embed_tokens, hidden.rows as usize);
    let embedded = tape.rms_norm(embedded, mtp.pre_fc_norm_embedding, R::ACTIVATIONS);
    let hidden = tape.rms_norm(hidden, mtp.pre_fc_norm_hidden, R::ACTIVATIONS);
    let joined = tape.tensor(hidden.rows, 2 * tape.shape.hidden, R::ACTIVATIONS);
    tape.push(side_by_side(embedded, hidden, joined));
    let fc = tape.products(hidden.rows, [(&mtp.fc, Dtype::F32)]);
    recorder.products(joined, &fc, false);
    fc[0].out
}
