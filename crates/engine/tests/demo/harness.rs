//! The demo checkpoint with its text side, behind a session.

use calla_cpu::Cpu;
use calla_engine::memory::cache_size;
use calla_engine::{CacheKey, CutRule, Progress, Request, Reuse, Sampling, Session};
use calla_ops::Executor;
use calla_text::{ChatTemplate, GenerationDefaults, Message, RenderOptions, Reply, Tokenizer};
use calla_text::{ReplyAssembler, ReplyForm};
use calla_weights::Checkpoint;
use serde_json::Value;
use std::path::PathBuf;

const CONTEXT: usize = 8192;
/// Room for snapshots: far more than any of the tests takes.
const SNAPSHOT_BYTES: u64 = 256 << 20;

pub(crate) fn demo_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo"))
}

pub(crate) struct Demo {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    stop_ids: Vec<u32>,
    pub(crate) markers: Vec<u32>,
    pub(crate) session: Session,
}

/// A reply with the tokens that it came from.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) prompt: Vec<u32>,
    pub(crate) ids: Vec<u32>,
    pub(crate) reuse: Reuse,
}

impl Demo {
    pub(crate) fn load() -> Self {
        let dir = demo_dir();
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let config = checkpoint.config().clone();
        let tokenizer = Tokenizer::load(&dir).unwrap();
        let defaults = GenerationDefaults::load(&dir).unwrap();
        let size = cache_size(&config.shape, CONTEXT, 4, SNAPSHOT_BYTES);
        let ops = Cpu::new(config.shape, size, 1).unwrap();
        let runner = Executor { ops, network: checkpoint.load().unwrap() };
        let markers = ["<|im_start|>", "<tool_response>"];
        let markers: Vec<u32> = markers.map(|m| tokenizer.token_id(m).unwrap()).to_vec();
        let rule = CutRule::new(markers.clone());
        Self {
            stop_ids: tokenizer.eos_ids(&config.eos_token_ids, &defaults),
            template: ChatTemplate::load(&dir).unwrap(),
            session: Session::new(Box::new(runner), CONTEXT, rule),
            tokenizer,
            markers,
        }
    }

    /// The greedy reply to a conversation.
    pub(crate) fn answer(
        &mut self,
        messages: &[Message],
        tools: &[Value],
        think: bool,
        max_tokens: usize,
    ) -> Answer {
        let options = RenderOptions {
            tools: tools.to_vec(),
            add_generation_prompt: true,
            enable_thinking: Some(think),
            ..RenderOptions::default()
        };
        let rendered = self.template.render(&self.tokenizer, messages, &options).unwrap();
        let request = Request {
            prompt: rendered.ids.clone(),
            key: CacheKey::default(),
            sampling: Sampling::greedy(),
            max_tokens,
            stop_ids: self.stop_ids.clone(),
            vocab_used: self.tokenizer.vocab_size(),
        };
        let form = ReplyForm::Chat { thinking: rendered.thinking, tools };
        let mut assembler = ReplyAssembler::new(&self.tokenizer, form, &[""; 0]).unwrap();
        let mut generation = self.session.start(request).unwrap();
        let mut ids = vec![];
        loop {
            match generation.advance().unwrap() {
                Progress::Prefill { .. } => {}
                Progress::Token(token) => {
                    ids.push(token);
                    assembler.push(token);
                }
                Progress::Finished(_, usage) => {
                    let reply = assembler.finish().reply;
                    let prompt = rendered.ids;
                    return Answer { reply, prompt, ids, reuse: usage.reuse };
                }
            }
        }
    }
}
