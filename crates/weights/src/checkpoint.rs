//! An opened checkpoint: its configuration, mapped files, and a table of all tensors by canonical name.

use crate::error::{Error, TensorName, shown};
use crate::header::TensorEntry;
use crate::index;
use crate::layout::{Layout, NormConvention, canonical_name, is_mtp, is_norm};
use crate::norms;
use crate::repository::{INDEX_FILE, Repository, SINGLE_FILE};
use crate::shard::Shard;
use bytes::Bytes;
use calla_model::{Config, FloatType, MappedFile, Shape};
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most files of one model; the unquantised 35B-A3B has 26.
const SHARDS_MAX: usize = 1024;
/// Longest small vector, in values: the largest hidden width that config.json may ask for.
const SMALL_VECTOR_MAX: usize = 1 << 16;

/// A checkpoint whose files are mapped and whose headers are proven; see [`Checkpoint::load`].
#[derive(Debug)]
pub struct Checkpoint {
    repository: Repository,
    config: Config,
    shards: Vec<Shard>,
    /// Text tensors by canonical name.
    text: BTreeMap<String, TensorAt>,
    vision: Vec<TensorAt>,
    layout: Layout,
    mtp_norms: Option<NormConvention>,
}

/// Where a tensor is: index of its shard, and its index there.
#[derive(Clone, Copy, Debug)]
struct TensorAt {
    shard: usize,
    tensor: usize,
}

/// A tensor of a checkpoint with its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) entry: &'a TensorEntry,
}

impl<'a> Tensor<'a> {
    pub(crate) fn name(&self) -> TensorName {
        TensorName { name: self.entry.name.clone(), file: self.shard.name().to_owned() }
    }

    /// Its bytes, at whatever address the file puts them.
    pub(crate) fn bytes(&self) -> Bytes {
        self.shard.bytes(self.entry)
    }

    pub(crate) fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// Whether it can be a norm or the like, so that reading it as f32 takes little memory.
    pub(crate) fn is_small_vector(&self) -> bool {
        matches!(self.shape(), [len] if *len <= SMALL_VECTOR_MAX)
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.entry.range.len()
    }

    /// Its element type, if that is one of the three floating-point types.
    pub(crate) fn float_type(&self) -> Result<FloatType, Error> {
        float_type(self.entry.dtype).ok_or_else(|| Error::TensorType {
            tensor: self.name(),
            expected: "BF16, F16 or F32 (or U32 with .scales and .biases beside it, where a module may be quantised)",
            actual: self.entry.dtype,
        })
    }

    /// All values as f32.
    pub(crate) fn to_f32(self) -> Result<Vec<f32>, Error> {
        let dtype = self.float_type()?;
        let bytes = self.bytes();
        Ok((0..bytes.len() / dtype.size()).map(|i| dtype.read(&bytes, i)).collect())
    }
}

pub(crate) fn float_type(dtype: Dtype) -> Option<FloatType> {
    match dtype {
        Dtype::BF16 => Some(FloatType::Bf16),
        Dtype::F16 => Some(FloatType::F16),
        Dtype::F32 => Some(FloatType::F32),
        _ => None,
    }
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`: reads `config.json`, finds and maps the weight files and checks
    /// their headers. No weight is read yet.
    ///
    /// # Errors
    /// [`Error::NoWeights`] if there are none; otherwise what is wrong with which file.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        let repository = Repository::open(dir.as_ref())?;
        let config = read_config(&repository)?;
        let shards = open_shards(&repository)?;
        let (text, vision) = table(&shards)?;
        let mut checkpoint =
            Self { repository, config, shards, text, vision, layout: Layout::Mlx, mtp_norms: None };
        checkpoint.layout = checkpoint.detect_layout()?;
        checkpoint.mtp_norms = checkpoint.detect_mtp_norms()?;
        Ok(checkpoint)
    }

    /// Reads only `config.json` of `dir`: for a directory without weights, or to plan memory first.
    ///
    /// # Errors
    /// If the file is missing or refused.
    pub fn open_config(dir: impl AsRef<Path>) -> Result<Config, Error> {
        read_config(&Repository::open(dir.as_ref())?)
    }

    /// The directory, as it was given to [`Checkpoint::open`].
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.repository.dir()
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Shorthand for the configuration's shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.config.shape
    }

    /// Whose conventions the trunk follows.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How the norms of the multi-token-prediction layer are stored; `None` without such a layer.
    #[must_use]
    pub fn mtp_norms(&self) -> Option<NormConvention> {
        self.mtp_norms
    }

    /// The weight files with their lengths in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.shards.iter().map(|shard| (shard.path(), shard.len() as u64))
    }

    /// The weight files as they are mapped, for a device that can use them where they lie; none on systems that are no Unix.
    #[must_use]
    pub fn mapped_files(&self) -> Vec<MappedFile> {
        self.shards.iter().filter_map(Shard::mapped).collect()
    }

    pub(crate) fn tensor(&self, canonical: &str) -> Option<Tensor<'_>> {
        self.text.get(canonical).map(|&at| self.at(at))
    }

    /// Text tensors with their canonical names, sorted.
    pub(crate) fn text_tensors(&self) -> impl Iterator<Item = (&str, Tensor<'_>)> {
        self.text.iter().map(|(name, &at)| (name.as_str(), self.at(at)))
    }

    pub(crate) fn vision_tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.vision.iter().map(|&at| self.at(at))
    }

    fn at(&self, at: TensorAt) -> Tensor<'_> {
        let shard = &self.shards[at.shard];
        Tensor { shard, entry: &shard.tensors()[at.tensor] }
    }

    /// Raw Hugging Face exactly if the convolution's last dimension is not 1. A network without DeltaNet
    /// layers has no convolution; there the norms themselves decide.
    fn detect_layout(&self) -> Result<Layout, Error> {
        let mut found: Option<(Layout, Tensor<'_>)> = None;
        let convolutions =
            self.text_tensors().filter(|(name, _)| name.ends_with(".linear_attn.conv1d.weight"));
        for (_, tensor) in convolutions {
            let layout = match tensor.shape().last() {
                Some(1) => Layout::Mlx,
                _ => Layout::HuggingFace,
            };
            match &found {
                None => found = Some((layout, tensor)),
                Some((other, first)) if *other != layout => {
                    return Err(Error::Layout {
                        problem: format!(
                            "tensors {} and {} have the convolution shapes {:?} and {:?} of two \
                             different layouts; the files do not belong together",
                            first.name(),
                            tensor.name(),
                            first.shape(),
                            tensor.shape()
                        ),
                    });
                }
                Some(_) => {}
            }
        }
        if let Some((layout, _)) = found {
            return Ok(layout);
        }
        Ok(match self.norm_convention(|name| !is_mtp(name))? {
            NormConvention::Full => Layout::Mlx,
            NormConvention::ZeroCentred => Layout::HuggingFace,
        })
    }

    /// Exports of the MTP layer exist in both conventions whatever the trunk's is, so it votes alone.
    fn detect_mtp_norms(&self) -> Result<Option<NormConvention>, Error> {
        if !self.text.keys().any(|name| is_mtp(name)) {
            return Ok(None);
        }
        self.norm_convention(is_mtp).map(Some)
    }

    fn norm_convention(&self, part: impl Fn(&str) -> bool) -> Result<NormConvention, Error> {
        let vectors = self
            .text_tensors()
            // A large tensor under a norm's name is refused later, not read here.
            .filter(|(name, tensor)| part(name) && is_norm(name) && tensor.is_small_vector())
            .map(|(_, tensor)| tensor.to_f32())
            .collect::<Result<Vec<_>, _>>()?;
        Ok(norms::convention(vectors.iter().map(Vec::as_slice)))
    }
}

fn read_config(repository: &Repository) -> Result<Config, Error> {
    let (path, text) = repository.config()?;
    Config::parse(&text).map_err(|source| Error::Config { path, source })
}

/// Opens every weight file of the model: those of the index or the single one, and those of MTP.
fn open_shards(repository: &Repository) -> Result<Vec<Shard>, Error> {
    let index_path = repository.dir().join(INDEX_FILE);
    let weight_map = match repository.index()? {
        Some(text) => {
            Some(index::parse(&text).map_err(|problem| index_error(&index_path, problem))?)
        }
        None => None,
    };
    let has_single = repository.has(SINGLE_FILE);
    let mut names: Vec<String> = match &weight_map {
        Some(map) => index::files(map),
        None if has_single => vec![SINGLE_FILE.to_owned()],
        None => return Err(no_weights(repository)?),
    };
    if has_single && !names.iter().any(|name| name == SINGLE_FILE) {
        return Err(index_error(
            &index_path,
            format!(
                "it does not list {SINGLE_FILE}, which is there too: remove the one that is stale"
            ),
        ));
    }
    if names.len() > SHARDS_MAX {
        let problem = format!("it lists {} files; the limit is {SHARDS_MAX}", names.len());
        return Err(index_error(&index_path, problem));
    }
    let indexed = names.len();
    let is_mtp_file = |name: &String| name.starts_with("mtp");
    names.extend(repository.weight_files()?.into_iter().filter(is_mtp_file));
    let mut seen = std::collections::HashSet::new();
    let mut shards = Vec::new();
    for (position, name) in names.iter().enumerate() {
        let from_index = position < indexed;
        if !seen.insert(name) {
            continue;
        }
        let shard = match Shard::open(repository, name) {
            Err(Error::Io { path, source, .. })
                if from_index
                    && weight_map.is_some()
                    && source.kind() == std::io::ErrorKind::NotFound =>
            {
                let problem = format!(
                    "it lists {}, which is missing: is the download complete?",
                    shown(&path.file_name().unwrap_or_default().to_string_lossy())
                );
                return Err(index_error(&index_path, problem));
            }
            result => result?,
        };
        if let Some(map) = weight_map.as_ref().filter(|_| from_index) {
            index::agree(map, name, shard.tensors())
                .map_err(|problem| index_error(&index_path, problem))?;
        }
        shards.push(shard);
    }
    Ok(shards)
}

fn index_error(path: &Path, problem: String) -> Error {
    Error::Index { path: PathBuf::from(path), problem }
}

fn no_weights(repository: &Repository) -> Result<Error, Error> {
    let dir = repository.dir().to_owned();
    Ok(match repository.weight_files()?.as_slice() {
        [] => Error::NoWeights { dir },
        files => Error::NoIndex { dir, found: files.len(), example: shown(&files[0]).into_owned() },
    })
}

type Table = (BTreeMap<String, TensorAt>, Vec<TensorAt>);

/// All tensors by canonical name, each once, and those of the vision tower.
fn table(shards: &[Shard]) -> Result<Table, Error> {
    let mut text: BTreeMap<String, TensorAt> = BTreeMap::new();
    let mut vision = Vec::new();
    for (shard_index, shard) in shards.iter().enumerate() {
        for (tensor_index, entry) in shard.tensors().iter().enumerate() {
            let at = TensorAt { shard: shard_index, tensor: tensor_index };
            let Some(canonical) = canonical_name(&entry.name) else {
                vision.push(at);
                continue;
            };
            if let Some(&other) = text.get(canonical.as_ref()) {
                let first_shard = &shards[other.shard];
                let first =
                    Tensor { shard: first_shard, entry: &first_shard.tensors()[other.tensor] };
                let second = Tensor { shard, entry };
                return Err(Error::TensorTwice { first: first.name(), second: second.name() });
            }
            text.insert(canonical.into_owned(), at);
        }
    }
    Ok((text, vision))
}
