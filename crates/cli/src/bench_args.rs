//! Flags of `bench`.

use crate::args::ModelArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

pub(crate) const BENCH_ABOUT: &str = "\
Measure prefill and decode at several lengths of context, next to what the device can reach at most. Each \
figure is the median of several fresh processes, which take turns; each process reads a prompt of pseudo-random \
ids and makes 64 tokens more, greedily, twice: the second time counts. The tokens must be the same every time.

First the device's floors are measured. A floor is what bytes over the rate of reading, or operations over their \
rate, allow at most. Other programs that compute meanwhile are noticed and told.";

pub(crate) const BENCH_EXAMPLES: &str = "\
Examples:
  calla bench --contexts 256,1024,4096
  calla bench --device cuda --concurrent 1,8,32 --ablate --json
  calla bench --model ~/models/Qwen3.6-35B-A3B-4bit --out speed --plot";

/// Most sequences that decode at once.
const SEQUENCES_MAX: i64 = 256;

/// What `bench` is asked.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Lengths of the prompt, in tokens; without it, lengths that suit the device
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) contexts: Vec<u32>,

    /// Also decode so many sequences at once, at the longest of --contexts that is at most 4096
    #[arg(long, value_name = "N", value_delimiter = ',', allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=SEQUENCES_MAX))]
    pub(crate) concurrent: Vec<u32>,

    /// Also switch one thing at a time, and say what it is worth; at that same length
    #[arg(long)]
    pub(crate) ablate: bool,

    /// Tokens that are decoded after the first one
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) steps: u32,

    /// Processes for each figure
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) repeat: u16,

    /// Seed of the prompt's ids
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Write figures and settings to a JSON file in this folder; `speed` if none is named
    ///
    /// A file that is there is not replaced.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "speed",
          value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,

    /// Name of that file; without it, that of the device
    #[arg(long, value_name = "NAME", requires = "out", value_parser = parse_name)]
    pub(crate) name: Option<String>,

    /// Draw the figures too: SVG files beside that file
    #[arg(long, requires = "out")]
    pub(crate) plot: bool,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// A name that is one file's on every system.
fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.starts_with('.') || !text.chars().all(is_plain) {
        return Err("expected letters, digits, '-', '_' and '.', not beginning with '.'".to_owned());
    }
    Ok(text.to_owned())
}

/// What the process of one arm is asked.
#[derive(Args, Debug)]
pub(crate) struct BenchJobArgs {
    /// The job, as JSON
    pub(crate) job: String,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
