//! The multi-token-prediction layer: drafts the token after the next one.
//!
//! Given the main model's hidden row `h_i` *after its last norm* and the next token `x_{i+1}`:
//!
//! ```text
//! c = fc [ RMS(embed[x_{i+1}]; pre_fc_norm_embedding) ; RMS(h_i; pre_fc_norm_hidden) ]
//! m = RMS(attention layer(c) at position i; norm);   logits of token i + 2 = lm_head m
//! ```
//!
//! To draft further, `m` takes the place of `h` with the drafted token. (DeepSeek-V3 report, section 2.2;
//! Qwen3.5's layer is a whole decoder layer with experts.)
//!
//! Here a row's entry in the layer's KV cache lies at the position of its *token*: position p holds what
//! `(h_{p-1}, x_p)` gives, with `h_{-1} = 0`. Rotary positions count differences only, so that is the same
//! layer, and its pages cover exactly the tokens that the main model's do.

use crate::batch::Batch;
use crate::forward::decoder_layer;
use crate::runner::HostOps;
use crate::tensor::Rows;
use calla_model::Network;
use calla_model::network::{Mixer, Mtp};

/// What the layer says of each row.
pub struct MtpRows {
    /// Hidden rows after the layer's norm `[rows, hidden]`: the next step's `hidden`.
    pub hidden: Rows,
    /// Logits of the token after the row's own `[rows, vocabulary]`.
    pub logits: Rows,
}

/// Runs the layer on `hidden` `[rows, hidden]`, rows after the main model's last norm; `batch.tokens()` are
/// the tokens that follow each of them. `layer` counts attention layers: where `ops` holds the KV cache.
pub fn mtp_forward<O: HostOps>(
    ops: &mut O,
    network: &Network<O::Parts>,
    mtp: &Mtp<O::Parts>,
    hidden: &Rows,
    layer: usize,
    batch: &Batch,
) -> MtpRows {
    let mut x = layer_input(ops, network, mtp, hidden, batch);
    decoder_layer(ops, &mtp.layer, &mut x, layer, batch);
    let hidden = ops.rms_norm(&x, &mtp.norm);
    let logits = ops.linear(&hidden, network.output_matrix());
    MtpRows { hidden, logits }
}

/// Only writes the keys and values that [`mtp_forward`] would: they depend on nothing before them, as there
/// is one layer.
///
/// # Panics
/// If the layer is not an attention layer, as every network's is.
pub(crate) fn mtp_append<O: HostOps>(
    ops: &mut O,
    network: &Network<O::Parts>,
    mtp: &Mtp<O::Parts>,
    hidden: &Rows,
    layer: usize,
    batch: &Batch,
) {
    let x = layer_input(ops, network, mtp, hidden, batch);
    let Mixer::Attention(weights) = &mtp.layer.mixer else {
        panic!("the draft layer is an attention layer")
    };
    let h = ops.rms_norm(&x, &mtp.layer.input_layernorm);
    let (k, v) = (ops.linear(&h, &weights.k_proj), ops.linear(&h, &weights.v_proj));
    // Nobody attends here, and the queries' projection is nine tenths of the three at full width.
    let no_queries = Rows::zeros(h.rows(), 2 * ops.shape().query_dim());
    let ready = ops.qk_prep(&no_queries, &k, weights, batch);
    ops.kv_append(&ready.k, &v, layer, batch);
}

/// `fc [ RMS(embed[token]) ; RMS(hidden) ]`.
fn layer_input<O: HostOps>(
    ops: &mut O,
    network: &Network<O::Parts>,
    mtp: &Mtp<O::Parts>,
    hidden: &Rows,
    batch: &Batch,
) -> Rows {
    let embedded = ops.embed(&network.embed_tokens, batch.tokens());
    let embedded = ops.rms_norm(&embedded, &mtp.pre_fc_norm_embedding);
    let hidden = ops.rms_norm(hidden, &mtp.pre_fc_norm_hidden);
    ops.linear(&side_by_side(&embedded, &hidden), &mtp.fc)
}

fn side_by_side(left: &Rows, right: &Rows) -> Rows {
    let rows = left.iter().zip(right.iter());
    let values = rows.flat_map(|(left, right)| left.iter().chain(right)).copied().collect();
    Rows::from_vec(left.cols() + right.cols(), values)
}
