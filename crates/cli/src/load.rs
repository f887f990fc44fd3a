//! From a directory to a model that runs: plan the memory, load the weights, start the device.

use crate::args::ModelArgs;
use crate::device::{Devices, Hardware, MappedNetwork, OpenGpu, Place, System, Target, Wanted};
use crate::discover::{self, Candidate, Why};
use crate::engine_args::EngineArgs;
use crate::grammar;
use crate::host_cache::HostRoom;
use crate::output;
use anyhow::bail;
use calla_cpu::{Cpu, Isa};
use calla_engine::{
    CutRule, EngineConfig, Machine, MemoryPlan, Refusal, Speculation, StateNeeds, Thinking,
};
use calla_gpu::RunnerSize;
use calla_gpu::upload::check_upload;
use calla_model::network::CheckpointParts;
use calla_model::{Config, Network, Shape};
use calla_ops::runner::HostOps;
use calla_ops::{CacheSize, Executor, Reference, Runner};
use calla_runtime::{CacheLevels, Driver, Limits, Notify, Session, engine_config, store_sizes};
use calla_server::{LoadedModel, Loader, ModelParts};
use calla_store::Store;
use calla_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use calla_weights::inspect::{Inspection, Part};
use calla_weights::{Checkpoint, inspect};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Context without `--ctx`, where the model and the machine allow it.
const CONTEXT_DEFAULT: usize = 16_384;
/// The same for a server: agents begin with prompts of tens of thousands of tokens.
const CONTEXT_SERVER: usize = 65_536;
/// A default context below this would only puzzle: rather refuse.
const CONTEXT_DEFAULT_MIN: usize = 2_048;
/// Saved prefixes that were not used for so long are removed.
const DISK_CACHE_AGE: Duration = Duration::from_secs(14 * 24 * 3600);

/// A loaded network on a device.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) runner: Box<dyn Runner>,
    /// Tokens of one sequence that its state has room for.
    pub(crate) context: usize,
    /// Words for the device.
    pub(crate) device: String,
    /// For state of earlier prompts, behind a GPU.
    host_room: HostRoom,
    /// Where the weights are from.
    checkpoint: Checkpoint,
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
    pub(crate) fn load(args: &ModelArgs, engine: &EngineArgs) -> anyhow::Result<Self> {
        let mut devices = Devices::find(System::new(args)?, args.device)?;
        discover::first_that_loads(args.model.as_deref(), |candidate, _| {
            let needs = Needs { context: args.context(), ..Needs::one(engine.speculate) };
            let opened = Opened::new(candidate, needs, &devices)?;
            let text = opened.text()?;
            Self::new(opened.load(args, cache_budget(engine), &mut devices)?, text, engine)
        })
    }

    fn new(loaded: Loaded, text: TextSide, engine: &EngineArgs) -> anyhow::Result<Self> {
        let TextSide { dir, tokenizer } = text;
        let defaults = GenerationDefaults::load(&dir)?;
        let ids = tokenizer.vocab_size();
        let stop_ids = stop_ids(&tokenizer, &loaded.config, &defaults);
        let compile = grammar::compiler(&tokenizer, ids, &stop_ids)?;
        let (device, why) = (loaded.device.clone(), loaded.why);
        let limits = ServeLimits { parallel: 1, queue: 1 };
        let setup = engine_setup(&loaded, &tokenizer, engine, limits);
        let context = setup.context;
        let levels = cache_levels(&loaded, engine);
        let mut driver = Driver::new(loaded.runner, setup, compile, levels)?;
        driver.watch_memory()?;
        Ok(Self {
            dir,
            session: Session::new(driver, context),
            tokenizer,
            defaults,
            stop_ids,
            vocab_used: ids,
            device,
            is_demo: why == Why::Demo,
        })
    }

    /// How thinking that a prompt has opened ends: by itself, or by force after `budget` tokens.
    pub(crate) fn thinking(&self, budget: Option<u32>) -> anyhow::Result<Option<Thinking>> {
        let Some(end_id) = self.tokenizer.token_id("</think>") else { return Ok(None) };
        let mut forced_end = self.tokenizer.encode_text("\n")?;
        forced_end.push(end_id);
        Ok(Some(Thinking {
            end_id,
            budget: budget.map(|tokens| tokens as usize),
            forced_end,
            separator: self.tokenizer.encode_text("\n\n")?,
        }))
    }

    /// The checkpoint's chat template.
    pub(crate) fn template(&self) -> anyhow::Result<ChatTemplate> {
        Ok(ChatTemplate::load(&self.dir)?)
    }
}

/// Tokens that end a reply.
fn stop_ids(tokenizer: &Tokenizer, config: &Config, defaults: &GenerationDefaults) -> Vec<u32> {
    let mut ids = tokenizer.eos_ids(&config.eos_token_ids, defaults);
    // A model that opens a turn has ended its own, even if it forgot to say so.
    ids.extend(tokenizer.token_id("<|im_start|>"));
    ids
}

/// What a server may run at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServeLimits {
    /// Requests that run at once.
    pub(crate) parallel: usize,
    /// Requests that may wait.
    pub(crate) queue: usize,
}

/// The text side of the model that the flags name, or of the best that is found, as far as headers can tell, and the
/// device that it is to run on.
pub(crate) fn for_server(
    args: &ModelArgs,
    engine: &EngineArgs,
    limits: ServeLimits,
) -> anyhow::Result<(Candidate, ModelParts, Devices)> {
    let mut devices = Devices::find(System::new(args)?, args.device)?;
    let (candidate, parts, target) =
        discover::first_that_loads(args.model.as_deref(), |candidate, _| {
            let opened = Opened::new(candidate, server_needs(args, engine, limits), &devices)?;
            let TextSide { dir, tokenizer } = opened.text()?;
            let defaults = GenerationDefaults::load(&dir)?;
            let parts = ModelParts {
                name: name_of(&dir, candidate.why),
                template: ChatTemplate::load(&dir)?,
                stop_ids: stop_ids(&tokenizer, opened.checkpoint.config(), &defaults),
                vocab_used: tokenizer.vocab_size(),
                context: opened.needs.context,
                preserve_thinking: None,
                tokenizer,
                defaults,
            };
            Ok((candidate.clone(), parts, opened.place.target))
        })?;
    devices.settle(target);
    Ok((candidate, parts, devices))
}

/// What loads the weights for a server, as often as it is called.
pub(crate) fn server_loader(
    args: ModelArgs,
    engine: EngineArgs,
    limits: ServeLimits,
    candidate: Candidate,
    model: calla_server::Model,
    mut devices: Devices,
) -> Loader {
    Box::new(move |notify| {
        let loaded =
            load_for_server(&args, &engine, limits, &candidate, &model, &mut devices, notify);
        loaded.map_err(|error| output::chain(&error))
    })
}

fn load_for_server(
    args: &ModelArgs,
    engine: &EngineArgs,
    limits: ServeLimits,
    candidate: &Candidate,
    model: &calla_server::Model,
    devices: &mut Devices,
    notify: Notify,
) -> anyhow::Result<LoadedModel> {
    devices.refresh()?;
    // The context was promised when the server started; a later load may not shorten it.
    let context = Some(model.parts().context);
    let needs = Needs { context, ..server_needs(args, engine, limits) };
    let opened = Opened::new(candidate, needs, devices)?;
    let loaded = opened.load(args, cache_budget(engine), devices)?;
    let setup = engine_setup(&loaded, &model.parts().tokenizer, engine, limits);
    let levels = cache_levels(&loaded, engine);
    let mut driver = Driver::with_notify(loaded.runner, setup, model.compile(), levels, notify)?;
    driver.watch_memory()?;
    Ok(LoadedModel { driver, device: loaded.device })
}

/// How an engine is set up on a loaded network.
fn engine_setup(
    loaded: &Loaded,
    tokenizer: &Tokenizer,
    engine: &EngineArgs,
    limits: ServeLimits,
) -> EngineConfig {
    let limits = Limits {
        context: loaded.context,
        running_max: limits.parallel,
        queue_max: limits.queue,
        speculation: engine.speculate,
        fast_cache: engine.fast_cache,
    };
    engine_config(loaded.runner.as_ref(), cut_rule(tokenizer), limits)
}

/// Where state is saved besides the device's memory: host memory, and the disk cache if the flags ask for one and it can be
/// had.
fn cache_levels(loaded: &Loaded, engine: &EngineArgs) -> CacheLevels {
    let store = engine.disk_cache.as_deref().and_then(|dir| open_store(dir, loaded, engine));
    CacheLevels { host_bytes: loaded.host_room.bytes(engine), store }
}

fn server_needs(args: &ModelArgs, engine: &EngineArgs, limits: ServeLimits) -> Needs {
    Needs {
        context: args.context(),
        usual: CONTEXT_SERVER,
        sequences: limits.parallel,
        speculation: engine.speculate,
    }
}

fn cache_budget(engine: &EngineArgs) -> u64 {
    u64::from(engine.cache_memory) * 1_000_000
}

/// The name that clients see: that of the folder, or of the repository where the folder is a revision in
/// Hugging Face's cache.
fn name_of(dir: &Path, why: Why) -> String {
    if why == Why::Demo {
        return "calla-demo".to_owned();
    }
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let words = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
    let hub = dir.iter().find_map(|part| words(part).strip_prefix("models--").map(str::to_owned));
    let name = hub.and_then(|name| name.rsplit("--").next().map(str::to_owned));
    let name = name.or_else(|| dir.file_name().map(words)).unwrap_or_default();
    if name == "demo" { "calla-demo".to_owned() } else { name }
}

/// Prompts are cut, and may be taken up again, where a turn or the result of a tool begins.
fn cut_rule(tokenizer: &Tokenizer) -> CutRule {
    let markers = ["<|im_start|>", "<tool_response>"];
    CutRule::new(markers.iter().filter_map(|marker| tokenizer.token_id(marker)).collect())
}

/// Loads the network. `context`: tokens that it must hold, where that is known better than by `--ctx`.
pub(crate) fn load(args: &ModelArgs, context: Option<usize>) -> anyhow::Result<Loaded> {
    let mut devices = Devices::find(System::new(args)?, args.device)?;
    let context = args.context().or(context);
    discover::first_that_loads(args.model.as_deref(), |candidate, _| {
        let needs = Needs { context, ..Needs::one(Speculation::Off) };
        Opened::new(candidate, needs, &devices)?.load(args, 0, &mut devices)
    })
}

/// What a measurement needs of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Tokens of all sequences together.
    pub(crate) context: usize,
    pub(crate) sequences: usize,
    pub(crate) speculation: Speculation,
}

/// Loads the network for a measurement, on a device of `hardware`.
pub(crate) fn load_for_bench(
    args: &ModelArgs,
    hardware: Arc<dyn Hardware>,
    wish: Wish,
) -> anyhow::Result<Loaded> {
    let Wish { context, sequences, speculation } = wish;
    let mut devices = Devices::find(hardware, args.device)?;
    discover::first_that_loads(args.model.as_deref(), |candidate, _| {
        let needs = Needs { context: Some(context), sequences, ..Needs::one(speculation) };
        Opened::new(candidate, needs, &devices)?.load(args, 0, &mut devices)
    })
}

/// The device that a model would run on, and what is known of both without loading it.
pub(crate) struct Chosen {
    pub(crate) wanted: Wanted,
    pub(crate) device_name: String,
    pub(crate) memory: Machine,
    pub(crate) element_bytes: usize,
    /// Where it is a GPU.
    pub(crate) gpu: Option<Box<dyn OpenGpu>>,
    /// What clients of a server would see.
    pub(crate) model_name: String,
    pub(crate) model_digest: String,
}

/// Chooses a device for a model with `context` tokens.
pub(crate) fn choose(args: &ModelArgs, context: usize) -> anyhow::Result<Chosen> {
    let mut devices = Devices::find(System::new(args)?, args.device)?;
    discover::first_that_loads(args.model.as_deref(), |candidate, _| {
        let needs = Needs { context: Some(context), ..Needs::one(Speculation::Off) };
        let Opened { checkpoint, place, .. } = Opened::new(candidate, needs, &devices)?;
        let (wanted, name) = (devices.wanted(place.target), devices.name(place.target).to_owned());
        let gpu = match place.target {
            Target::Gpu(index) => Some(devices.take(index)?.0),
            Target::Cpu | Target::Reference => None,
        };
        Ok(Chosen {
            wanted,
            device_name: name,
            memory: place.memory,
            element_bytes: place.element_bytes(),
            gpu,
            model_name: name_of(&candidate.dir, candidate.why),
            model_digest: checkpoint.digest(),
        })
    })
}

/// A checkpoint's directory and its tokenizer, for commands that need no weights.
pub(crate) struct TextSide {
    pub(crate) dir: PathBuf,
    pub(crate) tokenizer: Tokenizer,
}

impl TextSide {
    /// Takes the model that `chat` would take on the CPU, as far as headers can tell. Where there is no choice, as
    /// with a directory that is named, neither weights nor memory are needed.
    pub(crate) fn load(named: Option<&Path>) -> anyhow::Result<Self> {
        discover::first_that_loads(named, |candidate, is_last| {
            if is_last {
                let dir = candidate.dir.clone();
                return Ok(Self { tokenizer: Tokenizer::load(&dir)?, dir });
            }
            // A GPU takes a while to open, which no command for text alone should wait for.
            let devices = Devices::find(Arc::new(System::default()), Wanted::Cpu)?;
            Opened::new(candidate, Needs::one(Speculation::Off), &devices)?.text()
        })
    }
}

/// A checkpoint of which headers alone were read, and that fits.
struct Opened<'a> {
    candidate: &'a Candidate,
    checkpoint: Checkpoint,
    /// Bytes of weights.
    weights: u64,
    /// Where it is to run.
    place: Place,
    /// State to set aside.
    needs: StateNeeds,
    /// Whether its context is less than usual, for want of memory.
    is_short: bool,
    /// Devices that would have been better, and why they are not used.
    passed: Vec<String>,
}

/// What is wanted of a model's state.
#[derive(Clone, Copy)]
struct Needs {
    /// Tokens that one sequence must hold; `None` is `usual`, or less where less fits.
    context: Option<usize>,
    usual: usize,
    /// Sequences that run at once. They share KV pages for the context, and what the cache can spare.
    sequences: usize,
    speculation: Speculation,
}

impl Needs {
    /// One sequence of the usual length.
    fn one(speculation: Speculation) -> Self {
        Self { context: None, usual: CONTEXT_DEFAULT, sequences: 1, speculation }
    }

    /// The state to set aside in a place, apart from the context.
    fn state(&self, shape: &Shape, place: Place) -> StateNeeds {
        let depth = if shape.mtp_layers > 0 { self.speculation.depth_max() } else { 0 };
        StateNeeds {
            sequences: self.sequences,
            checkpoint_slots: depth * self.sequences,
            drafting: depth > 0,
            spare_slots: if place.is_gpu() { self.sequences } else { 0 },
            ..StateNeeds::one_sequence(0, place.element_bytes())
        }
    }
}

impl<'a> Opened<'a> {
    fn new(candidate: &'a Candidate, wanted: Needs, devices: &Devices) -> anyhow::Result<Self> {
        let checkpoint = Checkpoint::open(&candidate.dir)?;
        let shape = &checkpoint.config().shape;
        let weights = text_bytes(&inspect(&checkpoint)?);
        let usual = wanted.usual.min(shape.max_positions);
        let chosen = devices.choose(|place| {
            let needs = wanted.state(shape, place);
            let needs = plan(shape, weights, wanted.context, usual, needs, &place.memory)?;
            if place.is_gpu() {
                check_upload(&checkpoint.load()?, shape)?;
            }
            Ok((place, needs))
        });
        let ((place, needs), passed) =
            chosen.map_err(|error| with_alternative(error, candidate))?;
        let is_short = wanted.context.is_none() && needs.context < usual;
        Ok(Self { candidate, checkpoint, weights, place, needs, is_short, passed })
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

    /// Loads the weights and starts the device. `budget`: bytes for state of earlier prefixes beside the
    /// running sequence, less where less is left.
    fn load(self, args: &ModelArgs, budget: u64, devices: &mut Devices) -> anyhow::Result<Loaded> {
        let Self { candidate, checkpoint, weights, place, needs, is_short, passed } = self;
        let context = needs.context;
        if is_short {
            output::note(&format!(
                "context: {context} tokens, which is what this machine's memory allows"
            ));
        }
        let config = checkpoint.config().clone();
        let mapped = MappedNetwork::load(&checkpoint)?;
        let used = MemoryPlan::new(&config.shape, weights, &needs).total();
        let budget = place.memory.limit().saturating_sub(used).min(budget);
        let size = needs.cache_size(&config.shape, budget);
        let host_room = HostRoom::behind(place, devices, used + budget);
        let target = place.target;
        let (runner, device) = start(args, mapped, &config.shape, size, &needs, target, devices)?;
        if let Some(line) = devices.announcement(place, &device, &passed) {
            output::note(&line);
        }
        let why = candidate.why;
        Ok(Loaded { config, runner, context, device, host_room, checkpoint, why })
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

/// The state to set aside: `needs` with the context that was wanted, or the usual one or what of it fits, or
/// the refusal. Nothing of the weights is read.
fn plan(
    shape: &Shape,
    weights: u64,
    wanted: Option<usize>,
    usual: usize,
    needs: StateNeeds,
    machine: &Machine,
) -> anyhow::Result<StateNeeds> {
    let check = |context| {
        let needs = StateNeeds { context, ..needs };
        MemoryPlan::new(shape, weights, &needs).check(machine).map(|()| needs)
    };
    match wanted {
        Some(context) if context > shape.max_positions => bail!(
            "a context of {context} tokens was asked for, but the model was made for at most {}",
            shape.max_positions
        ),
        Some(context) => Ok(check(context)?),
        None => {
            let longest = MemoryPlan::longest_context(shape, weights, &needs, machine);
            if longest < CONTEXT_DEFAULT_MIN.min(usual) {
                return Ok(check(CONTEXT_DEFAULT_MIN.min(usual))?);
            }
            Ok(StateNeeds { context: usual.min(longest), ..needs })
        }
    }
}

fn start(
    args: &ModelArgs,
    weights: MappedNetwork,
    shape: &Shape,
    size: CacheSize,
    needs: &StateNeeds,
    target: Target,
    devices: &mut Devices,
) -> anyhow::Result<(Box<dyn Runner>, String)> {
    let drafting = needs.drafting;
    if let Target::Gpu(index) = target {
        let size = RunnerSize { cache: size, sequences: needs.sequences, drafting };
        let (gpu, name) = devices.take(index)?;
        return Ok((gpu.start(&weights, shape, size)?, name));
    }
    let network = weights.network;
    if target == Target::Reference {
        let ops = Reference::new(shape.clone(), size)?;
        return Ok((runner(ops, network, drafting)?, "f32 reference".to_owned()));
    }
    // 0: all that the machine offers.
    let threads = args.threads.map_or(0, usize::from);
    let ops = Cpu::with_isa(shape.clone(), size, threads, args.isa.unwrap_or_else(Isa::detect))?;
    let threads = ops.threads();
    let words = format!("CPU, {threads} {}", if threads == 1 { "thread" } else { "threads" });
    Ok((runner(ops, network, drafting)?, words))
}

fn runner<O>(
    ops: O,
    network: Network<CheckpointParts>,
    drafting: bool,
) -> anyhow::Result<Box<dyn Runner>>
where
    O: HostOps<Parts = CheckpointParts> + 'static,
{
    let executor = Executor::new(ops, network);
    Ok(Box::new(if drafting { executor.with_drafts()? } else { executor }))
}

/// Opens the disk cache. That it cannot be had is told, and the program goes on without.
fn open_store(dir: &Path, loaded: &Loaded, engine: &EngineArgs) -> Option<Store> {
    let runner = &loaded.runner;
    // State of another checkpoint, of other arithmetic or of another version of the program may differ in
    // its last bits, and a reply must not depend on it.
    let version = format!(
        "calla {} {} {}{}",
        env!("CARGO_PKG_VERSION"),
        loaded.checkpoint.digest(),
        runner.arithmetic(),
        if runner.can_draft() { " drafting" } else { "" }
    );
    let sizes = store_sizes(runner.as_ref());
    let bytes = u64::from(engine.disk_cache_size) * 1_000_000_000;
    let limits = calla_store::Limits { bytes, age: DISK_CACHE_AGE };
    match Store::open(dir, &version, sizes, limits, SystemTime::now()) {
        Ok(store) => Some(store),
        Err(error) => {
            output::note(&format!("going on without the disk cache: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HOST_ELEMENT_BYTES;

    fn machine(gigabytes: u64) -> Machine {
        let total = gigabytes << 30;
        Machine { total, available: total, is_mac: false, gpu_limit_setting: None }
    }

    /// The context that is planned for.
    fn context(wanted: Option<usize>, machine: &Machine) -> anyhow::Result<usize> {
        let needs = StateNeeds::one_sequence(0, HOST_ELEMENT_BYTES);
        let (shape, weights) = (Shape::full(40), 19_508_787_456);
        Ok(plan(&shape, weights, wanted, CONTEXT_DEFAULT, needs, machine)?.context)
    }

    #[test]
    fn the_default_context_shrinks_to_what_fits_and_no_further() {
        assert_eq!(context(None, &machine(64)).unwrap(), CONTEXT_DEFAULT);
        assert_eq!(context(Some(4096), &machine(64)).unwrap(), 4096);
        // 19.5 GB of weights, 66 MB of state and 1 GiB of reserve leave room for a few thousand tokens.
        let tight = Machine { available: 20_900_000_000, ..machine(20) };
        let short = context(None, &tight).unwrap();
        assert!((CONTEXT_DEFAULT_MIN..CONTEXT_DEFAULT).contains(&short), "{short}");
        let message = context(None, &machine(16)).unwrap_err().to_string();
        assert!(message.contains("does not fit"), "{message}");
        let message = context(Some(300_000), &machine(640)).unwrap_err().to_string();
        assert!(message.contains("at most 262144"), "{message}");
    }
}
