//! What is asked for, after a dialect was translated and before it is checked against the model.

use calla_text::Message;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Replies to one prompt at most.
pub(crate) const CHOICES_MAX: usize = 16;

/// A request to generate.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) prompt: Prompt,
    pub(crate) options: Options,
}

/// What is to be continued.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    /// The next turn of a conversation.
    Chat(Chat),
    /// A text as it is; control tokens in it count.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<u32>),
    /// What lies between two texts.
    Infill {
        /// Before the gap.
        prefix: String,
        /// Behind it.
        suffix: String,
    },
}

/// A conversation, and what its next turn may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
    /// Descriptions in OpenAI's form: `{"type": "function", "function": {...}}`.
    pub(crate) tools: Vec<Value>,
    pub(crate) tool_choice: ToolChoice,
    /// Whether one turn may hold several calls.
    pub(crate) one_call: bool,
    pub(crate) format: Format,
    /// `None` leaves it to the template.
    pub(crate) enable_thinking: Option<bool>,
    /// `None` leaves it to the server's flag, and then to the template.
    pub(crate) preserve_thinking: Option<bool>,
    /// Tokens of thinking at most.
    pub(crate) thinking_budget: Option<usize>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// They are not.
    None,
    /// One or more are.
    Required,
    /// This one is.
    Named(String),
}

/// What an answer in words has to look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Format {
    /// Anything.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON by a schema.
    JsonSchema(Value),
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// A text by a grammar in llguidance's Lark.
    Lark(String),
}

/// How tokens are chosen and when they end. What is `None` follows the checkpoint's defaults.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) logit_bias: BTreeMap<u32, f32>,
    pub(crate) seed: Option<u64>,
    /// Tokens at most; `None`: until the context is full.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) min_tokens: usize,
    pub(crate) ignore_eos: bool,
    pub(crate) stop: Vec<String>,
    /// Replies to the one prompt.
    pub(crate) choices: usize,
    /// With each token of the answer its log-probability and those of so many others.
    pub(crate) logprobs: Option<usize>,
    /// Keeps cached prefixes apart from those of other salts.
    pub(crate) cache_salt: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            logit_bias: BTreeMap::new(),
            seed: None,
            max_tokens: None,
            min_tokens: 0,
            ignore_eos: false,
            stop: vec![],
            choices: 1,
            logprobs: None,
            cache_salt: String::new(),
        }
    }
}

/// What `reasoning_effort` asks for: whether to think, and for how many tokens at most.
///
/// The model knows on and off only, so the steps between are budgets, after which its thinking is ended.
pub(crate) fn effort(word: &str) -> Option<(bool, Option<usize>)> {
    match word {
        "none" => Some((false, None)),
        "minimal" => Some((true, Some(256))),
        "low" => Some((true, Some(1_024))),
        "medium" => Some((true, Some(8_192))),
        "high" | "xhigh" | "max" => Some((true, None)),
        _ => None,
    }
}
