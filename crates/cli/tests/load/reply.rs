//! A streamed reply, put together event by event.

use crate::prompts::Dialect;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// What has come of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// Texts by what they are: `0 content`, `0 call 1 arguments`, `1 finish`.
    pub(crate) parts: BTreeMap<String, String>,
    /// Tokens of the reply, as the last event counts them.
    pub(crate) tokens: u64,
    /// Whether the stream said that it is complete.
    pub(crate) is_whole: bool,
    /// When the first text came.
    pub(crate) first_text: Option<Instant>,
    pub(crate) events: usize,
}

impl Reply {
    /// Why this is not the whole of `expected`, if so.
    pub(crate) fn differs(&self, expected: &Self) -> Option<String> {
        let same = self.is_whole && self.parts == expected.parts && self.tokens == expected.tokens;
        (!same).then(|| {
            let (tokens, parts) = (self.tokens, &self.parts);
            format!(
                "{parts:?} ({tokens} tokens) instead of {:?} ({} tokens)",
                expected.parts, expected.tokens
            )
        })
    }

    /// Why this is not the beginning of `expected`, if so.
    pub(crate) fn strays(&self, expected: &Self) -> Option<String> {
        let is_beginning = |(name, text): (&String, &String)| {
            expected.parts.get(name).is_some_and(|whole| whole.starts_with(text.as_str()))
        };
        (!self.parts.iter().all(is_beginning))
            .then(|| format!("{:?} does not begin {:?}", self.parts, expected.parts))
    }

    /// Takes the data of an event.
    ///
    /// # Errors
    /// If it tells of an error, or is none that the dialect has.
    pub(crate) fn take(&mut self, dialect: Dialect, data: &str) -> Result<(), String> {
        self.events += 1;
        if self.is_whole {
            return Err(format!("after its end the stream says {data}"));
        }
        if data == "[DONE]" && dialect == Dialect::Chat {
            self.is_whole = true;
            return Ok(());
        }
        let event: Value =
            serde_json::from_str(data).map_err(|error| format!("{error} in {data:?}"))?;
        if event.get("error").is_some_and(|error| !error.is_null()) {
            return Err(format!("an error in the stream: {data}"));
        }
        match dialect {
            Dialect::Chat => self.chat(&event),
            Dialect::Messages => self.anthropic(&event),
            Dialect::Responses => self.responses(&event),
        }
        Ok(())
    }

    fn add(&mut self, part: String, text: &Value) {
        if let Some(text) = text.as_str().filter(|text| !text.is_empty()) {
            self.first_text.get_or_insert_with(Instant::now);
            self.parts.entry(part).or_default().push_str(text);
        }
    }

    fn chat(&mut self, chunk: &Value) {
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            self.tokens = tokens;
        }
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            let (index, delta) = (&choice["index"], &choice["delta"]);
            self.add(format!("{index} reasoning"), &delta["reasoning_content"]);
            self.add(format!("{index} content"), &delta["content"]);
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let (place, function) =
                    (format!("{index} call {}", call["index"]), &call["function"]);
                self.add(format!("{place} name"), &function["name"]);
                self.add(format!("{place} arguments"), &function["arguments"]);
            }
            self.add(format!("{index} finish"), &choice["finish_reason"]);
        }
    }

    fn anthropic(&mut self, event: &Value) {
        let (index, delta) = (&event["index"], &event["delta"]);
        self.add(format!("{index} thinking"), &delta["thinking"]);
        self.add(format!("{index} text"), &delta["text"]);
        self.add("finish".to_owned(), &delta["stop_reason"]);
        if event["type"] == "message_delta" {
            self.tokens = event["usage"]["output_tokens"].as_u64().unwrap_or_default();
        }
        self.is_whole = event["type"] == "message_stop";
    }

    fn responses(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap_or_default();
        if let Some(kind) = kind.strip_suffix(".delta") {
            self.add(format!("{} {kind}", event["output_index"]), &event["delta"]);
        }
        if matches!(kind, "response.completed" | "response.incomplete") {
            let response = &event["response"];
            self.add("finish".to_owned(), &response["status"]);
            self.tokens = response["usage"]["output_tokens"].as_u64().unwrap_or_default();
            self.is_whole = true;
        }
    }
}

/// Cuts a stream of bytes into the data of its events.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    /// Takes bytes and gives the data of the events that they complete. Comments are left out.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, String> {
        self.0.extend_from_slice(bytes);
        let mut events = vec![];
        while let Some(end) = self.0.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = self.0.drain(..end + 2).collect();
            let block = String::from_utf8(block).map_err(|error| error.to_string())?;
            events.extend(
                block.lines().filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned())),
            );
        }
        Ok(events)
    }
}
