//! One request from prompt ids to a finished reply, with its timings: shared by `chat` and `generate`.

use crate::args::SamplingArgs;
use crate::load::Model;
use crate::prefill_line::PrefillLine;
use calla_engine::{
    CacheKey, FinishReason, Grammar, Level, Miss, Request, Sampling, TokenLogprobs, Usage,
};
use calla_runtime::Progress;
use calla_text::{Event, FinishedReply, ReplyAssembler, ReplyForm};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Exit status of a program that Ctrl-C ended, as shells know it.
pub(crate) const INTERRUPTED: i32 = 130;

/// What to answer, and how.
pub(crate) struct Task<'a> {
    pub(crate) prompt: Vec<u32>,
    pub(crate) form: ReplyForm<'a>,
    pub(crate) sampling: Sampling,
    /// What else the flags say of the reply: its length and its ends.
    pub(crate) args: &'a SamplingArgs,
    /// Tokens of thinking at most.
    pub(crate) thinking_budget: Option<u32>,
    pub(crate) grammar: Option<Grammar>,
    /// Log-probabilities of each token, and of so many likely ones.
    pub(crate) logprobs: Option<u8>,
}

/// A reply and how it came about.
pub(crate) struct Outcome {
    pub(crate) reply: FinishedReply,
    pub(crate) ids: Vec<u32>,
    /// Of each token, if they were asked for; of tokens that nobody chose there are none.
    pub(crate) logprobs: Vec<Option<TokenLogprobs>>,
    pub(crate) end: End,
    pub(crate) prompt_tokens: usize,
    /// Prompt tokens computed or reused: all of them, unless the reply ended before it began.
    pub(crate) prompt_done: usize,
    /// Counts, among them the prompt tokens that had been computed before and why not more.
    pub(crate) usage: Usage,
    /// Until the first token was there.
    pub(crate) prefill: Duration,
    /// From the first token to the last.
    pub(crate) decode: Duration,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// End of turn, or a stop string.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The user stopped it.
    Cancelled,
}

impl Outcome {
    /// Prompt tokens computed per second.
    pub(crate) fn prefill_rate(&self) -> f64 {
        rate(self.prompt_done.saturating_sub(self.usage.reuse.reused), self.prefill)
    }

    /// Reply tokens per second, the first one not counted: it belongs to the prefill.
    pub(crate) fn decode_rate(&self) -> f64 {
        rate(self.ids.len().saturating_sub(1), self.decode)
    }

    /// As OpenAI's API names it.
    pub(crate) fn finish_reason(&self) -> &'static str {
        match self.end {
            End::Length | End::ContextFull => "length",
            End::Stop | End::Cancelled if self.reply.reply.tool_calls.is_empty() => "stop",
            End::Stop | End::Cancelled => "tool_calls",
        }
    }

    /// The object that `generate --json` prints.
    pub(crate) fn to_json(&self) -> Value {
        let reuse = self.usage.reuse;
        let calls: Vec<Value> = self
            .reply
            .reply
            .tool_calls
            .iter()
            .enumerate()
            .map(|(index, call)| {
                let arguments = Value::Object(call.arguments.clone()).to_string();
                let function = json!({"name": call.name, "arguments": arguments});
                json!({"id": call_id(index), "type": "function", "function": function})
            })
            .collect();
        let mut value = json!({
            "text": self.reply.reply.content,
            "reasoning": self.reply.reply.reasoning,
            "tool_calls": calls,
            "ids": self.ids,
            "finish_reason": self.finish_reason(),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": reuse.reused,
                "common_tokens": reuse.common,
                "cache_from_host": reuse.from == Some(Level::Host),
                "cache_from_disk": reuse.from == Some(Level::Disk),
                "cache_provisional": reuse.provisional,
                "cache_miss": reuse.miss.map(Miss::name),
                "diverges_at": reuse.divergence.map(|d| json!({"token": d.token, "message": d.message})),
                "completion_tokens": self.ids.len(),
                "reasoning_tokens": self.reply.reasoning_tokens,
                "drafted_tokens": self.usage.drafted_tokens,
                "accepted_tokens": self.usage.accepted_tokens,
            },
            "timings": {
                "prefill_seconds": self.prefill.as_secs_f64(),
                "decode_seconds": self.decode.as_secs_f64(),
                "prefill_tokens_per_second": self.prefill_rate(),
                "decode_tokens_per_second": self.decode_rate(),
            },
        });
        if !self.logprobs.is_empty() {
            value["logprobs"] = self.logprobs.iter().map(logprobs_json).collect();
        }
        value
    }
}

fn logprobs_json(logprobs: &Option<TokenLogprobs>) -> Value {
    let Some(TokenLogprobs { logprob, top }) = logprobs else { return Value::Null };
    let top: Vec<Value> = top.iter().map(|(id, lp)| json!({"id": id, "logprob": lp})).collect();
    json!({"logprob": logprob, "top": top})
}

/// Id of a reply's call.
pub(crate) fn call_id(index: usize) -> String {
    format!("call_{index}")
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// Answers. Events go to `on_event` as they come; `cancel` is looked at between two steps.
pub(crate) fn run(
    model: &mut Model,
    task: Task<'_>,
    cancel: &AtomicBool,
    mut on_event: impl FnMut(&Event) -> anyhow::Result<()>,
) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let prompt_tokens = task.prompt.len();
    let is_thinking = matches!(task.form, ReplyForm::Chat { thinking: true, .. });
    let thinking = if is_thinking { model.thinking(task.thinking_budget)? } else { None };
    let mut assembler = ReplyAssembler::new(&model.tokenizer, task.form, &task.args.stop)?;
    let mut generation = model.session.start(Request {
        prompt: task.prompt,
        key: CacheKey::default(),
        sampling: task.sampling,
        max_tokens: task.args.max_tokens.map_or(usize::MAX, |n| n as usize),
        min_tokens: task.args.min_tokens as usize,
        stop_ids: model.stop_ids.clone(),
        ignore_eos: task.args.ignore_eos,
        banned_ids: vec![],
        vocab_used: model.vocab_used,
        top_logprobs: task.logprobs.map(usize::from),
        thinking,
        grammar: task.grammar,
    })?;
    let mut ids = Vec::new();
    let mut logprobs = Vec::new();
    let mut first_token = None;
    let mut prompt_done = 0;
    let mut line = PrefillLine::new();
    let end = loop {
        if cancel.load(Ordering::Relaxed) {
            break End::Cancelled;
        }
        match generation.advance()? {
            Progress::Prefill { done, total } => {
                tracing::debug!("prefill {done}/{total}");
                prompt_done = done;
                line.update(done, total);
            }
            Progress::Token(id, of_token) => {
                if task.logprobs.is_some() {
                    logprobs.push(of_token);
                }
                first_token.get_or_insert_with(Instant::now);
                prompt_done = prompt_tokens;
                line.erase();
                ids.push(id);
                for event in assembler.push(id) {
                    on_event(&event)?;
                }
                if assembler.stopped().is_some() {
                    break End::Stop;
                }
            }
            Progress::Finished(FinishReason::Stop, _) => break End::Stop,
            Progress::Finished(FinishReason::Length, _) => break End::Length,
            Progress::Finished(FinishReason::ContextFull, _) => break End::ContextFull,
            Progress::Finished(FinishReason::Cancelled, _) => break End::Cancelled,
        }
    };
    drop(line);
    let usage = generation.end();
    let now = Instant::now();
    let first_token = first_token.unwrap_or(now);
    let reply = assembler.finish();
    for event in &reply.events {
        on_event(event)?;
    }
    Ok(Outcome {
        reply,
        ids,
        logprobs,
        end,
        prompt_tokens,
        prompt_done,
        usage,
        prefill: first_token - start,
        decode: now - first_token,
    })
}
