//! Flags of `plan`.

use crate::plan::{CHIPS, Chip};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::path::PathBuf;

pub(crate) const PLAN_ABOUT: &str = "\
Say what a step of the model costs on a GPU: kernels, stages (a device waits between two), bytes read and \
written, floating-point operations and temporary memory, of a decode step and of a slice of a prompt, by part \
of the model. No GPU and no weights are needed: a directory with only config.json is enough. Weights are \
counted in the format of the published MLX 4-bit conversion.

With --chip, also how many tokens per second that chip can reach at most, as bytes over bandwidth and \
operations over rate allow. That is a bound and no forecast.";

pub(crate) const PLAN_EXAMPLES: &str = "\
Examples:
  calla plan --model ~/models/Qwen3.6-35B-A3B-4bit --context 4096 --chip m5-max
  calla plan --model demo --context 1000 --rows 64 --sequences 4 --json";

/// Most sequences of a step: far more than one machine serves.
const SEQUENCES_MAX: i64 = 256;
/// Most rows of a slice: far more than the engine ever runs in a step.
const ROWS_MAX: i64 = 8192;

/// What `plan` is asked.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Directory of the model; without it, the one that `chat` would take
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,

    /// Tokens of each sequence after the step; without it 4096, or the model's longest context if that is less
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,

    /// Rows of the slice of a prompt, which ends at the context; without it 256, as the engine's slices have
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=ROWS_MAX))]
    pub(crate) rows: Option<u32>,

    /// Sequences that decode in one step; the slice is always of one
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=SEQUENCES_MAX))]
    pub(crate) sequences: u32,

    /// Chip whose floor is computed
    #[arg(long, value_name = "NAME", value_parser = chip())]
    pub(crate) chip: Option<&'static Chip>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Takes the name of a chip of the table.
fn chip() -> impl TypedValueParser<Value = &'static Chip> {
    let names = CHIPS.iter().map(|chip| PossibleValue::new(chip.name).help(chip.title));
    PossibleValuesParser::new(names).try_map(|name| {
        let named = CHIPS.iter().find(|chip| chip.name == name);
        named.ok_or_else(|| format!("there is no chip {name}"))
    })
}
