//! The flag table: `--help`, the parser, the man page and the shell completions all follow from it.

use crate::bench_args::{BENCH_ABOUT, BENCH_EXAMPLES, BenchArgs, BenchJobArgs};
use crate::device::{Wanted, WantedParser};
use crate::doctor_args::{DOCTOR_ABOUT, DOCTOR_EXAMPLES, DoctorArgs};
use crate::engine_args::{EngineArgs, StructureArgs};
use crate::plan_args::{PLAN_ABOUT, PLAN_EXAMPLES, PlanArgs};
use crate::serve_args::{SERVE_ABOUT, SERVE_EXAMPLES, ServeArgs};
use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const LONG_ABOUT: &str = "\
Runs Qwen3.6-35B-A3B and its family: from checkpoint files to streamed text.

A model is a directory with config.json, tokenizer.json, a chat template and safetensors files, in \
MLX's format or as published on Hugging Face. Without --model (or CALLA_MODEL), calla looks for a \
full checkpoint in the Hugging Face cache, in LM Studio's folder and in ~/.calla/models, and else \
takes the demo checkpoint of its own repository; it says which and why.";

const EXAMPLES: &str = "\
Examples:
  calla chat                               talk to the model
  calla generate \"12 + 30 = ?\"             one answer, streamed
  calla generate --json < question.txt     one answer as a JSON object
  calla info ~/models/Qwen3.6-35B-A3B-4bit what it is, and whether it fits";

const MODEL_EXIT: &str = "\
Exit status: 0 if all went well, 1 on an error (one line on standard error), 2 on a wrong flag.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "calla",
    version,
    about = "Runs Qwen3.6-35B-A3B and its family: from checkpoint files to streamed text",
    long_about = LONG_ABOUT,
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{MODEL_EXIT}"),
    styles = STYLES,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// When to use colour
    ///
    /// `auto` colours output to a terminal, unless NO_COLOR is set.
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true, value_name = "WHEN")]
    pub(crate) color: Color,

    /// What to log to standard error: off, error, warn, info, debug, trace, or a filter
    ///
    /// A filter names a module, such as `calla_weights=debug,warn`.
    #[arg(long, env = "CALLA_LOG", global = true, value_name = "LEVEL", hide_env_values = true)]
    pub(crate) log: Option<String>,

    /// Log more: -v for info, -vv for debug, -vvv for trace; overrides --log
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// Which model, where to run it, and how much it may hold.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model options")]
pub(crate) struct ModelArgs {
    /// Directory of the checkpoint
    ///
    /// Without it, CALLA_MODEL names the directory. Without that, a full checkpoint is looked for in the
    /// Hugging Face cache, in LM Studio's folder and in ~/.calla/models; else the demo is taken.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,

    /// Where to compute
    ///
    /// `auto` takes the fastest that this machine has and that holds the model, and says which and why. A device
    /// that is named is taken or refused, never replaced: `calla doctor` says what is there.
    #[arg(long, env = "CALLA_DEVICE", hide_env_values = true, value_name = "DEVICE",
          default_value_t = Wanted::Auto, value_parser = WantedParser)]
    pub(crate) device: Wanted,

    /// Record a trace of a Mac's GPU for Xcode: a new path that ends in .gputrace
    ///
    /// It needs METAL_CAPTURE_ENABLED=1 in the environment. For NVIDIA GPUs there is Nsight.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) gpu_trace: Option<PathBuf>,

    /// Threads of the CPU backend; all cores if not given
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Tokens that prompt and reply together may have
    ///
    /// State for so many tokens is set aside at the start. Without it: 16384 (a server: 65536), or less where
    /// the model or the machine's memory allows less.
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) ctx: Option<u32>,

    /// Instruction set of the CPU backend, where `bench` wants another than the best.
    #[arg(skip)]
    pub(crate) isa: Option<calla_cpu::Isa>,
}

impl ModelArgs {
    /// Tokens that the user wants room for.
    pub(crate) fn context(&self) -> Option<usize> {
        self.ctx.map(|tokens| tokens as usize)
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("expected ID=BIAS, as 42=-100")?;
    let id = id.trim().parse().map_err(|_| format!("{id:?} is not a token id"))?;
    let bias = bias.trim().parse().map_err(|_| format!("{bias:?} is not a number"))?;
    Ok((id, bias))
}

/// How the next token is chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling options")]
pub(crate) struct SamplingArgs {
    /// Divides the logits; 0 always takes the most likely token
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,

    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub(crate) top_k: Option<u32>,

    /// Keep the fewest most likely tokens whose probabilities reach P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,

    /// Drop tokens less likely than P times the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,

    /// Makes tokens of prompt and reply less likely by this factor; 1 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,

    /// Subtracted from the logits of tokens that the reply has; 0 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,

    /// Subtracted for each time that the reply has the token; 0 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,

    /// Seed of the random choice: the same seed gives the same reply
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,

    /// End the reply before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Change a token's logit before it is chosen: ID=BIAS, from -100 (never) to 100 (always); may be given
    /// several times
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<(u32, f32)>,

    /// Tokens to generate before the reply may end by itself
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..))]
    pub(crate) min_tokens: u32,

    /// Never choose a token that ends the reply: it goes on to --max-tokens, to the end of the context or of a
    /// grammar
    #[arg(long)]
    pub(crate) ignore_eos: bool,

    /// Tokens to generate at most; without it, until the context is full
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Args)]
pub(crate) struct ThinkArgs {
    /// Let the model think before it answers (the default of its template)
    #[arg(long, overrides_with = "no_think")]
    pub(crate) think: bool,

    /// Answer at once, without thinking
    #[arg(long)]
    pub(crate) no_think: bool,

    /// End the thinking after so many tokens
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..))]
    pub(crate) thinking_budget: Option<u32>,

    /// Keep the thinking of earlier answers in the prompt
    ///
    /// Takes more context, but a follow-up question then continues the earlier prompt and only its own
    /// tokens are computed.
    #[arg(long)]
    pub(crate) preserve_thinking: bool,
}

impl ThinkArgs {
    /// What the template is told; `None` leaves it to the template.
    pub(crate) fn enable_thinking(&self) -> Option<bool> {
        if self.no_think { Some(false) } else { self.think.then_some(true) }
    }

    /// What the template is told of older thinking; `None` leaves it to the template.
    pub(crate) fn preserve(&self) -> Option<bool> {
        self.preserve_thinking.then_some(true)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Talk to the model
    #[command(after_long_help = CHAT_EXAMPLES, long_about = CHAT_ABOUT)]
    Chat(ChatArgs),
    /// Answer one prompt
    #[command(after_long_help = GENERATE_EXAMPLES, long_about = GENERATE_ABOUT)]
    Generate(GenerateArgs),
    /// Serve the model to programs and to a browser
    #[command(after_long_help = SERVE_EXAMPLES, long_about = SERVE_ABOUT)]
    Serve(ServeArgs),
    /// Describe a checkpoint, and say whether this machine can hold it
    #[command(after_long_help = INFO_EXAMPLES, long_about = INFO_ABOUT)]
    Info(InfoArgs),
    /// Say what this machine can do, and whether it does it right
    #[command(after_long_help = DOCTOR_EXAMPLES, long_about = DOCTOR_ABOUT)]
    Doctor(DoctorArgs),
    /// Say what a step costs on a GPU, and what a chip can reach at most
    #[command(after_long_help = PLAN_EXAMPLES, long_about = PLAN_ABOUT)]
    Plan(PlanArgs),
    /// Measure prefill and decode, next to what the device can reach at most
    #[command(after_long_help = BENCH_EXAMPLES, long_about = BENCH_ABOUT)]
    Bench(BenchArgs),
    /// Measure one arm of `bench`, which starts such processes
    #[command(hide = true)]
    BenchJob(BenchJobArgs),
    /// Compare the model with reference logits
    #[command(after_long_help = EVAL_EXAMPLES, long_about = EVAL_ABOUT)]
    Eval(EvalArgs),
    /// Write a random checkpoint of any shape of the family
    #[command(after_long_help = SYNTH_EXAMPLES, long_about = SYNTH_ABOUT)]
    Synth(SynthArgs),
    /// Turn text into token ids
    #[command(after_long_help = TOKENIZE_EXAMPLES)]
    Tokenize(TokenizeArgs),
    /// Turn token ids into text
    #[command(after_long_help = DETOKENIZE_EXAMPLES)]
    Detokenize(DetokenizeArgs),
    /// Render messages with the checkpoint's chat template
    #[command(after_long_help = RENDER_EXAMPLES)]
    Render(RenderArgs),
    /// Print completions for a shell
    #[command(after_long_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, in roff
    #[command(after_long_help = "Examples:\n  calla man | man -l -\n  \
                                 calla man > ~/.local/share/man/man1/calla.1")]
    Man,
}

const CHAT_ABOUT: &str = "\
Talk to the model. Answers stream as they are computed, thinking is shown dimmed, and after each \
answer a quiet line says how many tokens were read and written, and how fast.

A line that ends with a backslash goes on; so does everything between two lines of three double quotes \
(\"\"\"). Pasted text keeps its line breaks. /help lists the commands. Ctrl-C stops an answer; Ctrl-D, or \
Ctrl-C twice at an empty prompt, leaves. If standard input is not a terminal, each line of it is one \
message.

Sampling follows the checkpoint's generation_config.json unless flags say otherwise. If standard output \
is not a terminal, thinking goes to standard error.";

const CHAT_EXAMPLES: &str = "\
Examples:
  calla chat
  calla chat --no-think --system \"Answer in one sentence.\"
  calla chat --tools tools.json          calls are shown; /tool RESULT answers one
  printf '12 + 30 = ?\\nWhat is the capital of Peru?\\n' | calla chat --no-think";

/// Flags of `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    /// System message of the conversation
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Tools that the model may call: a JSON list, or an object with `tools`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tools: Option<PathBuf>,

    /// Go on with a conversation that /save wrote
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) messages: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

const GENERATE_ABOUT: &str = "\
Answer one prompt: an argument, a file of messages, or standard input. The answer streams to standard \
output as it is computed; if that is not a terminal, thinking goes to standard error. Greedy unless a \
temperature is given.

With --json, one object is printed at the end: text, reasoning, tool_calls (as OpenAI's API writes \
them), ids, finish_reason (stop, length or tool_calls), usage and timings.";

const GENERATE_EXAMPLES: &str = "\
Examples:
  calla generate \"What is the capital of Peru?\"
  calla generate --no-think --max-tokens 100 < question.txt
  calla generate --messages request.json --json
  calla generate --raw '<|im_start|>user
  hello<|im_end|>
  <|im_start|>assistant
  '
  calla generate \"What is the capital of Peru?\" --temperature 0.8 --top-p 0.95 --seed 1

A file for --messages holds {\"messages\": [...], \"tools\": [...], \"enable_thinking\": false} or a list of \
messages; flags win over what it says:
  [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"3 + 4 = ?\"}]";

/// Flags of `generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The prompt; without it, standard input is read
    #[arg(conflicts_with = "messages")]
    pub(crate) prompt: Option<String>,

    /// Read messages, and tools, from a JSON file (`-` for standard input)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) messages: Option<PathBuf>,

    /// Use the prompt as it is, without a chat template; control tokens in it count
    #[arg(long, conflicts_with_all = ["messages", "system", "think", "no_think", "tools"])]
    pub(crate) raw: bool,

    /// System message in front of the prompt
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Tools that the model may call: a JSON list, or an object with `tools`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tools: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    /// Print one JSON object instead of streaming text
    #[arg(long)]
    pub(crate) json: bool,

    /// With --json: each token's log-probability, and those of the N most likely tokens
    #[arg(long, value_name = "N", requires = "json", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u8).range(0..=20))]
    pub(crate) logprobs: Option<u8>,

    #[command(flatten)]
    pub(crate) structure: StructureArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

const INFO_ABOUT: &str = "\
Describe a checkpoint: its shape, its tensors and their formats, bytes by part, what is skipped or \
copied, memory by length of context, and whether this machine can hold it. Matrices are not read, only the \
files' headers and what is kept in f32, unless --verify is given. A directory with only config.json, tokenizer and template is \
enough.";

const INFO_EXAMPLES: &str = "\
Examples:
  calla info demo
  calla info ~/models/Qwen3.6-35B-A3B-4bit --verify
  calla info demo --json";

/// Flags of `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Directory of the checkpoint; without it, the model that `chat` would take
    #[arg(value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) path: Option<PathBuf>,

    /// Read every tensor and report NaN, infinity and implausible norms
    #[arg(long)]
    pub(crate) verify: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const EVAL_ABOUT: &str = "\
Compare the model with reference logits, teacher-forced: at each position of the reference's text, does \
the model prefer the same token, and how far apart are the distributions?

The file is a NumPy archive with either the full logits (`ids`, `logits_f32`) or, per prompt, the \
twenty largest logits and their log-sum-exp, as the demo checkpoint's goldens.npz has them.";

const EVAL_EXAMPLES: &str = "\
Examples:
  calla eval --model demo --goldens demo/goldens.npz
  calla eval --model demo --goldens demo/goldens.npz --device reference --json";

/// Flags of `eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Reference logits, a NumPy archive (.npz)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) goldens: PathBuf,

    /// `top1_margin` counts positions where the reference's first token leads by more than this
    ///
    /// In log-probability.
    #[arg(long, value_name = "X", default_value_t = 0.01, allow_negative_numbers = true)]
    pub(crate) margin: f64,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

const SYNTH_ABOUT: &str = "\
Write a random checkpoint of any shape of the family, in MLX's 4-bit format, with scales that keep \
activations finite through all layers. It says nothing sensible: it is for measuring speed and memory. \
It has a tokenizer only if --tokenizer names one to copy.";

const SYNTH_EXAMPLES: &str = "\
Examples:
  calla synth --shape demo --seed 1 /tmp/random
  calla synth --shape full-4 --seed 1 /tmp/four-layers      4 layers of the full width
  calla synth --shape config.json --seed 7 --skew 1.0 /tmp/skewed";

/// Flags of `synth`.
#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// The shape: demo, full, full-N for N layers of the full width, or a config.json
    #[arg(long, value_name = "SHAPE", value_hint = ValueHint::FilePath)]
    pub(crate) shape: String,

    /// Seed: the same seed writes the same bytes
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u64,

    /// Unevenness of the routers' load; 0 is uniform
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) skew: f32,

    /// Write a multi-token-prediction layer too
    #[arg(long)]
    pub(crate) mtp: bool,

    /// Directory to copy tokenizer, chat template and generation settings from
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) tokenizer: Option<PathBuf>,

    /// Directory to write: a new one, or an empty one
    #[arg(value_name = "OUT", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
}

const TOKENIZE_EXAMPLES: &str = "\
Examples:
  echo -n \"12 + 30\" | calla tokenize
  calla tokenize --json --model demo text.txt
  echo -n '<|im_end|>' | calla tokenize --special      one control token instead of text";

/// Which checkpoint's tokenizer and template to use.
#[derive(Debug, Args)]
pub(crate) struct TextModelArgs {
    /// Directory with tokenizer.json, and chat template where one is needed
    ///
    /// Without it, CALLA_MODEL names the directory; without that, the model that `chat` would take is.
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: Option<PathBuf>,
}

/// Flags of `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// File to read; without it, or with `-`, standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,

    /// Recognise control tokens such as <|im_end|> in the text; otherwise they are ordinary text
    #[arg(long)]
    pub(crate) special: bool,

    /// Print {"ids": [...]}
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model: TextModelArgs,
}

const DETOKENIZE_EXAMPLES: &str = "\
Examples:
  echo 12 7 301 | calla detokenize
  calla tokenize --json < text.txt | calla detokenize";

/// Flags of `detokenize`.
#[derive(Debug, Args)]
pub(crate) struct DetokenizeArgs {
    /// File with ids; without it, or with `-`, standard input
    ///
    /// {"ids": [...]}, a JSON list, or numbers between white space.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,

    /// Leave out tokens that the tokenizer marks as special, such as <|im_end|>
    #[arg(long)]
    pub(crate) skip_special: bool,

    /// Print {"text": "..."}
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model: TextModelArgs,
}

const RENDER_EXAMPLES: &str = "\
Examples:
  echo '[{\"role\": \"user\", \"content\": \"hi\"}]' | calla render
  calla render --no-think --json --model demo request.json";

/// Flags of `render`.
#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    /// File with messages; without it, or with `-`, standard input
    ///
    /// {"messages": [...], "tools": [...], "enable_thinking": false} or a list of messages. Flags win over
    /// what the object says.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) think: ThinkArgs,

    /// Tools that the model may call: a JSON list, or an object with `tools`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tools: Option<PathBuf>,

    /// Do not open the assistant's turn at the end
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,

    /// Print {"text": "...", "ids": [...]}
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model: TextModelArgs,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  calla completions bash > ~/.local/share/bash-completion/completions/calla
  calla completions zsh > ~/.zfunc/_calla
  calla completions fish > ~/.config/fish/completions/calla.fish";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flag_table_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_and_command_has_words() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
