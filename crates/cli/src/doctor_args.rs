//! Flags of `doctor`.

use crate::args::ModelArgs;
use clap::Args;

pub(crate) const DOCTOR_ABOUT: &str = "\
Say what this machine can do and whether it does it right: processor, memory and system; which devices are found \
and why others are not used; every kernel held to the reference on each device; how fast memory and matrix \
products are, in less than a minute.

The report is Markdown for a bug report. It names no folder and no user. Without --device, all devices that are \
found are examined; one that is named has to be there. With --model, that model runs too.";

pub(crate) const DOCTOR_EXAMPLES: &str = "\
Examples:
  calla doctor
  calla doctor --device cuda:1 --no-bench
  calla doctor --model ~/models/Qwen3.6-35B-A3B-4bit > report.md

Exit status: 0 if all is well, 1 if a device that was named is missing or anything is wrong.";

/// What `doctor` is asked.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Leave the measurements of speed out
    #[arg(long)]
    pub(crate) no_bench: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
