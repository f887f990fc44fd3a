//! Flags about the engine and about what a reply has to look like.

use calla_engine::Speculation;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// What a reply has to look like.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Structure options")]
#[group(id = "structure_of_reply", multiple = false)]
pub(crate) struct StructureArgs {
    /// The answer is JSON that fits the JSON Schema in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json_schema: Option<PathBuf>,

    /// The answer is a JSON object
    #[arg(long)]
    pub(crate) json_object: bool,

    /// The answer matches this regular expression from start to end
    #[arg(long, value_name = "REGEX")]
    pub(crate) regex: Option<String>,

    /// The answer follows the grammar in this file (llguidance's dialect of Lark)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) grammar: Option<PathBuf>,

    /// `auto`, `required` (the answer calls one tool or more) or the name of the tool that it calls
    #[arg(long, value_name = "CHOICE", requires = "tools")]
    pub(crate) tool_choice: Option<String>,
}

/// How the engine goes about it; nothing of it changes a reply.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine options")]
pub(crate) struct EngineArgs {
    /// Guess tokens with the draft layer and verify them together: `auto` (as deep as it pays), `off`, or a
    /// fixed number from 1 to 8
    ///
    /// A guess is kept only if it is what the model itself chooses, so replies stay the same.
    #[arg(long, value_name = "DEPTH", default_value = "auto", value_parser = parse_speculation)]
    pub(crate) speculate: Speculation,

    /// Go on from states that decoding has reached, where decoding rounds differently from prefill
    ///
    /// It saves computing an answer once more before it is reused; later replies may then differ in rare cases
    /// from those without a cache, and usage says so. On the CPU the two round alike and nothing changes.
    #[arg(long)]
    pub(crate) fast_cache: bool,

    /// Memory of the device for state of earlier prompts, in MB
    #[arg(long, value_name = "MB", default_value_t = 2000, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..))]
    pub(crate) cache_memory: u32,

    /// Host memory behind a GPU's for state of earlier prompts, in MB: what gives way on the GPU stays there [default: 4000
    /// for NVIDIA, 2000 for Metal, less where little can be had; 0 on the CPU]
    ///
    /// It is taken as it is needed, and let go of at once when the system is short of memory. On the CPU all state is in host
    /// memory already, and --cache-memory bounds it.
    #[arg(long, value_name = "MB", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..))]
    pub(crate) host_cache_memory: Option<u32>,

    /// Keep state of earlier prompts in this folder too, across runs of the program
    ///
    /// It holds the prompts themselves: only you can read it, but so can backups of it.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) disk_cache: Option<PathBuf>,

    /// The most that the folder may hold, in GB
    #[arg(long, value_name = "GB", default_value_t = 20, requires = "disk_cache",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) disk_cache_size: u32,
}

/// As deep as it pays, up to the depth whose states between drafts are worth their memory.
const SPECULATION_DEFAULT: Speculation = Speculation::Adaptive(2);

fn parse_speculation(text: &str) -> Result<Speculation, String> {
    match text {
        "auto" => Ok(SPECULATION_DEFAULT),
        "off" => Ok(Speculation::Off),
        number => match number.parse() {
            Ok(depth @ 1..=8) => Ok(Speculation::Fixed(depth)),
            _ => Err("expected auto, off or a number from 1 to 8".to_owned()),
        },
    }
}
