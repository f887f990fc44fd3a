//! What the clients ask: questions of the demo's evaluation in three dialects, in all kinds of sampling and form.

use serde_json::{Value, json};
use std::path::PathBuf;

/// Tokens of a reply at most, so that none outlasts the test.
const REPLY_TOKENS: u64 = 80;

/// Bytes of a usual question with its tools, at most.
const QUESTION_BYTES: usize = 1200;

/// One of the server's APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Chat,
    Messages,
    Responses,
}

impl Dialect {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }
}

/// A request for a stream whose reply does not depend on anything but itself.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) dialect: Dialect,
    pub(crate) body: Value,
}

impl Prompt {
    /// Replies that it asks for.
    pub(crate) fn choices(&self) -> u64 {
        self.body["n"].as_u64().unwrap_or(1)
    }

    /// The request, with a salt under which nothing is cached where the dialect has salts.
    pub(crate) fn body(&self, salt: Option<u64>) -> Value {
        let mut body = self.body.clone();
        if let Some(salt) = salt.filter(|_| self.dialect != Dialect::Messages) {
            body["cache_salt"] = json!(format!("load {salt}"));
        }
        body
    }
}

pub(crate) fn demo_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo"))
}

/// `count` different prompts. Every sixteenth one recalls something from 2,000 tokens and more.
pub(crate) fn prompts(count: usize) -> Vec<Prompt> {
    let text =
        std::fs::read_to_string(demo_dir().join("eval.jsonl")).expect("the demo's questions");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let (long, usual): (Vec<Value>, Vec<Value>) =
        lines.partition(|line| line["task"] == "recall_long");
    // Short enough that most of the time goes into replies.
    let is_short = |line: &&Value| line.to_string().len() <= QUESTION_BYTES;
    let mut usual = usual.iter().filter(is_short);
    (0..count)
        .map(|index| match (index % 16, long.get(index / 16)) {
            (15, Some(line)) => chat(index, line),
            _ => prompt(index, usual.next().expect("hundreds of questions")),
        })
        .collect()
}

fn prompt(index: usize, question: &Value) -> Prompt {
    let messages = question["messages"].as_array().expect("a list");
    let is_plain =
        question["tools"].is_null() && messages.iter().all(|message| message["role"] != "tool");
    match index % 4 {
        1 if is_plain => anthropic(question),
        3 if is_plain => responses(index, question),
        _ => chat(index, question),
    }
}

fn chat(index: usize, question: &Value) -> Prompt {
    let mut messages = question["messages"].clone();
    if index.is_multiple_of(6) {
        // Shared by many prompts and longer than what is worth a file.
        let words: String = (0..40).map(|i| format!("Number {i} follows. ")).collect();
        let list = messages.as_array_mut().expect("a list");
        if list[0]["role"] == "system" {
            list.remove(0);
        }
        list.insert(0, json!({"role": "system", "content": words}));
    }
    let mut body = json!({
        "model": "load",
        "messages": messages,
        "enable_thinking": question["think"],
        "max_tokens": REPLY_TOKENS,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if index.is_multiple_of(5) {
        body["thinking_budget"] = json!(12);
    }
    if index.is_multiple_of(3) {
        (body["temperature"], body["seed"]) = (json!(0.9), json!(index));
    } else {
        body["temperature"] = json!(0);
    }
    if !question["tools"].is_null() {
        body["tools"] = question["tools"].clone();
        body["tool_choice"] = json!(if index.is_multiple_of(2) { "required" } else { "auto" });
    } else if index % 8 == 2 {
        body["n"] = json!(2);
    } else if index % 8 == 4 {
        let schema = json!({"type": "object", "properties": {"answer": {"type": "string", "maxLength": 40}},
            "required": ["answer"], "additionalProperties": false});
        body["response_format"] =
            json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
    } else if index % 8 == 6 {
        body["regex"] = json!("[A-Za-z0-9 ,.=+*:?'-]{1,60}");
    }
    Prompt { dialect: Dialect::Chat, body }
}

fn anthropic(question: &Value) -> Prompt {
    let all = question["messages"].as_array().expect("a list");
    let (system, messages): (Vec<&Value>, Vec<&Value>) =
        all.iter().partition(|message| message["role"] == "system");
    let kind = if question["think"] == true { "adaptive" } else { "disabled" };
    let mut body = json!({
        "model": "claude-load",
        "messages": messages,
        "thinking": {"type": kind},
        "max_tokens": REPLY_TOKENS,
        "temperature": 0,
        "stream": true,
    });
    if let Some(system) = system.first() {
        body["system"] = system["content"].clone();
    }
    Prompt { dialect: Dialect::Messages, body }
}

fn responses(index: usize, question: &Value) -> Prompt {
    let body = json!({
        "model": "load",
        "input": question["messages"],
        "enable_thinking": question["think"],
        "max_output_tokens": REPLY_TOKENS,
        "temperature": if index % 3 == 1 { 0.7 } else { 0.0 },
        "seed": index,
        "store": index % 8 == 3,
        "stream": true,
    });
    Prompt { dialect: Dialect::Responses, body }
}

/// `count` requests for replies of at most four tokens, which come as a whole.
pub(crate) fn short_requests(count: usize) -> Vec<Value> {
    (0..count)
        .map(|index| {
            json!({
                "model": "load",
                "messages": [{"role": "user", "content": format!("{} + {} = ?", 10 + index, 3 * index + 1)}],
                "enable_thinking": index % 4 == 3,
                "temperature": 0,
                "max_tokens": 1 + index % 4,
            })
        })
        .collect()
}
