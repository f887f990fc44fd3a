//! The network as a tree of modules, and the one walk that builds it from any source of weights.
//!
//! The tree is generic over what stands for a weight ([`Parts`]): checkpoint views, a backend's handles,
//! or mere descriptions. [`Network::build`] asks a [`Source`] for every module by its canonical name and
//! dimensions; it is the only place that knows which modules exist.

use crate::shape::{CONV_TAPS, DELTA_HEAD_DIM, HEAD_DIM, LayerKind, Shape};

/// What a network's weights are made of.
pub trait Parts {
    /// A weight matrix `[out, in]`.
    type Matrix;
    /// One matrix per expert, `[experts, out, in]`.
    type Experts;
    /// A small vector of f32 (norm scales and the like).
    type Vector;
}

/// Views into a checkpoint: what `weights` loads, and what the CPU and the reference compute with.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointParts;

impl Parts for CheckpointParts {
    type Matrix = crate::Matrix;
    type Experts = crate::Experts;
    type Vector = Vec<f32>;
}

/// What kind of small tensor a vector is; conventions differ between checkpoint layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorKind {
    /// Scale of an RMS norm. Raw Hugging Face files store it zero-centred (scale - 1).
    Norm,
    /// Scale of the gated RMS norm after DeltaNet; stored plain in every layout.
    GatedNorm,
    /// Convolution taps `[channels, 4]`, oldest tap first. HF stores `[C, 1, 4]`, MLX `[C, 4, 1]`.
    Conv,
    /// Logarithm of the decay rate per value head.
    ALog,
    /// Bias of the decay's softplus per value head.
    DtBias,
}

/// Where weights come from. Names are canonical: `model.layers.0.mlp.gate`, without prefixes of a
/// wrapper and without `.weight`.
pub trait Source<P: Parts> {
    /// Why a module cannot be had.
    type Error;

    /// The matrix `[rows, cols]` of module `name`.
    ///
    /// # Errors
    /// If the source has no such matrix.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<P::Matrix, Self::Error>;

    /// The `count` matrices `[rows, cols]` of routed experts; `layer_mlp` is `model.layers.0.mlp` and
    /// `projection` one of `gate_proj`, `up_proj`, `down_proj`.
    ///
    /// # Errors
    /// If the source has no such experts.
    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<P::Experts, Self::Error>;

    /// The vector `name` of `len` elements, as the value that the formula uses (a norm's full scale).
    ///
    /// # Errors
    /// If the source has no such vector.
    fn vector(
        &mut self,
        name: &str,
        kind: VectorKind,
        len: usize,
    ) -> Result<P::Vector, Self::Error>;

    /// Whether the source holds the tensors of the multi-token-prediction layer.
    fn has_mtp(&self) -> bool;
}

/// The whole decoder. Shapes in brackets are `[out, in]`; H is the hidden width, V the vocabulary.
pub struct Network<P: Parts> {
    /// Token embedding `[V, H]`.
    pub embed_tokens: P::Matrix,
    /// The layers, bottom to top.
    pub layers: Vec<Layer<P>>,
    /// Scale of the last RMS norm, H.
    pub norm: P::Vector,
    /// Output projection `[V, H]`; `None` when it is the embedding.
    pub lm_head: Option<P::Matrix>,
    /// Multi-token-prediction layer, when the checkpoint has one.
    pub mtp: Option<Mtp<P>>,
}

/// One decoder layer.
pub struct Layer<P: Parts> {
    /// Scale of the RMS norm before the mixer, H.
    pub input_layernorm: P::Vector,
    /// The token mixer.
    pub mixer: Mixer<P>,
    /// Scale of the RMS norm before the experts, H.
    pub post_attention_layernorm: P::Vector,
    /// The mixture of experts.
    pub moe: Moe<P>,
}

/// A layer's token mixer.
pub enum Mixer<P: Parts> {
    /// Gated DeltaNet.
    DeltaNet(DeltaNet<P>),
    /// Gated attention.
    Attention(Attention<P>),
}

/// Weights of a Gated DeltaNet mixer. K and D: key and value widths, C = 2K + D channels.
pub struct DeltaNet<P: Parts> {
    /// Queries, keys, values `[C, H]`.
    pub in_proj_qkv: P::Matrix,
    /// Output gate `[D, H]`.
    pub in_proj_z: P::Matrix,
    /// Write strength `[value heads, H]`.
    pub in_proj_b: P::Matrix,
    /// Decay input `[value heads, H]`.
    pub in_proj_a: P::Matrix,
    /// Convolution taps `[C, 4]`, the last tap for the newest token.
    pub conv1d: P::Vector,
    /// Log decay rate, one per value head.
    pub a_log: P::Vector,
    /// Decay bias, one per value head.
    pub dt_bias: P::Vector,
    /// Scale of the gated norm, 128, shared by the heads.
    pub norm: P::Vector,
    /// Output projection `[H, D]`.
    pub out_proj: P::Matrix,
}

/// Weights of a gated attention mixer.
pub struct Attention<P: Parts> {
    /// Per head 256 query rows, then 256 gate rows: `[heads * 512, H]`.
    pub q_proj: P::Matrix,
    /// Keys `[kv heads * 256, H]`.
    pub k_proj: P::Matrix,
    /// Values `[kv heads * 256, H]`.
    pub v_proj: P::Matrix,
    /// Scale of the per-head query norm, 256.
    pub q_norm: P::Vector,
    /// Scale of the per-head key norm, 256.
    pub k_norm: P::Vector,
    /// Output projection `[H, heads * 256]`.
    pub o_proj: P::Matrix,
}

/// Weights of a mixture of experts. E experts, inner widths I (routed) and S (shared).
pub struct Moe<P: Parts> {
    /// Router `[E, H]`.
    pub gate: P::Matrix,
    /// Gate of the shared expert `[1, H]`.
    pub shared_expert_gate: P::Matrix,
    /// Shared expert's SwiGLU gate `[S, H]`.
    pub shared_gate_proj: P::Matrix,
    /// Shared expert's up projection `[S, H]`.
    pub shared_up_proj: P::Matrix,
    /// Shared expert's down projection `[H, S]`.
    pub shared_down_proj: P::Matrix,
    /// Routed SwiGLU gates `[E, I, H]`.
    pub gate_proj: P::Experts,
    /// Routed up projections `[E, I, H]`.
    pub up_proj: P::Experts,
    /// Routed down projections `[E, H, I]`.
    pub down_proj: P::Experts,
}

/// The multi-token-prediction layer: drafts the token after next (DeepSeek-V3 report, section 2.2).
pub struct Mtp<P: Parts> {
    /// Norm of the embedding half of the input, H.
    pub pre_fc_norm_embedding: P::Vector,
    /// Norm of the hidden half of the input, H.
    pub pre_fc_norm_hidden: P::Vector,
    /// Joins both halves `[H, 2H]`, embedding first.
    pub fc: P::Matrix,
    /// An attention layer with its own KV cache.
    pub layer: Layer<P>,
    /// Norm before `lm_head`, H.
    pub norm: P::Vector,
}

impl<P: Parts> Network<P> {
    /// Builds the tree, asking `source` for every module exactly once.
    ///
    /// # Errors
    /// The first error of the source.
    pub fn build<S: Source<P>>(shape: &Shape, source: &mut S) -> Result<Self, S::Error> {
        let (vocab, hidden) = (shape.vocab_size, shape.hidden);
        Ok(Self {
            embed_tokens: source.matrix("model.embed_tokens", vocab, hidden)?,
            layers: shape
                .layers
                .iter()
                .enumerate()
                .map(|(i, &kind)| Layer::build(shape, kind, &format!("model.layers.{i}"), source))
                .collect::<Result<_, _>>()?,
            norm: source.vector("model.norm", VectorKind::Norm, hidden)?,
            lm_head: if shape.tied_embeddings {
                None
            } else {
                Some(source.matrix("lm_head", vocab, hidden)?)
            },
            mtp: if source.has_mtp() { Some(Mtp::build(shape, source)?) } else { None },
        })
    }

    /// The output projection: `lm_head`, or the embedding where they are tied.
    pub fn output_matrix(&self) -> &P::Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }
}

impl<P: Parts> Layer<P> {
    fn build<S: Source<P>>(
        shape: &Shape,
        kind: LayerKind,
        path: &str,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let norm = |source: &mut S, name: &str| {
            source.vector(&format!("{path}.{name}"), VectorKind::Norm, shape.hidden)
        };
        Ok(Self {
            input_layernorm: norm(source, "input_layernorm")?,
            mixer: match kind {
                LayerKind::DeltaNet => Mixer::DeltaNet(DeltaNet::build(shape, path, source)?),
                LayerKind::Attention => Mixer::Attention(Attention::build(shape, path, source)?),
            },
            post_attention_layernorm: norm(source, "post_attention_layernorm")?,
            moe: Moe::build(shape, &format!("{path}.mlp"), source)?,
        })
    }
}

impl<P: Parts> DeltaNet<P> {
    fn build<S: Source<P>>(shape: &Shape, path: &str, source: &mut S) -> Result<Self, S::Error> {
        let path = format!("{path}.linear_attn");
        let name = |module: &str| format!("{path}.{module}");
        let (hidden, heads) = (shape.hidden, shape.delta_value_heads);
        let (channels, values) = (shape.conv_dim(), shape.delta_value_dim());
        Ok(Self {
            in_proj_qkv: source.matrix(&name("in_proj_qkv"), channels, hidden)?,
            in_proj_z: source.matrix(&name("in_proj_z"), values, hidden)?,
            in_proj_b: source.matrix(&name("in_proj_b"), heads, hidden)?,
            in_proj_a: source.matrix(&name("in_proj_a"), heads, hidden)?,
            conv1d: source.vector(&name("conv1d"), VectorKind::Conv, channels * CONV_TAPS)?,
            a_log: source.vector(&name("A_log"), VectorKind::ALog, heads)?,
            dt_bias: source.vector(&name("dt_bias"), VectorKind::DtBias, heads)?,
            norm: source.vector(&name("norm"), VectorKind::GatedNorm, DELTA_HEAD_DIM)?,
            out_proj: source.matrix(&name("out_proj"), hidden, values)?,
        })
    }
}

impl<P: Parts> Attention<P> {
    fn build<S: Source<P>>(shape: &Shape, path: &str, source: &mut S) -> Result<Self, S::Error> {
        let path = format!("{path}.self_attn");
        let name = |module: &str| format!("{path}.{module}");
        let (hidden, queries, keys) = (shape.hidden, shape.query_dim(), shape.kv_dim());
        Ok(Self {
            q_proj: source.matrix(&name("q_proj"), 2 * queries, hidden)?,
            k_proj: source.matrix(&name("k_proj"), keys, hidden)?,
            v_proj: source.matrix(&name("v_proj"), keys, hidden)?,
            q_norm: source.vector(&name("q_norm"), VectorKind::Norm, HEAD_DIM)?,
            k_norm: source.vector(&name("k_norm"), VectorKind::Norm, HEAD_DIM)?,
            o_proj: source.matrix(&name("o_proj"), hidden, queries)?,
        })
    }
}

impl<P: Parts> Moe<P> {
    fn build<S: Source<P>>(shape: &Shape, path: &str, source: &mut S) -> Result<Self, S::Error> {
        let name = |module: &str| format!("{path}.{module}");
        let (hidden, experts) = (shape.hidden, shape.experts);
        let (inner, shared) = (shape.expert_hidden, shape.shared_hidden);
        Ok(Self {
            gate: source.matrix(&name("gate"), experts, hidden)?,
            shared_expert_gate: source.matrix(&name("shared_expert_gate"), 1, hidden)?,
            shared_gate_proj: source.matrix(&name("shared_expert.gate_proj"), shared, hidden)?,
            shared_up_proj: source.matrix(&name("shared_expert.up_proj"), shared, hidden)?,
            shared_down_proj: source.matrix(&name("shared_expert.down_proj"), hidden, shared)?,
            gate_proj: source.experts(path, "gate_proj", experts, inner, hidden)?,
            up_proj: source.experts(path, "up_proj", experts, inner, hidden)?,
            down_proj: source.experts(path, "down_proj", experts, hidden, inner)?,
        })
    }
}

impl<P: Parts> Mtp<P> {
    fn build<S: Source<P>>(shape: &Shape, source: &mut S) -> Result<Self, S::Error> {
        let hidden = shape.hidden;
        let norm = |source: &mut S, name: &str| source.vector(name, VectorKind::Norm, hidden);
        Ok(Self {
            pre_fc_norm_embedding: norm(source, "mtp.pre_fc_norm_embedding")?,
            pre_fc_norm_hidden: norm(source, "mtp.pre_fc_norm_hidden")?,
            fc: source.matrix("mtp.fc", hidden, 2 * hidden)?,
            layer: Layer::build(shape, LayerKind::Attention, "mtp.layers.0", source)?,
            norm: norm(source, "mtp.norm")?,
        })
    }
}
