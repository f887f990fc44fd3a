//! Replies as streams of chunks: what chat completions and completions have in common.

use super::chat::{FINGERPRINT, Head};
use super::usage::{CacheReport, TimingsReport, Usage};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::generate::{Generation, Happening, Summary};
use crate::http::sse::{SseItem, sse};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use std::time::Duration;

/// Makes chunks of what happens.
pub(super) trait Chunker: Send + 'static {
    /// The chunks of a happening. `summary` is whole once the last reply has ended.
    fn chunks(&mut self, happening: Happening, summary: &Summary) -> Vec<SseItem>;

    /// What all chunks have in common.
    fn frame(&self) -> &Frame;
}

/// What all chunks of a stream have in common.
pub(super) struct Frame {
    pub(super) head: Head,
    pub(super) object: &'static str,
    /// Whether a last chunk has the counts.
    pub(super) includes_usage: bool,
}

impl Frame {
    /// A chunk with these choices.
    pub(super) fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": self.object,
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

    fn end(&self, summary: &Summary) -> Vec<SseItem> {
        let mut items = vec![];
        if self.includes_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = json!(Usage::from(summary));
            add_report(&mut chunk, summary);
            items.push(data(&chunk));
        }
        items.push(SseItem::data("[DONE]"));
        items
    }
}

/// Adds our extensions to a chunk.
pub(super) fn add_report(chunk: &mut Value, summary: &Summary) {
    chunk["timings"] = json!(TimingsReport::from(summary));
    chunk["cache"] = json!(CacheReport::from(summary));
}

/// An event of JSON.
pub(super) fn data(value: &Value) -> SseItem {
    SseItem::data(value.to_string())
}

/// The response that streams a generation. An error after its start is its last event.
pub(super) fn respond(
    generation: Generation,
    chunker: impl Chunker,
    keep_alive: Duration,
) -> Response {
    let parts = stream::unfold(Some((generation, chunker)), |state| async move {
        let (mut generation, mut chunker) = state?;
        let (items, is_over) = match generation.next().await {
            Some(Happening::Failed(error)) => (vec![failed(&error)], true),
            Some(Happening::Prefill { done, total }) => {
                let progress = SseItem::Comment(format!("prefill {done}/{total}"));
                let happening = Happening::Prefill { done, total };
                let mut items = vec![progress];
                items.extend(chunker.chunks(happening, &generation.summary()));
                (items, false)
            }
            Some(happening) => (chunker.chunks(happening, &generation.summary()), false),
            None => (chunker.frame().end(&generation.summary()), true),
        };
        Some((stream::iter(items), (!is_over).then_some((generation, chunker))))
    });
    sse(parts.flatten(), keep_alive)
}

fn failed(error: &ApiError) -> SseItem {
    data(&Dialect::OpenAi.error_body(error))
}
