//! One request from prompt ids to a finished reply, with its timings: shared by `chat` and `generate`.

use crate::load::Model;
use crate::prefill_line::PrefillLine;
use calla_engine::{CacheKey, FinishReason, Progress, Request, Reuse, Sampling};
use calla_text::{Event, FinishedReply, ReplyAssembler, ReplyForm};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What to answer, and how.
pub(crate) struct Task<'a> {
    pub(crate) prompt: Vec<u32>,
    pub(crate) form: ReplyForm<'a>,
    pub(crate) sampling: Sampling,
    pub(crate) stops: &'a [String],
    /// `None`: until the context is full.
    pub(crate) max_tokens: Option<u32>,
}

/// A reply and how it came about.
pub(crate) struct Outcome {
    pub(crate) reply: FinishedReply,
    pub(crate) ids: Vec<u32>,
    pub(crate) end: End,
    pub(crate) prompt_tokens: usize,
    /// Prompt tokens computed or reused: all of them, unless the reply ended before it began.
    pub(crate) prompt_done: usize,
    /// Prompt tokens that had been computed before, and why not more of them.
    pub(crate) reuse: Reuse,
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
        rate(self.prompt_done.saturating_sub(self.reuse.reused), self.prefill)
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
        json!({
            "text": self.reply.reply.content,
            "reasoning": self.reply.reply.reasoning,
            "tool_calls": calls,
            "ids": self.ids,
            "finish_reason": self.finish_reason(),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.reuse.reused,
                "completion_tokens": self.ids.len(),
                "reasoning_tokens": self.reply.reasoning_tokens,
            },
            "timings": {
                "prefill_seconds": self.prefill.as_secs_f64(),
                "decode_seconds": self.decode.as_secs_f64(),
                "prefill_tokens_per_second": self.prefill_rate(),
                "decode_tokens_per_second": self.decode_rate(),
            },
        })
    }
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
    let mut assembler = ReplyAssembler::new(&model.tokenizer, task.form, task.stops)?;
    let mut generation = model.session.start(Request {
        prompt: task.prompt,
        key: CacheKey::default(),
        sampling: task.sampling,
        max_tokens: task.max_tokens.map_or(usize::MAX, |n| n as usize),
        stop_ids: model.stop_ids.clone(),
        vocab_used: model.vocab_used,
    })?;
    let mut ids = Vec::new();
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
            Progress::Token(id) => {
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
    let reuse = generation.end().reuse;
    let now = Instant::now();
    let first_token = first_token.unwrap_or(now);
    let reply = assembler.finish();
    for event in &reply.events {
        on_event(event)?;
    }
    Ok(Outcome {
        reply,
        ids,
        end,
        prompt_tokens,
        prompt_done,
        reuse,
        prefill: first_token - start,
        decode: now - first_token,
    })
}
