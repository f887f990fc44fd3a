//! A chat completion as a stream of chunks.

use super::chat::{Head, finish_reason};
use super::chunks::{Chunker, Frame, add_report, data};
use super::logprobs::ChoiceLogprobs;
use crate::generate::{Delta, Ended, Happening, Summary};
use crate::http::sse::SseItem;
use serde_json::{Value, json};

/// Makes chunks of chat completions.
pub(super) struct ChatChunker {
    frame: Frame,
    /// Replies whose first chunk, with the role, was sent.
    opened: Vec<bool>,
}

impl ChatChunker {
    pub(super) fn new(head: Head, includes_usage: bool, choices: usize) -> Self {
        let frame = Frame { head, object: "chat.completion.chunk", includes_usage };
        Self { frame, opened: vec![false; choices] }
    }

    /// The first chunk of a reply, if it was not sent yet.
    fn open(&mut self, choice: usize) -> Option<SseItem> {
        if std::mem::replace(&mut self.opened[choice], true) {
            return None;
        }
        let delta = json!({"role": "assistant", "content": ""});
        Some(data(&self.chunk(choice, &delta, None, None)))
    }

    fn delta(&self, choice: usize, delta: Delta) -> Option<SseItem> {
        let (delta, logprobs) = match delta {
            Delta::Reasoning(text) => (json!({"reasoning_content": text}), None),
            Delta::Content(text, logprobs) => (json!({"content": text}), Some(logprobs)),
            Delta::CallStart { index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                let call =
                    json!({"index": index, "id": id, "type": "function", "function": function});
                (json!({"tool_calls": [call]}), None)
            }
            Delta::CallArguments { index, json: piece } => {
                let call = json!({"index": index, "function": {"arguments": piece}});
                (json!({"tool_calls": [call]}), None)
            }
            Delta::CallEnd { .. } => return None,
        };
        let logprobs = logprobs.filter(|list| !list.is_empty());
        let logprobs = logprobs.map(|list| ChoiceLogprobs::from(list.as_slice()));
        Some(data(&self.chunk(choice, &delta, logprobs, None)))
    }

    fn finish(&self, choice: usize, ended: &Ended, summary: &Summary) -> SseItem {
        let reason = finish_reason(&ended.end);
        let mut chunk = self.chunk(choice, &json!({}), None, Some(reason));
        // Where no chunk of counts follows, these have nowhere else to go.
        if !self.frame.includes_usage {
            add_report(&mut chunk, summary);
        }
        data(&chunk)
    }

    fn chunk(
        &self,
        index: usize,
        delta: &Value,
        logprobs: Option<ChoiceLogprobs>,
        finish_reason: Option<&str>,
    ) -> Value {
        self.frame.chunk(json!([{
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }]))
    }
}

impl Chunker for ChatChunker {
    fn chunks(&mut self, happening: Happening, summary: &Summary) -> Vec<SseItem> {
        match happening {
            // At once, so that the client knows that it is served.
            Happening::Prefill { .. } => {
                (0..self.opened.len()).filter_map(|choice| self.open(choice)).collect()
            }
            Happening::Delta { choice, delta } => {
                let first = self.open(choice);
                first.into_iter().chain(self.delta(choice, delta)).collect()
            }
            Happening::Ended { choice, ended } => {
                let first = self.open(choice);
                first.into_iter().chain([self.finish(choice, &ended, summary)]).collect()
            }
            Happening::Failed(_) => vec![],
        }
    }

    fn frame(&self) -> &Frame {
        &self.frame
    }
}
