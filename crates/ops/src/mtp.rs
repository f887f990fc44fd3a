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

use crate::batch::Batch;
use crate::forward::decoder_layer;
use crate::runner::HostOps;
use crate::tensor::Rows;
use calla_model::Network;
use calla_model::network::Mtp;

/// What the layer says of each row.
pub struct Drafts {
    /// Hidden rows after the layer's norm `[rows, hidden]`: the next step's `hidden`.
    pub hidden: Rows,
    /// Logits of the token after the row's own `[rows, vocabulary]`.
    pub logits: Rows,
}

/// Runs the layer on `hidden` `[rows, hidden]`, the rows of positions `batch.spans()` after the main model's
/// last norm; `batch.tokens()` are the tokens that follow each of them. `ops` holds the layer's own KV cache
/// as its first attention layer, apart from the main model's.
pub fn mtp_forward<O: HostOps>(
    ops: &mut O,
    network: &Network<O::Parts>,
    mtp: &Mtp<O::Parts>,
    hidden: &Rows,
    batch: &Batch,
) -> Drafts {
    let embedded = ops.embed(&network.embed_tokens, batch.tokens());
    let embedded = ops.rms_norm(&embedded, &mtp.pre_fc_norm_embedding);
    let hidden = ops.rms_norm(hidden, &mtp.pre_fc_norm_hidden);
    let mut x = ops.linear(&side_by_side(&embedded, &hidden), &mtp.fc);
    decoder_layer(ops, &mtp.layer, &mut x, 0, batch);
    let hidden = ops.rms_norm(&x, &mtp.norm);
    let logits = ops.linear(&hidden, network.output_matrix());
    Drafts { hidden, logits }
}

fn side_by_side(left: &Rows, right: &Rows) -> Rows {
    let rows = left.iter().zip(right.iter());
    let values = rows.flat_map(|(left, right)| left.iter().chain(right)).copied().collect();
    Rows::from_vec(left.cols() + right.cols(), values)
}
