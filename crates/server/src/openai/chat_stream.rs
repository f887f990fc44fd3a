//! A chat completion as a stream of chunks.

use super::chat::{FINGERPRINT, Head, finish_reason};
use super::logprobs::ChoiceLogprobs;
use super::usage::{CacheReport, TimingsReport, Usage};
use crate::dialect::Dialect;
use crate::generate::{Delta, Ended, Generation, Happening, Summary};
use crate::http::sse::{SseItem, sse};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::time::Duration;

/// Makes chunks of what happens.
struct Chunker {
    head: Head,
    includes_usage: bool,
    /// Replies whose first chunk, with the role, was sent.
    opened: Vec<bool>,
}

/// The response that streams a generation.
pub(super) fn respond(
    generation: Generation,
    head: Head,
    includes_usage: bool,
    keep_alive: Duration,
) -> Response {
    let opened = vec![false; generation.choices()];
    let chunker = Chunker { head, includes_usage, opened };
    let parts = stream::unfold(
        (generation, chunker, false),
        |(mut generation, mut chunker, done)| async move {
            if done {
                return None;
            }
            let (items, is_done) = match generation.next().await {
                Some(happening) => chunker.items(happening, || generation.summary()),
                None => (chunker.end(&generation.summary()), true),
            };
            Some((stream::iter(items), (generation, chunker, is_done)))
        },
    );
    sse(parts.flatten(), keep_alive)
}

impl Chunker {
    /// What is sent for a happening, and whether it is the last.
    fn items(
        &mut self,
        happening: Happening,
        summary: impl FnOnce() -> Summary,
    ) -> (Vec<SseItem>, bool) {
        match happening {
            Happening::Prefill { done, total } => {
                let mut items = vec![SseItem::Comment(format!("prefill {done}/{total}"))];
                // At once, so that the client knows that it is served.
                for choice in 0..self.opened.len() {
                    items.extend(self.open(choice));
                }
                (items, false)
            }
            Happening::Delta { choice, delta } => {
                let mut items: Vec<SseItem> = self.open(choice).into_iter().collect();
                let (delta, logprobs) = match delta {
                    Delta::Reasoning(text) => (json!({"reasoning_content": text}), None),
                    Delta::Content(text, logprobs) => (json!({"content": text}), Some(logprobs)),
                    Delta::CallStart { index, id, name } => {
                        let function = json!({"name": name, "arguments": ""});
                        let call = json!({"index": index, "id": id, "type": "function", "function": function});
                        (json!({"tool_calls": [call]}), None)
                    }
                    Delta::CallArguments { index, json: piece } => {
                        let call = json!({"index": index, "function": {"arguments": piece}});
                        (json!({"tool_calls": [call]}), None)
                    }
                    Delta::CallEnd { .. } => return (items, false),
                };
                let logprobs = logprobs.filter(|list| !list.is_empty());
                let logprobs = logprobs.map(|list| ChoiceLogprobs::from(list.as_slice()));
                items.push(self.choice_chunk(choice, &delta, &json!(logprobs), None, None));
                (items, false)
            }
            Happening::Ended { choice, ended } => {
                let mut items: Vec<SseItem> = self.open(choice).into_iter().collect();
                items.push(self.finish(choice, &ended, summary));
                (items, false)
            }
            Happening::Failed(error) => {
                let body = Dialect::OpenAi.error_body(&error);
                (vec![data(&body)], true)
            }
        }
    }

    /// The first chunk of a reply, if it was not sent yet.
    fn open(&mut self, choice: usize) -> Option<SseItem> {
        if std::mem::replace(&mut self.opened[choice], true) {
            return None;
        }
        let delta = json!({"role": "assistant", "content": ""});
        Some(self.choice_chunk(choice, &delta, &Value::Null, None, None))
    }

    fn finish(&self, choice: usize, ended: &Ended, summary: impl FnOnce() -> Summary) -> SseItem {
        let reason = finish_reason(&ended.end);
        // Where no chunk of counts follows, these have nowhere else to go.
        let report = (!self.includes_usage).then(summary);
        self.choice_chunk(choice, &json!({}), &Value::Null, Some(reason), report.as_ref())
    }

    fn end(&self, summary: &Summary) -> Vec<SseItem> {
        let mut items = vec![];
        if self.includes_usage {
            let mut chunk = self.chunk(&json!([]));
            chunk["usage"] = json!(Usage::from(summary));
            add_report(&mut chunk, summary);
            items.push(data(&chunk));
        }
        items.push(SseItem::Event { name: None, data: "[DONE]".to_owned() });
        items
    }

    fn choice_chunk(
        &self,
        index: usize,
        delta: &Value,
        logprobs: &Value,
        finish_reason: Option<&str>,
        report: Option<&Summary>,
    ) -> SseItem {
        let mut chunk = self.chunk(&json!([{
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }]));
        if let Some(summary) = report {
            add_report(&mut chunk, summary);
        }
        data(&chunk)
    }

    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn add_report(chunk: &mut Value, summary: &Summary) {
    chunk["timings"] = json!(TimingsReport::from(summary));
    chunk["cache"] = json!(CacheReport::from(summary));
}

fn data(value: &Value) -> SseItem {
    SseItem::Event { name: None, data: value.to_string() }
}
