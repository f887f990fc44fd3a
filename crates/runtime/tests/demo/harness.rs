//! The demo checkpoint with its text side, behind a session.

use calla_cpu::Cpu;
use calla_engine::{CacheKey, CutRule, Request, Speculation, StateNeeds, Thinking, Usage};
use calla_grammar::Compiler;
use calla_ops::{Executor, Runner};
use calla_runtime::{Driver, Limits, Progress, Session, engine_config, store_sizes};
use calla_store::Store;
use calla_text::{ChatTemplate, GenerationDefaults, Message, RenderOptions, Reply, Tokenizer};
use calla_text::{ReplyAssembler, ReplyForm};
use calla_weights::Checkpoint;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const CONTEXT: usize = 8192;
/// Room for snapshots: far more than any of the tests takes.
const SNAPSHOT_BYTES: u64 = 256 << 20;

pub(crate) fn demo_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo"))
}

/// The demo's text side.
pub(crate) struct Text {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
    pub(crate) stop_ids: Vec<u32>,
    markers: Vec<u32>,
}

pub(crate) struct Demo {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) markers: Vec<u32>,
    pub(crate) session: Session,
}

/// What a session is to have beside memory for snapshots.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setup<'a> {
    /// Drafts of a fixed depth.
    pub(crate) depth: usize,
    pub(crate) disk: Option<&'a Path>,
    /// Requests that run at once beside the first.
    pub(crate) more_running: usize,
    /// Bytes for snapshots, if not far more than any of the tests takes.
    pub(crate) snapshot_bytes: Option<u64>,
}

/// A question.
pub(crate) struct Ask<'a> {
    pub(crate) messages: &'a [Message],
    pub(crate) tools: &'a [Value],
    pub(crate) think: bool,
    pub(crate) key: &'a str,
}

/// A reply with the tokens that it came from.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) prompt: Vec<u32>,
    pub(crate) ids: Vec<u32>,
    pub(crate) usage: Usage,
}

impl Demo {
    pub(crate) fn load(setup: Setup<'_>) -> Self {
        let (driver, context, text) = Self::driver(setup);
        let Text { tokenizer, template, stop_ids, markers } = text;
        let session = Session::new(driver, context);
        Self { stop_ids, template, session, tokenizer, markers }
    }

    /// A driver for many callers, its context, and the text side.
    pub(crate) fn driver(setup: Setup<'_>) -> (Driver, usize, Text) {
        let dir = demo_dir();
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let config = checkpoint.config().clone();
        let tokenizer = Tokenizer::load(&dir).unwrap();
        let defaults = GenerationDefaults::load(&dir).unwrap();
        let needs = StateNeeds {
            sequences: 1 + setup.more_running,
            checkpoint_slots: setup.depth * (1 + setup.more_running),
            drafting: setup.depth > 0,
            ..StateNeeds::one_sequence(CONTEXT, 4)
        };
        let bytes = setup.snapshot_bytes.unwrap_or(SNAPSHOT_BYTES);
        let ops =
            Cpu::new(config.shape.clone(), needs.cache_size(&config.shape, bytes), 1).unwrap();
        let executor = Executor::new(ops, checkpoint.load().unwrap());
        let executor = if needs.drafting { executor.with_drafts().unwrap() } else { executor };
        let markers = ["<|im_start|>", "<tool_response>"];
        let markers: Vec<u32> = markers.map(|m| tokenizer.token_id(m).unwrap()).to_vec();
        let limits = Limits {
            context: CONTEXT,
            running_max: 1 + setup.more_running,
            queue_max: 100,
            speculation: match setup.depth {
                0 => Speculation::Off,
                depth => Speculation::Fixed(depth),
            },
            fast_cache: false,
        };
        let stop_ids = tokenizer.eos_ids(&config.eos_token_ids, &defaults);
        let engine = engine_config(&executor, CutRule::new(markers.clone()), limits);
        let compiler = Compiler::new(&tokenizer, tokenizer.vocab_size(), &stop_ids).unwrap();
        let compile = Box::new(move |grammar: &_| {
            compiler.compile(grammar).map_err(|error| error.to_string())
        });
        let store = setup.disk.map(|dir| store(dir, &checkpoint.digest(), &executor));
        let context = engine.context;
        let driver = Driver::new(Box::new(executor), engine, compile, store.into()).unwrap();
        let template = ChatTemplate::load(&dir).unwrap();
        (driver, context, Text { tokenizer, template, stop_ids, markers })
    }

    /// The greedy reply to a conversation.
    pub(crate) fn answer(&mut self, ask: &Ask<'_>, max_tokens: usize) -> Answer {
        let options = RenderOptions {
            tools: ask.tools.to_vec(),
            add_generation_prompt: true,
            enable_thinking: Some(ask.think),
            ..RenderOptions::default()
        };
        let rendered = self.template.render(&self.tokenizer, ask.messages, &options).unwrap();
        let request = Request {
            key: CacheKey { owner: "tests".into(), name: ask.key.into() },
            stop_ids: self.stop_ids.clone(),
            vocab_used: self.tokenizer.vocab_size(),
            thinking: rendered.thinking.then(|| self.thinking(None)),
            ..Request::new(rendered.ids.clone(), max_tokens)
        };
        let form = ReplyForm::Chat { thinking: rendered.thinking, tools: ask.tools };
        let mut assembler = ReplyAssembler::new(&self.tokenizer, form, &[""; 0]).unwrap();
        let (ids, usage) = self.run(request, |token| {
            assembler.push(token);
        });
        Answer { reply: assembler.finish().reply, prompt: rendered.ids, ids, usage }
    }

    /// Thinking that the prompt has opened.
    pub(crate) fn thinking(&self, budget: Option<usize>) -> Thinking {
        let end_id = self.tokenizer.token_id("</think>").unwrap();
        let mut forced_end = self.tokenizer.encode_text("\n").unwrap();
        forced_end.push(end_id);
        let separator = self.tokenizer.encode_text("\n\n").unwrap();
        Thinking { end_id, budget, forced_end, separator }
    }

    /// The reply to a request, and its counts.
    pub(crate) fn run(
        &mut self,
        request: Request,
        mut on_token: impl FnMut(u32),
    ) -> (Vec<u32>, Usage) {
        let mut generation = self.session.start(request).unwrap();
        let mut ids = vec![];
        loop {
            match generation.advance().unwrap() {
                Progress::Prefill { .. } => {}
                Progress::Token(token, _) => {
                    ids.push(token);
                    on_token(token);
                }
                Progress::Finished(_, usage) => return (ids, usage),
            }
        }
    }
}

fn store(dir: &Path, digest: &str, runner: &dyn Runner) -> Store {
    let sizes = store_sizes(runner);
    let limits = calla_store::Limits { bytes: 1 << 30, age: Duration::from_secs(3600) };
    let version = format!("{digest} {}", runner.arithmetic());
    Store::open(dir, &version, sizes, limits, SystemTime::now()).unwrap()
}
