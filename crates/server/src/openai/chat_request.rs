//! A chat completion's request, and its translation.

use super::fields::{LogitBias, Strings, at_least_one, clamped, seed};
use super::tools;
use crate::error::ApiError;
use crate::generate::task::{Chat, Format, Options, Prompt, Task, effort};
use calla_ops::sample::TOP_LOGPROBS_MAX;
use calla_text::{Content, Message, Role};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Messages of one request at most.
pub(crate) const MESSAGES_MAX: usize = 16_384;

/// A request to `/v1/chat/completions`. Fields that are not listed are accepted and have no effect.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// Any name: the one model that is loaded answers under it.
    pub(crate) model: String,
    /// The conversation: objects with `role` and `content`.
    #[schema(value_type = Vec<Object>, min_items = 1)]
    pub(super) messages: Vec<Message>,
    /// Whether the reply comes as events.
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    /// Tokens of the reply at most, thinking included; without it, until the context is full.
    #[schema(minimum = 1)]
    pub(super) max_tokens: Option<u64>,
    /// The newer name of `max_tokens`, which it overrides.
    #[schema(minimum = 1)]
    pub(super) max_completion_tokens: Option<u64>,
    /// Divides the logits; 0 always takes the most likely token. The checkpoint's default without it.
    #[schema(minimum = 0, maximum = 100)]
    pub(super) temperature: Option<f32>,
    /// Keep the fewest most likely tokens whose probabilities reach this sum.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) top_p: Option<f32>,
    /// Extension: keep the k most likely tokens; 0 or -1 keeps all.
    #[schema(minimum = -1)]
    pub(super) top_k: Option<i64>,
    /// Extension: drop tokens less likely than this fraction of the most likely one.
    #[schema(minimum = 0, maximum = 1)]
    pub(super) min_p: Option<f32>,
    #[schema(minimum = -100, maximum = 100)]
    pub(super) presence_penalty: Option<f32>,
    #[schema(minimum = -100, maximum = 100)]
    pub(super) frequency_penalty: Option<f32>,
    /// Extension: makes tokens of prompt and reply less likely by this factor; 1 is off.
    #[schema(minimum = 0.01, maximum = 100)]
    pub(super) repetition_penalty: Option<f32>,
    /// Added to the logits of single tokens, each from -100 to 100.
    pub(super) logit_bias: Option<LogitBias>,
    /// The same seed gives the same reply; -1 draws one.
    #[schema(minimum = -1)]
    pub(super) seed: Option<i64>,
    /// Texts that end the reply; they are not part of it.
    #[serde(default)]
    pub(super) stop: Option<Strings>,
    /// Replies to the prompt, which they share.
    #[schema(minimum = 1, maximum = 16)]
    pub(super) n: Option<u64>,
    /// Whether the tokens of the answer come with their log-probabilities.
    pub(super) logprobs: Option<bool>,
    /// With each token so many most likely ones.
    #[schema(minimum = 0, maximum = 20)]
    pub(super) top_logprobs: Option<u64>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or an object that names a function.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) tool_choice: Option<Value>,
    /// Whether one reply may call several tools.
    pub(super) parallel_tool_calls: Option<bool>,
    /// `{"type": "text"}`, `json_object`, or `json_schema` with a schema.
    #[serde(default)]
    pub(super) response_format: Option<ResponseFormat>,
    /// Extension: the answer matches this regular expression as a whole.
    pub(super) regex: Option<String>,
    /// Extension: the answer follows this grammar, in llguidance's dialect of Lark.
    pub(super) grammar: Option<String>,
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`: `none` turns thinking off, those up to
    /// `medium` bound it.
    pub(super) reasoning_effort: Option<String>,
    /// Extension: whether the model thinks.
    pub(super) enable_thinking: Option<bool>,
    /// Extension: whether older turns keep their thinking.
    pub(super) preserve_thinking: Option<bool>,
    /// Extension: tokens of thinking at most.
    pub(super) thinking_budget: Option<u64>,
    /// Extension: variables of the chat template, among them `enable_thinking` and `preserve_thinking`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
    /// Extension: keeps cached prefixes apart from those of other salts.
    pub(super) cache_salt: Option<String>,
    /// Extension: tokens before which the reply does not end by itself.
    pub(super) min_tokens: Option<u64>,
    /// Extension: the reply goes on to its greatest length.
    pub(super) ignore_eos: Option<bool>,
}

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk has the counts.
    pub(super) include_usage: Option<bool>,
}

/// `response_format`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: FormatKind,
    #[serde(default)]
    json_schema: Option<JsonSchemaFormat>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct JsonSchemaFormat {
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
}

impl ResponseFormat {
    fn into_format(self) -> Result<Format, ApiError> {
        Ok(match self.kind {
            FormatKind::Text => Format::Text,
            FormatKind::JsonObject => Format::JsonObject,
            FormatKind::JsonSchema => {
                let schema = self.json_schema.and_then(|format| format.schema);
                Format::JsonSchema(schema.ok_or_else(|| {
                    let place = "response_format.json_schema.schema";
                    ApiError::invalid(place, format!("{place} is missing"))
                })?)
            }
        })
    }
}

impl ChatRequest {
    /// Whether a stream ends with the counts.
    pub(super) fn includes_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// The task that the request is.
    pub(crate) fn into_task(self) -> Result<Task, ApiError> {
        check_messages(&self.messages)?;
        let logprobs = self.logprobs()?;
        let format = self.format()?;
        let tools = tools::functions(self.tools.unwrap_or_default())?;
        let tool_choice = tools::choice(self.tool_choice.as_ref(), &tools)?;
        let thinking = ThinkingFields {
            enable_thinking: self.enable_thinking,
            preserve_thinking: self.preserve_thinking,
            thinking_budget: self.thinking_budget,
            effort: ("reasoning_effort", self.reasoning_effort.as_deref()),
            variables: self.chat_template_kwargs,
        };
        let chat = Chat {
            messages: self.messages,
            tools,
            tool_choice,
            one_call: self.parallel_tool_calls == Some(false),
            format,
            ..thinking.read()?
        };
        let max_tokens = at_least_one("max_tokens", self.max_tokens)?;
        let max_completion = at_least_one("max_completion_tokens", self.max_completion_tokens)?;
        let options = Options {
            temperature: self.temperature,
            top_k: top_k(self.top_k)?,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.unwrap_or_default().0,
            seed: seed(self.seed)?,
            max_tokens: max_completion.or(max_tokens),
            min_tokens: self.min_tokens.map_or(0, clamped),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop: self.stop.unwrap_or_default().0,
            choices: self.n.map_or(1, clamped),
            logprobs,
            cache_salt: self.cache_salt.unwrap_or_default(),
        };
        Ok(Task { prompt: Prompt::Chat(chat), options })
    }

    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        if top > TOP_LOGPROBS_MAX as u64 {
            let message = format!("top_logprobs must be from 0 to {TOP_LOGPROBS_MAX} but is {top}");
            return Err(ApiError::invalid("top_logprobs", message));
        }
        match self.logprobs {
            Some(true) => Ok(Some(clamped(top))),
            _ if top > 0 => {
                let message = format!("top_logprobs is {top}, which needs \"logprobs\": true");
                Err(ApiError::invalid("top_logprobs", message))
            }
            _ => Ok(None),
        }
    }

    fn format(&self) -> Result<Format, ApiError> {
        let format = match &self.response_format {
            Some(format) => format.clone().into_format()?,
            None => Format::Text,
        };
        match (format, &self.regex, &self.grammar) {
            (format, None, None) => Ok(format),
            (Format::Text, Some(regex), None) => Ok(Format::Regex(regex.clone())),
            (Format::Text, None, Some(grammar)) => Ok(Format::Lark(grammar.clone())),
            (_, regex, _) => {
                let param = if regex.is_some() { "regex" } else { "grammar" };
                let message = "at most one of response_format, regex and grammar can be given";
                Err(ApiError::invalid(param, message))
            }
        }
    }
}

/// `top_k`; -1 is what vLLM writes for all tokens.
pub(crate) fn top_k(top_k: Option<i64>) -> Result<Option<usize>, ApiError> {
    match top_k {
        Some(k) if k < -1 => {
            Err(ApiError::invalid("top_k", format!("top_k must be 0 or more, or -1, but is {k}")))
        }
        top_k => Ok(top_k.map(|k| clamped(k.max(0).unsigned_abs()))),
    }
}

/// The fields by which a request says whether and how long to think.
pub(crate) struct ThinkingFields<'a> {
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) preserve_thinking: Option<bool>,
    pub(crate) thinking_budget: Option<u64>,
    /// The field's name and its word.
    pub(crate) effort: (&'static str, Option<&'a str>),
    /// `chat_template_kwargs`.
    pub(crate) variables: Option<Map<String, Value>>,
}

impl ThinkingFields<'_> {
    /// A chat with what they say and nothing else. A field goes before a variable, and both before an effort.
    pub(crate) fn read(self) -> Result<Chat, ApiError> {
        let mut variables = self.variables.unwrap_or_default();
        let enable_thinking = self.enable_thinking.or(switch(&mut variables, "enable_thinking")?);
        let preserve = switch(&mut variables, "preserve_thinking")?;
        let (by_effort, effort_budget) = match self.effort {
            (_, None) => (None, None),
            (field, Some(word)) => {
                let (on, budget) = effort(word).ok_or_else(|| bad_effort(field, word))?;
                (Some(on), budget)
            }
        };
        Ok(Chat {
            enable_thinking: enable_thinking.or(by_effort),
            preserve_thinking: self.preserve_thinking.or(preserve),
            thinking_budget: self.thinking_budget.map(clamped).or(effort_budget),
            variables,
            ..Chat::default()
        })
    }
}

/// The error of an effort that nobody knows.
fn bad_effort(param: &str, word: &str) -> ApiError {
    let word: String = word.chars().take(80).collect();
    let message =
        format!("{param} must be none, minimal, low, medium, high, xhigh or max but is {word:?}");
    ApiError::invalid(param, message)
}

/// Takes a switch out of the template's variables.
fn switch(variables: &mut Map<String, Value>, name: &str) -> Result<Option<bool>, ApiError> {
    match variables.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(on)),
        Some(_) => {
            let place = format!("chat_template_kwargs.{name}");
            let message = format!("{place} must be true or false");
            Err(ApiError::invalid(place, message))
        }
    }
}

fn check_messages(messages: &[Message]) -> Result<(), ApiError> {
    if messages.is_empty() {
        let message = "messages is empty: give at least one message";
        return Err(ApiError::invalid("messages", message));
    }
    if messages.len() > MESSAGES_MAX {
        let count = messages.len();
        let message = format!("messages has {count} entries: at most {MESSAGES_MAX} are allowed");
        return Err(ApiError::invalid("messages", message));
    }
    for (index, message) in messages.iter().enumerate() {
        if message.role == Role::User && message.content == Content::Null {
            let place = format!("messages[{index}].content");
            let message = format!("{place} is missing: a message of the user has a content");
            return Err(ApiError::invalid(place, message));
        }
    }
    Ok(())
}
