//! Random checkpoints of any shape, in the format of the published MLX 4-bit conversion.
//!
//! For tests, benchmarks and memory checks without a download. Packed words come straight from a
//! counter-based generator, so the bytes depend only on the seed and the shape, and never on threads;
//! scales keep activations finite through any number of layers.

mod config;
mod fill;
mod plan;
mod write;

use crate::error::Error;
use calla_model::Shape;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// What to make.
#[derive(Clone, Debug)]
pub struct Options {
    /// Widths and counts.
    pub shape: Shape,
    /// Seed of all values.
    pub seed: u64,
    /// Include the multi-token-prediction layer.
    pub mtp: bool,
    /// 0 for a uniform load of the experts. Otherwise the routers prefer experts, in a random order per
    /// layer: the logit of the expert of rank r (from 0) is lowered by `skew * ln(r + 1)`, which makes the
    /// loads fall like Zipf's law. 1 is already strong.
    pub skew: f32,
    /// Directory to copy tokenizer, chat template and generation settings from.
    pub tokenizer: Option<PathBuf>,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synthesis {
    /// Bytes of the weight files.
    pub bytes: u64,
    /// Number of weight files.
    pub files: usize,
    /// Tensors in them.
    pub tensors: usize,
}

/// Most bytes of tensors in one file; larger checkpoints are sharded, with an index.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Is told the bytes written so far and in all, from any thread; a break ends the writing.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) -> ControlFlow<()> + Sync);

/// Writes a random checkpoint into `dir`, which is created and must be empty, but for what a killed run
/// left: that is removed.
///
/// Files have temporary names until all are complete, and `config.json` comes last: an interrupted run
/// leaves no directory that looks like a model.
///
/// # Errors
/// If `dir` is not empty, a file operation fails or `progress` breaks; what was written is then removed.
pub fn synth(options: &Options, dir: &Path, progress: Progress<'_>) -> Result<Synthesis, Error> {
    synth_sharded(options, dir, SHARD_BYTES, progress)
}

fn synth_sharded(
    options: &Options,
    dir: &Path,
    shard_bytes: u64,
    progress: Progress<'_>,
) -> Result<Synthesis, Error> {
    let tensors = plan::plan(options);
    let config = config::config_json(options, &tensors);
    let shards = write::shards(&tensors, shard_bytes);
    let mut output = write::Output::create(dir)?;
    if let Some(tokenizer) = &options.tokenizer {
        output.copy_tokenizer(tokenizer)?;
    }
    let bytes = output.write_shards(&shards, progress)?;
    output.write_text("config.json", &config)?;
    output.finish()?;
    Ok(Synthesis { bytes, files: shards.len(), tensors: tensors.len() })
}

#[cfg(test)]
mod tests;
