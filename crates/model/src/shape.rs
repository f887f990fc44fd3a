//! The shape of one model of the family: fixed constants, validated widths and counts.

use std::fmt;

/// Width of one attention head.
pub const HEAD_DIM: usize = 256;
/// Leading dimensions of each attention head that rotary embedding turns (a quarter of [`HEAD_DIM`]).
pub const ROTARY_DIM: usize = 64;
/// Width of one Gated DeltaNet key head and of one value head: a head's state is 128 x 128.
pub const DELTA_HEAD_DIM: usize = 128;
/// Taps of the causal depthwise convolution in front of Gated DeltaNet.
pub const CONV_TAPS: usize = 4;
/// Tokens in one KV cache page; also the chunk of the chunked Gated DeltaNet form.
pub const PAGE_TOKENS: usize = 64;
/// Added to the *sum* of squares when a DeltaNet query or key is normalised (not the RMS epsilon).
pub const L2_NORM_EPS: f32 = 1e-6;

const _: () = assert!(ROTARY_DIM * 4 == HEAD_DIM, "partial_rotary_factor of the family is 0.25");
// A page boundary is a chunk boundary, so a state snapshot taken at one never splits the other.
const _: () = assert!(PAGE_TOKENS == 64);

/// Which token mixer a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Gated DeltaNet: a recurrent state of constant size (`linear_attention` in config.json).
    DeltaNet,
    /// Gated softmax attention over a KV cache (`full_attention` in config.json).
    Attention,
}

/// Widths and counts of one model. Built by [`crate::Config::parse`], whose checks hold from then on:
/// every count is at least 1, head counts divide as attention needs, and `top_k <= experts`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Rows of the embedding and of `lm_head` (padded beyond the tokenizer's ids).
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Mixer of each layer, bottom to top.
    pub layers: Vec<LayerKind>,
    /// Query heads of attention.
    pub attention_heads: usize,
    /// Key and value heads of attention; divides `attention_heads`.
    pub kv_heads: usize,
    /// Key (and query) heads of DeltaNet.
    pub delta_key_heads: usize,
    /// Value heads of DeltaNet; a multiple of `delta_key_heads`.
    pub delta_value_heads: usize,
    /// Routed experts per layer.
    pub experts: usize,
    /// Routed experts that one token uses.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub expert_hidden: usize,
    /// Inner width of the shared expert.
    pub shared_hidden: usize,
    /// Epsilon added to the mean of squares in RMS norms.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Longest context the model was made for, in tokens.
    pub max_positions: usize,
    /// `lm_head` is the embedding matrix.
    pub tied_embeddings: bool,
    /// Multi-token-prediction layers that the configuration announces (0 or 1).
    pub mtp_layers: usize,
}

impl Shape {
    /// The published Qwen3.6-35B-A3B, with `layers` of its 40 layers.
    #[must_use]
    pub fn full(layers: usize) -> Self {
        Self {
            vocab_size: 248_320,
            hidden: 2048,
            layers: schedule(layers, 4),
            attention_heads: 16,
            kv_heads: 2,
            delta_key_heads: 16,
            delta_value_heads: 32,
            experts: 256,
            top_k: 8,
            expert_hidden: 512,
            shared_hidden: 512,
            rms_norm_eps: 1e-6,
            rope_theta: 1e7,
            max_positions: 262_144,
            tied_embeddings: false,
            mtp_layers: 1,
        }
    }

    /// The demo checkpoint that lies in the repository.
    #[must_use]
    pub fn demo() -> Self {
        Self {
            vocab_size: 4096,
            hidden: 256,
            layers: schedule(8, 4),
            attention_heads: 8,
            kv_heads: 2,
            delta_key_heads: 2,
            delta_value_heads: 4,
            experts: 32,
            top_k: 8,
            expert_hidden: 64,
            shared_hidden: 64,
            rms_norm_eps: 1e-6,
            rope_theta: 1e7,
            max_positions: 32_768,
            tied_embeddings: false,
            mtp_layers: 1,
        }
    }

    /// Width of all attention queries of a row: heads x 256.
    #[must_use]
    pub fn query_dim(&self) -> usize {
        self.attention_heads * HEAD_DIM
    }

    /// Width of all attention keys (or values) of a row: kv heads x 256.
    #[must_use]
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * HEAD_DIM
    }

    /// Width of all DeltaNet keys (or queries) of a row.
    #[must_use]
    pub fn delta_key_dim(&self) -> usize {
        self.delta_key_heads * DELTA_HEAD_DIM
    }

    /// Width of all DeltaNet values of a row.
    #[must_use]
    pub fn delta_value_dim(&self) -> usize {
        self.delta_value_heads * DELTA_HEAD_DIM
    }

    /// Channels of the convolution: queries, keys and values side by side.
    #[must_use]
    pub fn conv_dim(&self) -> usize {
        2 * self.delta_key_dim() + self.delta_value_dim()
    }

    /// Elements of one sequence's DeltaNet state in one layer: value heads x 128 x 128.
    #[must_use]
    pub fn delta_state_len(&self) -> usize {
        self.delta_value_heads * DELTA_HEAD_DIM * DELTA_HEAD_DIM
    }

    /// Elements of one sequence's convolution window in one layer: the last 3 rows before the convolution.
    #[must_use]
    pub fn conv_state_len(&self) -> usize {
        (CONV_TAPS - 1) * self.conv_dim()
    }

    /// Number of layers with a given mixer.
    #[must_use]
    pub fn layers_of(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&k| k == kind).count()
    }
}

/// The family's schedule: every `interval`-th layer is attention, the others are DeltaNet.
#[must_use]
pub fn schedule(layers: usize, interval: usize) -> Vec<LayerKind> {
    (1..=layers)
        .map(|i| if i % interval == 0 { LayerKind::Attention } else { LayerKind::DeltaNet })
        .collect()
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} layers ({} DeltaNet, {} attention), hidden {}, {} query / {} kv heads, \
             {} key / {} value DeltaNet heads, {} experts of {} (top {}), shared {}, vocabulary {}",
            self.layers.len(),
            self.layers_of(LayerKind::DeltaNet),
            self.layers_of(LayerKind::Attention),
            self.hidden,
            self.attention_heads,
            self.kv_heads,
            self.delta_key_heads,
            self.delta_value_heads,
            self.experts,
            self.expert_hidden,
            self.top_k,
            self.shared_hidden,
            self.vocab_size
        )
    }
}
