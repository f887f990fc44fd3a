//! The forward pass, written once for every backend.

use crate::batch::Batch;
use crate::layer_ops::LayerOps;
use calla_model::Network;
use calla_model::network::{Layer, Mixer};

/// Runs a batch through the network and returns the logits of its output rows `[outputs, vocabulary]`.
///
/// `after_layer` sees the residual stream after the embedding (index 0) and after each layer (index
/// i + 1); pass `|_, _| {}` where nobody looks.
pub fn forward<O: LayerOps>(
    ops: &mut O,
    network: &Network<O::Parts>,
    batch: &Batch,
    after_layer: impl FnMut(usize, &O::Tensor),
) -> O::Tensor {
    let x = residual_stream(ops, network, batch, after_layer);
    ops.lm_head(&x, batch.outputs(), &network.norm, network.output_matrix())
}

/// The residual stream of all rows after the last layer `[rows, hidden]`; otherwise as [`forward`].
pub fn residual_stream<O: LayerOps>(
    ops: &mut O,
    network: &Network<O::Parts>,
    batch: &Batch,
    mut after_layer: impl FnMut(usize, &O::Tensor),
) -> O::Tensor {
    let mut x = ops.embed(&network.embed_tokens, batch.tokens());
    after_layer(0, &x);
    // State is kept per kind of layer, so each kind counts for itself.
    let (mut deltas, mut attentions) = (0, 0);
    for (i, layer) in network.layers.iter().enumerate() {
        let index = match layer.mixer {
            Mixer::DeltaNet(_) => &mut deltas,
            Mixer::Attention(_) => &mut attentions,
        };
        decoder_layer(ops, layer, &mut x, *index, batch);
        *index += 1;
        after_layer(i + 1, &x);
    }
    x
}

/// One layer on the residual stream `x`; `index` counts layers of its mixer's kind.
pub fn decoder_layer<O: LayerOps>(
    ops: &mut O,
    layer: &Layer<O::Parts>,
    x: &mut O::Tensor,
    index: usize,
    batch: &Batch,
) {
    match &layer.mixer {
        Mixer::DeltaNet(weights) => {
            let inputs = ops.delta_in_proj(x, &layer.input_layernorm, weights);
            let o = ops.delta_step(&inputs, weights, index, batch);
            ops.delta_out_proj(x, &o, &inputs.z, weights);
        }
        Mixer::Attention(weights) => {
            let inputs = ops.attention_in_proj(x, &layer.input_layernorm, weights);
            let o = ops.attend(&inputs, weights, index, batch);
            ops.out_proj(x, &o, &weights.o_proj);
        }
    }
    let routed = ops.route(x, &layer.post_attention_layernorm, &layer.moe);
    let activations = ops.experts_up(&routed, &layer.moe);
    ops.experts_down(x, &routed, &activations, &layer.moe);
}
