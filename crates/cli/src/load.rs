//! From a directory to a model that runs: plan the memory, load the weights, start the device.

use crate::args::{Device, ModelArgs};
use crate::discover::{self, Candidate, Why};
use crate::machine::this_machine;
use crate::output;
use anyhow::bail;
use calla_cpu::Cpu;
use calla_engine::memory::cache_size;
use calla_engine::{CutRule, Machine, MemoryPlan, Refusal, Session};
use calla_model::network::CheckpointParts;
use calla_model::{Config, Network, Shape};
use calla_ops::{Executor, Reference, Runner};
use calla_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use calla_weights::inspect::{Inspection, Part};
use calla_weights::{Checkpoint, inspect};
use std::path::{Path, PathBuf};

/// Context without `--ctx`, where the model and the machine allow it.
const CONTEXT_DEFAULT: usize = 16_384;
/// A default context below this would only puzzle: rather refuse.
const CONTEXT_DEFAULT_MIN: usize = 2_048;
/// Memory for snapshots of earlier prefixes beside the running sequence, in bytes; less where less is left.
const SNAPSHOT_BYTES_MAX: u64 = 2_000_000_000;
/// Bytes of a stored key or value, and of an element of the convolution window, in host memory.
pub(crate) const ELEMENT_BYTES: usize = 4;

/// A loaded network on a device.
pub(crate) struct Loaded {
    pub(crate) dir: PathBuf,
    pub(crate) config: Config,
    pub(crate) runner: Box<dyn Runner>,
    /// Tokens of one sequence that its state has room for.
    pub(crate) context: usize,
    /// Words for the device.
    pub(crate) device: String,
    /// Why this checkpoint was taken.
    pub(crate) why: Why,
}

/// A loaded model with its text side.
pub(crate) struct Model {
    pub(crate) dir: PathBuf,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) defaults: GenerationDefaults,
    /// Tokens that end a reply.
    pub(crate) stop_ids: Vec<u32>,
    /// Ids that can be chosen.
    pub(crate) vocab_used: usize,
    pub(crate) session: Session,
    pub(crate) device: String,
    /// Whether it is the repository's demo, which knows little.
    pub(crate) is_demo: bool,
}

impl Model {
    /// Loads the model that the flags name, or the best that is found.
    pub(crate) fn load(args: &ModelArgs) -> anyhow::Result<Self> {
        check_device(args.device)?;
        let machine = this_machine()?;
        discover::first_that_loads(args.model.as_deref(), |candidate, _| {
            let opened = Opened::new(candidate, args.context(), &machine)?;
            let text = opened.text()?;
            Self::new(opened.load(args, &machine)?, text)
        })
    }

    fn new(loaded: Loaded, text: TextSide) -> anyhow::Result<Self> {
        let Loaded { dir, config, runner, context, device, why } = loaded;
        let TextSide { tokenizer, .. } = text;
        let defaults = GenerationDefaults::load(&dir)?;
        let ids = tokenizer.vocab_size();
        let mut stop_ids = tokenizer.eos_ids(&config.eos_token_ids, &defaults);
        // A model that opens a turn has ended its own, even if it forgot to say so.
        stop_ids.extend(tokenizer.token_id("<|im_start|>"));
        Ok(Self {
            dir,
            session: Session::new(runner, context, cut_rule(&tokenizer)),
            tokenizer,
            defaults,
            stop_ids,
            vocab_used: ids,
            device,
            is_demo: why == Why::Demo,
        })
    }

    /// The checkpoint's chat template.
    pub(crate) fn template(&self) -> anyhow::Result<ChatTemplate> {
        Ok(ChatTemplate::load(&self.dir)?)
    }
}

/// Prompts are cut, and may be taken up again, where a turn or the result of a tool begins.
fn cut_rule(tokenizer: &Tokenizer) -> CutRule {
    let markers = ["<|im_start|>", "<tool_response>"];
    CutRule::new(markers.iter().filter_map(|marker| tokenizer.token_id(marker)).collect())
}

/// Loads the network. `context`: tokens that it must hold, where that is known better than by `--ctx`.
pub(crate) fn load(args: &ModelArgs, context: Option<usize>) -> anyhow::Result<Loaded> {
    check_device(args.device)?;
    let machine = this_machine()?;
    let context = args.context().or(context);
    discover::first_that_loads(args.model.as_deref(), |candidate, _| {
        Opened::new(candidate, context, &machine)?.load(args, &machine)
    })
}

/// A checkpoint's directory and its tokenizer, for commands that need no weights.
pub(crate) struct TextSide {
    pub(crate) dir: PathBuf,
    pub(crate) tokenizer: Tokenizer,
}

impl TextSide {
    /// Takes the model that `chat` would take, as far as headers can tell. Where there is no choice, as
    /// with a directory that is named, neither weights nor memory are needed.
    pub(crate) fn load(named: Option<&Path>) -> anyhow::Result<Self> {
        discover::first_that_loads(named, |candidate, is_last| {
            if is_last {
                let dir = candidate.dir.clone();
                return Ok(Self { tokenizer: Tokenizer::load(&dir)?, dir });
            }
            Opened::new(candidate, None, &this_machine()?)?.text()
        })
    }
}

fn check_device(device: Device) -> anyhow::Result<()> {
    let name = match device {
        Device::Auto | Device::Cpu | Device::Reference => return Ok(()),
        Device::Metal => "metal",
        Device::Cuda => "cuda",
    };
    bail!("--device {name} is not in this version yet; use --device cpu, which runs everywhere")
}

/// A checkpoint of which headers alone were read, and that fits.
struct Opened<'a> {
    candidate: &'a Candidate,
    checkpoint: Checkpoint,
    /// Bytes of weights.
    weights: u64,
    /// Tokens to set state aside for.
    context: usize,
    /// Whether `context` is less than usual, for want of memory.
    is_short: bool,
}

impl<'a> Opened<'a> {
    fn new(
        candidate: &'a Candidate,
        wanted: Option<usize>,
        machine: &Machine,
    ) -> anyhow::Result<Self> {
        let checkpoint = Checkpoint::open(&candidate.dir)?;
        let shape = &checkpoint.config().shape;
        let weights = text_bytes(&inspect(&checkpoint)?);
        let context = plan(shape, weights, wanted, machine)
            .map_err(|refusal| with_alternative(refusal, candidate))?;
        let is_short = wanted.is_none() && context < CONTEXT_DEFAULT.min(shape.max_positions);
        Ok(Self { candidate, checkpoint, weights, context, is_short })
    }

    fn text(&self) -> anyhow::Result<TextSide> {
        let dir = self.candidate.dir.clone();
        let tokenizer = Tokenizer::load(&dir)?;
        let (ids, rows) = (tokenizer.vocab_size(), self.checkpoint.config().shape.vocab_size);
        if ids > rows {
            bail!(
                "{}: the tokenizer has {ids} ids but the model only {rows}: \
                 these files do not belong together",
                dir.display()
            );
        }
        Ok(TextSide { dir, tokenizer })
    }

    fn load(self, args: &ModelArgs, machine: &Machine) -> anyhow::Result<Loaded> {
        let Self { candidate, checkpoint, weights, context, is_short } = self;
        if is_short {
            output::note(&format!(
                "context: {context} tokens, which is what this machine's memory allows"
            ));
        }
        let config = checkpoint.config().clone();
        let network = checkpoint.load()?;
        let used = MemoryPlan::new(&config.shape, weights, context, ELEMENT_BYTES).total();
        let budget = machine.limit().saturating_sub(used).min(SNAPSHOT_BYTES_MAX);
        let (runner, device) = start(args, network, &config.shape, context, budget)?;
        let Candidate { dir, why } = candidate.clone();
        Ok(Loaded { dir, config, runner, context, device, why })
    }
}

/// Names the demo in a refusal of another model that the user named.
fn with_alternative(error: anyhow::Error, candidate: &Candidate) -> anyhow::Error {
    let demo = if candidate.why.is_named() { discover::demo() } else { None };
    match demo.filter(|_| error.is::<Refusal>()) {
        Some(demo) => {
            anyhow::anyhow!("{error}. The demo fits everywhere: --model {}", demo.display())
        }
        None => error,
    }
}

/// Bytes of weights that would be used: all but the vision tower.
pub(crate) fn text_bytes(inspection: &Inspection) -> u64 {
    inspection.tensors.iter().filter(|t| t.part != Part::Vision).map(|t| t.bytes).sum()
}

/// The context to set aside state for, in tokens, or the refusal. Nothing of the weights is read.
fn plan(
    shape: &Shape,
    weights: u64,
    wanted: Option<usize>,
    machine: &Machine,
) -> anyhow::Result<usize> {
    let check = |context| {
        MemoryPlan::new(shape, weights, context, ELEMENT_BYTES).check(machine).map(|()| context)
    };
    match wanted {
        Some(context) if context > shape.max_positions => bail!(
            "a context of {context} tokens was asked for, but the model was made for at most {}",
            shape.max_positions
        ),
        Some(context) => Ok(check(context)?),
        None => {
            let default = CONTEXT_DEFAULT.min(shape.max_positions);
            let longest = MemoryPlan::longest_context(shape, weights, ELEMENT_BYTES, machine);
            if longest < CONTEXT_DEFAULT_MIN.min(default) {
                return Ok(check(CONTEXT_DEFAULT_MIN.min(default))?);
            }
            Ok(default.min(longest))
        }
    }
}

fn start(
    args: &ModelArgs,
    network: Network<CheckpointParts>,
    shape: &Shape,
    context: usize,
    snapshot_budget: u64,
) -> anyhow::Result<(Box<dyn Runner>, String)> {
    let size = cache_size(shape, context, ELEMENT_BYTES, snapshot_budget);
    if args.device == Device::Reference {
        let ops = Reference::new(shape.clone(), size)?;
        return Ok((Box::new(Executor { ops, network }), "f32 reference".to_owned()));
    }
    // 0: all that the machine offers.
    let ops = Cpu::new(shape.clone(), size, args.threads.map_or(0, usize::from))?;
    let threads = ops.threads();
    let words = format!("CPU, {threads} {}", if threads == 1 { "thread" } else { "threads" });
    Ok((Box::new(Executor { ops, network }), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gigabytes: u64) -> Machine {
        let total = gigabytes << 30;
        Machine { total, available: total, is_mac: false, gpu_limit_setting: None }
    }

    #[test]
    fn the_default_context_shrinks_to_what_fits_and_no_further() {
        let shape = Shape::full(40);
        let weights = 19_508_787_456;
        assert_eq!(plan(&shape, weights, None, &machine(64)).unwrap(), CONTEXT_DEFAULT);
        assert_eq!(plan(&shape, weights, Some(4096), &machine(64)).unwrap(), 4096);
        // 19.5 GB of weights, 66 MB of state and 1 GiB of reserve leave room for a few thousand tokens.
        let tight = Machine { available: 20_900_000_000, ..machine(20) };
        let context = plan(&shape, weights, None, &tight).unwrap();
        assert!((CONTEXT_DEFAULT_MIN..CONTEXT_DEFAULT).contains(&context), "{context}");
        let message = plan(&shape, weights, None, &machine(16)).unwrap_err().to_string();
        assert!(message.contains("does not fit"), "{message}");
        let message = plan(&shape, weights, Some(300_000), &machine(640)).unwrap_err().to_string();
        assert!(message.contains("at most 262144"), "{message}");
    }
}
