//! What `calla info` shows of a checkpoint: its tensors, the format of each module, bytes by part.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::Error;
use crate::layout::is_mtp;
use crate::resolve::{Resolver, Stored, StoredExperts};
use calla_model::network::{Parts, Source};
use calla_model::{AffineFormat, FloatType, LayerKind, Network, Shape, VectorKind};
use std::fmt;

/// A part of the model, for sums of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Token embedding.
    Embedding,
    /// DeltaNet mixers with their norms.
    DeltaNet,
    /// Attention mixers with their norms.
    Attention,
    /// Routed experts.
    Experts,
    /// Shared experts.
    SharedExperts,
    /// Routers, shared-expert gates and the norms before them.
    Routers,
    /// Output projection and last norm.
    LmHead,
    /// Multi-token-prediction layer.
    Mtp,
    /// Vision tower: skipped.
    Vision,
    /// Anything that the model does not have; loading refuses it.
    Other,
}

impl Part {
    /// All parts in the order of the forward pass.
    pub const ALL: [Self; 10] = [
        Self::Embedding,
        Self::DeltaNet,
        Self::Attention,
        Self::Routers,
        Self::Experts,
        Self::SharedExperts,
        Self::LmHead,
        Self::Mtp,
        Self::Vision,
        Self::Other,
    ];

    /// Its name in user-facing text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::DeltaNet => "DeltaNet",
            Self::Attention => "attention",
            Self::Experts => "experts",
            Self::SharedExperts => "shared experts",
            Self::Routers => "routers",
            Self::LmHead => "lm_head",
            Self::Mtp => "MTP",
            Self::Vision => "vision (skipped)",
            Self::Other => "other",
        }
    }

    /// The part that a text tensor of canonical name `name` belongs to.
    fn of(name: &str, shape: &Shape) -> Self {
        if is_mtp(name) {
            return Self::Mtp;
        }
        if name.starts_with("model.embed_tokens.") {
            return Self::Embedding;
        }
        if name.starts_with("lm_head.") || name.starts_with("model.norm.") {
            return Self::LmHead;
        }
        let Some((layer, module)) =
            name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'))
        else {
            return Self::Other;
        };
        let Some(kind) = layer.parse::<usize>().ok().and_then(|i| shape.layers.get(i)) else {
            return Self::Other;
        };
        let mixer = match kind {
            LayerKind::DeltaNet => Self::DeltaNet,
            LayerKind::Attention => Self::Attention,
        };
        match module.split_once('.').map_or((module, ""), |(first, rest)| (first, rest)) {
            ("input_layernorm" | "linear_attn" | "self_attn", _) => mixer,
            ("post_attention_layernorm", _) => Self::Routers,
            ("mlp", m) if m.starts_with("switch_mlp.") || m.starts_with("experts.") => {
                Self::Experts
            }
            ("mlp", m) if m.starts_with("shared_expert.") => Self::SharedExperts,
            ("mlp", m) if m.starts_with("gate.") || m.starts_with("shared_expert_gate.") => {
                Self::Routers
            }
            _ => Self::Other,
        }
    }
}

/// One tensor of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name as the file gives it.
    pub name: String,
    /// Name of the file.
    pub file: String,
    /// Element type, as safetensors names it.
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Bytes.
    pub bytes: u64,
    /// What it belongs to.
    pub part: Part,
}

/// How a module's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    /// MLX affine quantisation.
    Affine(AffineFormat),
    /// Plain values.
    Dense(DenseType),
}

/// A plain value's type; ordered by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DenseType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl From<FloatType> for DenseType {
    fn from(dtype: FloatType) -> Self {
        match dtype {
            FloatType::Bf16 => Self::Bf16,
            FloatType::F16 => Self::F16,
            FloatType::F32 => Self::F32,
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affine(format) => {
                write!(f, "{} bits, groups of {}", format.bits(), format.group())
            }
            Self::Dense(DenseType::Bf16) => f.write_str("bf16"),
            Self::Dense(DenseType::F16) => f.write_str("f16"),
            Self::Dense(DenseType::F32) => f.write_str("f32"),
        }
    }
}

/// One matrix of the network, or one projection of all experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Canonical name.
    pub name: String,
    /// 1, or the number of experts.
    pub count: usize,
    /// Output dimension.
    pub rows: usize,
    /// Input dimension.
    pub cols: usize,
    /// How the values are stored (of the first expert, where each has its own tensors).
    pub storage: Storage,
    /// Bytes of its tensors.
    pub bytes: u64,
}

/// The contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// All tensors: text by canonical name, then vision.
    pub tensors: Vec<TensorInfo>,
    /// All matrices in the order of the network.
    pub modules: Vec<ModuleInfo>,
    /// Bytes whose place in the file is not aligned for their type: the CPU reads them there, a GPU gets a copy.
    pub misaligned_bytes: u64,
    /// Tensors concerned.
    pub misaligned_tensors: usize,
}

impl Inspection {
    /// Bytes of every part that has any, in the order of [`Part::ALL`].
    #[must_use]
    pub fn bytes_by_part(&self) -> Vec<(Part, u64)> {
        let bytes = |part| self.tensors.iter().filter(|t| t.part == part).map(|t| t.bytes).sum();
        Part::ALL.iter().map(|&part| (part, bytes(part))).filter(|&(_, bytes)| bytes > 0).collect()
    }

    /// Modules and bytes of every storage format, most bytes first.
    #[must_use]
    pub fn bytes_by_storage(&self) -> Vec<(Storage, usize, u64)> {
        let mut sums = std::collections::BTreeMap::new();
        for module in &self.modules {
            let (count, bytes) = sums.entry(module.storage).or_insert((0, 0));
            *count += 1;
            *bytes += module.bytes;
        }
        let mut list: Vec<_> =
            sums.into_iter().map(|(s, (count, bytes))| (s, count, bytes)).collect();
        list.sort_by_key(|&(_, _, bytes)| std::cmp::Reverse(bytes));
        list
    }
}

/// Describes a checkpoint without reading a weight.
///
/// # Errors
/// As [`Checkpoint::load`]: what is described would also load.
pub fn inspect(checkpoint: &Checkpoint) -> Result<Inspection, Error> {
    let mut describe = Describe {
        resolver: Resolver::new(checkpoint),
        modules: Vec::new(),
        misaligned_bytes: 0,
        misaligned_tensors: std::collections::BTreeSet::new(),
    };
    Network::build(checkpoint.shape(), &mut describe)?;
    let Describe { resolver, modules, misaligned_bytes, misaligned_tensors } = describe;
    resolver.finish()?;
    let text = checkpoint
        .text_tensors()
        .map(|(name, tensor)| tensor_info(tensor, Part::of(name, checkpoint.shape())));
    let vision = checkpoint.vision_tensors().map(|tensor| tensor_info(tensor, Part::Vision));
    Ok(Inspection {
        tensors: text.chain(vision).collect(),
        modules,
        misaligned_bytes,
        misaligned_tensors: misaligned_tensors.len(),
    })
}

fn tensor_info(tensor: Tensor<'_>, part: Part) -> TensorInfo {
    let name = tensor.name();
    TensorInfo {
        name: name.name,
        file: name.file,
        dtype: format!("{:?}", tensor.entry.dtype),
        shape: tensor.shape().to_vec(),
        bytes: tensor.len_bytes() as u64,
        part,
    }
}

/// A source that lists modules instead of making views.
struct Describe<'a> {
    resolver: Resolver<'a>,
    modules: Vec<ModuleInfo>,
    misaligned_bytes: u64,
    /// Names in the files.
    misaligned_tensors: std::collections::BTreeSet<&'a str>,
}

/// A network of which only the walk matters.
struct NoParts;

impl Parts for NoParts {
    type Matrix = ();
    type Experts = ();
    type Vector = ();
}

impl<'a> Describe<'a> {
    /// Bytes of `share` of the tensors (one half, for a fused projection).
    fn add(&mut self, stored: &Stored<'a>, share: (usize, usize)) -> u64 {
        let mut sum = 0;
        for tensor in stored.tensors() {
            let bytes = (tensor.len_bytes() / share.1 * share.0) as u64;
            sum += bytes;
            // Maps start at page boundaries, so the offset in the file decides alignment.
            if !tensor.entry.range.start.is_multiple_of(tensor.entry.dtype.bitsize() / 8) {
                self.misaligned_bytes += bytes;
                self.misaligned_tensors.insert(&tensor.entry.name);
            }
        }
        sum
    }
}

fn storage(stored: &Stored<'_>) -> Storage {
    match *stored {
        Stored::Dense { dtype, .. } => Storage::Dense(dtype.into()),
        Stored::Affine { format, .. } => Storage::Affine(format),
    }
}

impl Source<NoParts> for Describe<'_> {
    type Error = Error;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<(), Error> {
        let stored = self.resolver.matrix(name, rows, cols)?;
        let bytes = self.add(&stored, (1, 1));
        let (name, storage) = (name.to_owned(), storage(&stored));
        self.modules.push(ModuleInfo { name, count: 1, rows, cols, storage, bytes });
        Ok(())
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<(), Error> {
        let (storage, bytes) =
            match self.resolver.experts(layer_mlp, projection, count, rows, cols)? {
                StoredExperts::Stacked { stored, rows_stored, .. } => {
                    (storage(&stored), self.add(&stored, (rows, rows_stored)))
                }
                StoredExperts::Separate(list) => {
                    // At least one: the shape has no zero counts.
                    (storage(&list[0]), list.iter().map(|s| self.add(s, (1, 1))).sum())
                }
            };
        let name = format!("{layer_mlp}.experts.{projection}");
        self.modules.push(ModuleInfo { name, count, rows, cols, storage, bytes });
        Ok(())
    }

    fn vector(&mut self, name: &str, kind: VectorKind, len: usize) -> Result<(), Error> {
        self.resolver.vector(name, kind, len).map(drop)
    }

    fn has_mtp(&self) -> bool {
        self.resolver.has_mtp()
    }
}
