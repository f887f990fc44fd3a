//! Bytes and flops of a model, as code: what weights weigh, what a step must move, what memory holds.
//!
//! All numbers follow from the [`Shape`] and the stored format of each module; nothing here is measured.
//! A floor in seconds is bytes over bandwidth or flops over rate, whichever is larger.

use crate::format::AffineFormat;
use crate::network::{Layer, Mixer, Moe, Mtp, Network, Parts, Source, VectorKind};
use crate::shape::{LayerKind, PAGE_TOKENS, Shape};
use std::convert::Infallible;

/// Sizes instead of weights: the network as a bill of bytes.
#[derive(Clone, Copy, Debug)]
pub struct SizeParts;

/// Dimensions and bytes of one module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes as stored.
    pub bytes: u64,
    /// Number of values.
    pub values: u64,
}

impl Parts for SizeParts {
    type Matrix = Size;
    type Experts = Size;
    type Vector = Size;
}

/// Sizes of a checkpoint in the format that the published MLX 4-bit conversion has: 4 bits in groups of
/// 64 everywhere, 8 bits for routers and shared-expert gates, bf16 for vectors.
#[derive(Clone, Copy, Debug)]
pub struct Mlx4Bit {
    /// Count the multi-token-prediction layer too.
    pub mtp: bool,
}

/// Format that the published MLX conversion gives module `name`.
#[must_use]
pub fn mlx_4bit_format(name: &str) -> AffineFormat {
    if name.ends_with("mlp.gate") || name.ends_with("mlp.shared_expert_gate") {
        AffineFormat::Q8_64
    } else {
        AffineFormat::Q4_64
    }
}

impl Source<SizeParts> for Mlx4Bit {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Size, Infallible> {
        let format = mlx_4bit_format(name);
        let row = format.packed_row_bytes(cols) + 2 * 2 * cols.div_ceil(format.group());
        Ok(Size { bytes: rows as u64 * row as u64, values: rows as u64 * cols as u64 })
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Size, Infallible> {
        self.matrix(&format!("{layer_mlp}.{projection}"), count * rows, cols)
    }

    fn vector(&mut self, _: &str, _: VectorKind, len: usize) -> Result<Size, Infallible> {
        Ok(Size { bytes: 2 * len as u64, values: len as u64 })
    }

    fn has_mtp(&self) -> bool {
        self.mtp
    }
}

/// Bytes of a network by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartBytes {
    /// Token embedding.
    pub embedding: u64,
    /// DeltaNet mixers with their norms.
    pub delta_net: u64,
    /// Attention mixers with their norms.
    pub attention: u64,
    /// Routed experts.
    pub experts: u64,
    /// Shared experts.
    pub shared_experts: u64,
    /// Routers and shared-expert gates.
    pub routers: u64,
    /// Output projection and last norm (0 where tied to the embedding).
    pub lm_head: u64,
    /// Multi-token-prediction layer.
    pub mtp: u64,
}

impl PartBytes {
    /// Sums a network of sizes.
    #[must_use]
    pub fn of(network: &Network<SizeParts>) -> Self {
        let mut sum = Self {
            embedding: network.embed_tokens.bytes,
            lm_head: network.lm_head.map_or(0, |m| m.bytes) + network.norm.bytes,
            ..Self::default()
        };
        for layer in &network.layers {
            sum.add_layer(layer);
        }
        if let Some(mtp) = &network.mtp {
            sum.mtp = mtp_bytes(mtp);
        }
        sum
    }

    fn add_layer(&mut self, layer: &Layer<SizeParts>) {
        let mixer = mixer_bytes(&layer.mixer) + layer.input_layernorm.bytes;
        match layer.mixer {
            Mixer::DeltaNet(_) => self.delta_net += mixer,
            Mixer::Attention(_) => self.attention += mixer,
        }
        self.experts += expert_bytes(&layer.moe);
        self.shared_experts += shared_bytes(&layer.moe);
        self.routers += router_bytes(&layer.moe) + layer.post_attention_layernorm.bytes;
    }

    /// All parts together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.embedding
            + self.delta_net
            + self.attention
            + self.experts
            + self.shared_experts
            + self.routers
            + self.lm_head
            + self.mtp
    }
}

fn mixer_bytes(mixer: &Mixer<SizeParts>) -> u64 {
    match mixer {
        Mixer::DeltaNet(m) => [m.in_proj_qkv, m.in_proj_z, m.in_proj_b, m.in_proj_a, m.out_proj]
            .iter()
            .chain(&[m.conv1d, m.a_log, m.dt_bias, m.norm])
            .map(|s| s.bytes)
            .sum(),
        Mixer::Attention(m) => [m.q_proj, m.k_proj, m.v_proj, m.o_proj, m.q_norm, m.k_norm]
            .iter()
            .map(|s| s.bytes)
            .sum(),
    }
}

fn expert_bytes(moe: &Moe<SizeParts>) -> u64 {
    moe.gate_proj.bytes + moe.up_proj.bytes + moe.down_proj.bytes
}

fn shared_bytes(moe: &Moe<SizeParts>) -> u64 {
    moe.shared_gate_proj.bytes + moe.shared_up_proj.bytes + moe.shared_down_proj.bytes
}

fn router_bytes(moe: &Moe<SizeParts>) -> u64 {
    moe.gate.bytes + moe.shared_expert_gate.bytes
}

fn mtp_bytes(mtp: &Mtp<SizeParts>) -> u64 {
    let mut layer = PartBytes::default();
    layer.add_layer(&mtp.layer);
    layer.total()
        + mtp.fc.bytes
        + mtp.norm.bytes
        + mtp.pre_fc_norm_embedding.bytes
        + mtp.pre_fc_norm_hidden.bytes
}

/// Rows of sequences that run in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Sequences, at least one.
    pub sequences: usize,
    /// Rows of each, at least one. The last has logits.
    pub rows: usize,
    /// Tokens of each after the step: at least its rows.
    pub context: usize,
}

/// Weight bytes that decoding one token must read: everything but the embedding (one row of it), and
/// `top_k` of the routed experts.
#[must_use]
pub fn decode_weight_bytes(shape: &Shape, parts: &PartBytes) -> u64 {
    step_weight_bytes(shape, parts, 1)
}

/// Weight bytes of a step of so many rows, each read once: of the routed experts as many as rows choose if no two
/// choose the same.
fn step_weight_bytes(shape: &Shape, parts: &PartBytes, rows: usize) -> u64 {
    let embedding_row = parts.embedding / shape.vocab_size as u64;
    let head = if shape.tied_embeddings { parts.embedding } else { 0 } + parts.lm_head;
    let experts = (rows * shape.top_k).min(shape.experts) as u64;
    embedding_row * rows as u64
        + parts.delta_net
        + parts.attention
        + parts.experts / shape.experts as u64 * experts
        + parts.shared_experts
        + parts.routers
        + head
}

/// The least bytes that a step moves, if no two rows choose the same expert: each weight once, the recurrent state of
/// each sequence in and out, keys and values of its context in and those of its rows out. An element of these and of
/// convolution windows has `element_bytes` bytes.
#[must_use]
pub fn step_bytes(shape: &Shape, parts: &PartBytes, step: StepSize, element_bytes: usize) -> u64 {
    let StepSize { sequences, rows, context } = step;
    let state = decode_state_bytes(shape, element_bytes)
        + kv_token_bytes(shape, element_bytes) * (context + rows) as u64;
    step_weight_bytes(shape, parts, sequences * rows) + sequences as u64 * state
}

/// Bytes of recurrent state that decoding one token reads and writes, with an f32 state and a convolution
/// window whose elements have `conv_bytes` bytes.
#[must_use]
pub fn decode_state_bytes(shape: &Shape, conv_bytes: usize) -> u64 {
    2 * recurrent_state_bytes(shape, conv_bytes)
}

/// Bytes of one sequence's recurrent state: DeltaNet states in f32 and convolution windows.
#[must_use]
pub fn recurrent_state_bytes(shape: &Shape, conv_bytes: usize) -> u64 {
    let layer = shape.delta_state_len() * 4 + shape.conv_state_len() * conv_bytes;
    shape.layers_of(LayerKind::DeltaNet) as u64 * layer as u64
}

/// Bytes of KV cache per token of context, with `element_bytes` per stored value.
#[must_use]
pub fn kv_token_bytes(shape: &Shape, element_bytes: usize) -> u64 {
    shape.layers_of(LayerKind::Attention) as u64 * layer_kv_token_bytes(shape, element_bytes)
}

/// Bytes of KV cache of a sequence of `tokens`, in whole pages.
#[must_use]
pub fn kv_bytes(shape: &Shape, tokens: usize, element_bytes: usize) -> u64 {
    whole_pages(tokens) * kv_token_bytes(shape, element_bytes)
}

/// Bytes of one layer's key and value of a token.
fn layer_kv_token_bytes(shape: &Shape, element_bytes: usize) -> u64 {
    (2 * shape.kv_dim() * element_bytes) as u64
}

/// Tokens that the pages for `tokens` hold.
fn whole_pages(tokens: usize) -> u64 {
    (tokens.div_ceil(PAGE_TOKENS) * PAGE_TOKENS) as u64
}

/// Bytes that drafting adds to the KV cache per token of context: the multi-token-prediction layer's keys and
/// values. What it adds to a network that has no such layer, or does not draft, is nothing.
#[must_use]
pub fn draft_kv_token_bytes(shape: &Shape, element_bytes: usize) -> u64 {
    layer_kv_token_bytes(shape, element_bytes)
}

/// Bytes that drafting adds to the KV cache of a sequence of `tokens`, in whole pages: as [`kv_bytes`].
#[must_use]
pub fn draft_kv_bytes(shape: &Shape, tokens: usize, element_bytes: usize) -> u64 {
    whole_pages(tokens) * draft_kv_token_bytes(shape, element_bytes)
}

/// Bytes that drafting adds to one sequence's recurrent state and to each snapshot of it: the last hidden
/// row, in f32.
#[must_use]
pub fn draft_state_bytes(shape: &Shape) -> u64 {
    (shape.hidden * 4) as u64
}

/// Multiply-adds x 2 of one token at context `context`: matrix products, DeltaNet recurrence, attention.
/// Prefill of n tokens costs the sum over its positions (without `lm_head`, which runs once).
#[must_use]
pub fn token_flops(shape: &Shape, network: &Network<SizeParts>, context: usize) -> u64 {
    let mut multiply_adds = network.output_values();
    for layer in &network.layers {
        multiply_adds += match &layer.mixer {
            Mixer::DeltaNet(m) => {
                // Decay, read, write, read: three multiply-adds per element of the state.
                let recurrence = 3 * shape.delta_state_len() as u64;
                [m.in_proj_qkv, m.in_proj_z, m.in_proj_b, m.in_proj_a, m.out_proj, m.conv1d]
                    .iter()
                    .map(|s| s.values)
                    .sum::<u64>()
                    + recurrence
            }
            Mixer::Attention(m) => {
                let scores_and_values = 2 * (shape.query_dim() * context) as u64;
                [m.q_proj, m.k_proj, m.v_proj, m.o_proj].iter().map(|s| s.values).sum::<u64>()
                    + scores_and_values
            }
        };
        let moe = &layer.moe;
        let routed = moe.gate_proj.values + moe.up_proj.values + moe.down_proj.values;
        multiply_adds += routed * shape.top_k as u64 / shape.experts as u64;
        multiply_adds += [
            moe.gate,
            moe.shared_expert_gate,
            moe.shared_gate_proj,
            moe.shared_up_proj,
            moe.shared_down_proj,
        ]
        .iter()
        .map(|s| s.values)
        .sum::<u64>();
    }
    2 * multiply_adds
}

/// Floating-point operations of a step: those of [`token_flops`] for each row, with logits for the last one of each
/// sequence.
#[must_use]
pub fn step_flops(shape: &Shape, network: &Network<SizeParts>, step: StepSize) -> u64 {
    let [sequences, rows, context] = [step.sequences, step.rows, step.context].map(|n| n as u64);
    let head = 2 * network.output_values();
    let first = token_flops(shape, network, 0);
    let position = token_flops(shape, network, 1) - first;
    // Rows see context - rows + 1, ..., context positions.
    let seen = rows * (2 * context - rows + 1) / 2;
    sequences * (rows * (first - head) + seen * position + head)
}

impl Network<SizeParts> {
    fn output_values(&self) -> u64 {
        self.output_matrix().values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> (Shape, Network<SizeParts>) {
        let shape = Shape::full(40);
        let network = Network::build(&shape, &mut Mlx4Bit { mtp: false }).unwrap();
        (shape, network)
    }

    #[test]
    fn full_size_equals_the_published_text_bytes() {
        // 20,401,929,952 bytes of the published MLX checkpoint less 893,142,496 of its vision tower.
        assert_eq!(PartBytes::of(&full().1).total(), 19_508_787_456);
    }

    #[test]
    fn decode_traffic_of_the_full_size() {
        let (shape, network) = full();
        let weights = decode_weight_bytes(&shape, &PartBytes::of(&network));
        assert!((1.66e9..1.68e9).contains(&(weights as f64)), "{weights}");
        assert_eq!(kv_token_bytes(&shape, 2), 20_480);
        assert_eq!(recurrent_state_bytes(&shape, 2), 62_914_560 + 1_474_560);
        // A tenth of the main model's ten attention layers, and a row of 2048.
        assert_eq!(draft_kv_token_bytes(&shape, 2), 2_048);
        assert_eq!(draft_state_bytes(&shape), 8_192);
        let flops = token_flops(&shape, &network, 0) as f64;
        assert!((5.5e9..6.2e9).contains(&flops), "{flops}");
    }

    #[test]
    fn steps_are_sums_of_their_tokens() {
        let (shape, network) = full();
        let parts = PartBytes::of(&network);
        let decode = StepSize { sequences: 1, rows: 1, context: 4096 };
        let token = decode_weight_bytes(&shape, &parts)
            + decode_state_bytes(&shape, 2)
            + kv_token_bytes(&shape, 2) * 4097;
        assert_eq!(step_bytes(&shape, &parts, decode, 2), token);
        assert_eq!(step_flops(&shape, &network, decode), token_flops(&shape, &network, 4096));

        // Of two sequences the weights that are not routed are read once.
        let two = step_bytes(&shape, &parts, StepSize { sequences: 2, ..decode }, 2);
        assert!(two < 2 * token && two > token + parts.experts / 32, "{two}");

        // 256 rows choose all experts; the embedding is read by its rows alone.
        let slice = StepSize { sequences: 1, rows: 256, context: 300 };
        let weights = parts.total() - parts.embedding + parts.embedding / 248_320 * 256;
        let state = decode_state_bytes(&shape, 2) + kv_token_bytes(&shape, 2) * 556;
        assert_eq!(step_bytes(&shape, &parts, slice, 2), weights + state);
        let head = 2 * network.output_values();
        let rows = (45..=300).map(|context| token_flops(&shape, &network, context) - head);
        assert_eq!(step_flops(&shape, &network, slice), rows.sum::<u64>() + head);
    }

    #[test]
    fn whole_pages_are_counted() {
        let shape = Shape::demo();
        assert_eq!(kv_bytes(&shape, 1, 4), 64 * kv_token_bytes(&shape, 4));
        assert_eq!(kv_bytes(&shape, 0, 4), 0);
        assert_eq!(draft_kv_bytes(&shape, 65, 4), 128 * draft_kv_token_bytes(&shape, 4));
    }
}
