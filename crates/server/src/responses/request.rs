//! The request for a response, and its translation.

use super::items::{Conversation, complete, kind_of};
use super::response::{ReasoningEcho, ResponseObject, Status, TextEcho};
use super::store::{Store, Turn};
use super::tools::{Offer, listed};
use super::translator::{ThinkingForm, Translator, new_id, now};
use crate::error::{ApiError, ErrorKind};
use crate::generate::sampling;
use crate::generate::task::{Chat, Format, Options, Prompt, Task};
use crate::model::Model;
use crate::openai::chat_request::{ThinkingFields, top_k};
use crate::openai::fields::{Strings, at_least_one, clamped, seed};
use calla_ops::sample::TOP_LOGPROBS_MAX;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use utoipa::ToSchema;

/// Items of one conversation at most.
const ITEMS_MAX: usize = 16_384;
/// Characters of a bad value that an error repeats.
const QUOTED_CHARS_MAX: usize = 80;

/// A request to `/v1/responses`. Fields that are not listed are accepted and have no effect.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseRequest {
    /// Any name: the one model that is loaded answers under it.
    model: String,
    /// A text, or a list of items: messages, reasoning, calls and their outputs.
    input: Input,
    /// Goes before the conversation as a system message. It counts for this response only.
    instructions: Option<String>,
    /// The response whose conversation goes on.
    previous_response_id: Option<String>,
    /// Whether the response can be come back to; true unless it says otherwise.
    store: Option<bool>,
    /// Whether the response comes as events.
    stream: Option<bool>,
    /// Tools of type `function`, `custom` and `namespace` are offered to the model; others are accepted and
    /// left out.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or an object that names a tool or a list of `allowed_tools`.
    #[schema(value_type = Option<Value>)]
    tool_choice: Option<Value>,
    /// Whether one response may call several tools.
    parallel_tool_calls: Option<bool>,
    /// What the answer looks like.
    text: Option<TextConfig>,
    /// How the model thinks.
    reasoning: Option<ReasoningConfig>,
    /// `reasoning.encrypted_content` and `message.output_text.logprobs` have an effect.
    include: Option<Vec<String>>,
    /// Tokens of the output at most, thinking included; without it, until the context is full.
    #[schema(minimum = 1)]
    max_output_tokens: Option<u64>,
    /// Accepted without effect.
    max_tool_calls: Option<u64>,
    /// Divides the logits; 0 always takes the most likely token. The checkpoint's default without it.
    #[schema(minimum = 0, maximum = 100)]
    temperature: Option<f32>,
    /// Keep the fewest most likely tokens whose probabilities reach this sum.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    /// With each token of the answer so many most likely ones, if `include` asks for log-probabilities.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u64>,
    /// `auto` or `disabled`. Input that is too long is refused in both cases.
    truncation: Option<String>,
    /// Comes back with the response.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// Comes back with the response.
    user: Option<String>,
    /// Comes back with the response.
    safety_identifier: Option<String>,
    /// Comes back with the response. All prompts of one API key share their prefixes.
    prompt_cache_key: Option<String>,
    /// True is refused.
    background: Option<bool>,
    /// Refused unless it is null.
    #[schema(value_type = Option<Value>)]
    conversation: Option<Value>,
    /// Refused unless it is null.
    #[schema(value_type = Option<Value>)]
    prompt: Option<Value>,
    /// Extension: keep the k most likely tokens; 0 or -1 keeps all.
    #[schema(minimum = -1)]
    top_k: Option<i64>,
    /// Extension: drop tokens less likely than this fraction of the most likely one.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f32>,
    /// Extension.
    #[schema(minimum = -100, maximum = 100)]
    presence_penalty: Option<f32>,
    /// Extension.
    #[schema(minimum = -100, maximum = 100)]
    frequency_penalty: Option<f32>,
    /// Extension: makes tokens of prompt and reply less likely by this factor; 1 is off.
    #[schema(minimum = 0.01, maximum = 100)]
    repetition_penalty: Option<f32>,
    /// Extension: the same seed gives the same reply; -1 draws one.
    #[schema(minimum = -1)]
    seed: Option<i64>,
    /// Extension: texts that end the answer; they are not part of it.
    stop: Option<Strings>,
    /// Extension: whether the model thinks.
    enable_thinking: Option<bool>,
    /// Extension: whether older turns keep their thinking.
    preserve_thinking: Option<bool>,
    /// Extension: tokens of thinking at most.
    thinking_budget: Option<u64>,
    /// Extension: variables of the chat template, among them `enable_thinking` and `preserve_thinking`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Extension: keeps cached prefixes apart from those of other salts.
    cache_salt: Option<String>,
}

/// A text or items.
#[derive(Clone, Debug, ToSchema)]
#[schema(as = ResponseInput, value_type = Value)]
pub(crate) struct Input(Vec<Value>);

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            // No item at all says the same and is what a probe may send.
            Value::String(text) if text.is_empty() => Ok(Self(vec![])),
            Value::String(text) => Ok(Self(vec![json!({"role": "user", "content": text})])),
            Value::Array(items) => Ok(Self(items)),
            other => Err(D::Error::custom(format!(
                "input is {}: a text or a list of items is allowed",
                kind_of(&other)
            ))),
        }
    }
}

/// `text`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = ResponseTextConfig)]
pub(crate) struct TextConfig {
    /// `{"type": "text"}`, `json_object`, or `json_schema` with a `schema`; extensions: `regex` with a
    /// `pattern`, `grammar` with a `definition` in llguidance's dialect of Lark.
    #[schema(value_type = Option<Object>)]
    format: Option<Map<String, Value>>,
    /// Comes back with the response.
    verbosity: Option<String>,
}

/// `reasoning`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[schema(as = ResponseReasoningConfig)]
pub(crate) struct ReasoningConfig {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`: `none` turns thinking off, those up to
    /// `medium` bound it.
    effort: Option<String>,
    /// `auto`, `concise` or `detailed` puts the thinking, as it is, where a summary would be.
    summary: Option<String>,
}

/// A request that has been translated.
pub(super) struct Plan {
    pub(super) task: Task,
    pub(super) translator: Translator,
    pub(super) streams: bool,
    /// What the store needs beside the response, if it is to be kept.
    pub(super) kept: Option<Kept>,
}

/// The conversation that a response to be kept belongs to.
#[derive(Debug)]
pub(super) struct Kept {
    /// The request's items, a JSON list.
    pub(super) input: String,
    pub(super) before: Vec<Arc<Turn>>,
}

impl ResponseRequest {
    /// Translates the request; `store` knows what it refers to.
    pub(super) fn plan(
        mut self,
        model: &Model,
        store: &Store,
        owner: &str,
    ) -> Result<Plan, ApiError> {
        self.check()?;
        let before = self.turns_before(store, owner)?;
        let input = resolve(std::mem::take(&mut self.input.0), store, owner)?;
        let mut conversation = Conversation::new(self.instructions.as_deref());
        let mut items = 0;
        for turn in &before {
            for item in past_items(turn)? {
                conversation.add(&item, "previous_response_id")?;
                items += 1;
            }
        }
        if items + input.len() > ITEMS_MAX {
            let count = items + input.len();
            let message =
                format!("the conversation has {count} items: at most {ITEMS_MAX} are allowed");
            return Err(ApiError::invalid("input", message));
        }
        for (index, item) in input.iter().enumerate() {
            conversation.add(item, &format!("input[{index}]"))?;
        }
        let (messages, more_tools) = conversation.finish();

        let tools = self.tools.take().unwrap_or_default();
        let mut offer = Offer::read(&[tools.as_slice(), more_tools.as_slice()].concat())?;
        let tool_choice = offer.choose(self.tool_choice.as_ref())?;
        let (format, text) = self.format()?;
        let reasoning = self.reasoning.take().unwrap_or_default();
        let thinking = ThinkingFields {
            enable_thinking: self.enable_thinking,
            preserve_thinking: self.preserve_thinking,
            thinking_budget: self.thinking_budget,
            effort: ("reasoning.effort", reasoning.effort.as_deref()),
            variables: self.chat_template_kwargs.take(),
        };
        let chat = Chat {
            messages,
            tools: offer.functions.clone(),
            tool_choice,
            one_call: self.parallel_tool_calls == Some(false),
            format,
            ..thinking.read()?
        };
        let options = self.options()?;
        let thinking = ThinkingForm {
            is_summary: reasoning.summary.as_deref().is_some_and(|word| word != "none"),
            is_sealed: self.includes("reasoning.encrypted_content"),
        };
        let streams = self.stream.unwrap_or(false);
        let kept = self.store.unwrap_or(true).then(|| Kept {
            input: Value::Array(input.into_iter().map(|item| complete(item, new_id)).collect())
                .to_string(),
            before,
        });
        let reasoning = ReasoningEcho { effort: reasoning.effort, summary: reasoning.summary };
        let response = self.response(model, &options, listed(&tools), text, reasoning)?;
        let translator = Translator::new(response, offer, thinking);
        Ok(Plan { task: Task { prompt: Prompt::Chat(chat), options }, translator, streams, kept })
    }

    /// Refuses what cannot be done and could not be left out without harm.
    fn check(&self) -> Result<(), ApiError> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if self.background == Some(true) {
            let message = "background responses are not supported: leave \"background\" out and use \"stream\"";
            return Err(ApiError::invalid("background", message));
        }
        if is_given(&self.conversation) {
            let message =
                "conversations are not kept here: use previous_response_id, or send all items";
            return Err(ApiError::invalid("conversation", message));
        }
        if is_given(&self.prompt) {
            let message = "prompt templates are not kept here: send instructions and input";
            return Err(ApiError::invalid("prompt", message));
        }
        one_of("truncation", self.truncation.as_deref(), &["auto", "disabled"])?;
        let summary = self.reasoning.as_ref().and_then(|reasoning| reasoning.summary.as_deref());
        one_of("reasoning.summary", summary, &["auto", "concise", "detailed", "none"])?;
        let verbosity = self.text.as_ref().and_then(|text| text.verbosity.as_deref());
        one_of("text.verbosity", verbosity, &["low", "medium", "high"])
    }

    fn includes(&self, what: &str) -> bool {
        self.include.iter().flatten().any(|word| word == what)
    }

    fn turns_before(&self, store: &Store, owner: &str) -> Result<Vec<Arc<Turn>>, ApiError> {
        let Some(id) = self.previous_response_id.as_deref() else { return Ok(vec![]) };
        store.turns(owner, id).ok_or_else(|| {
            let message = format!(
                "previous response with id {:?} not found: it was not stored, or was dropped since; send the \
                 whole conversation as input",
                quoted(id)
            );
            ApiError::invalid("previous_response_id", message)
                .with_code("previous_response_not_found")
        })
    }

    fn options(&mut self) -> Result<Options, ApiError> {
        Ok(Options {
            temperature: self.temperature,
            top_k: top_k(self.top_k)?,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: seed(self.seed)?,
            max_tokens: at_least_one("max_output_tokens", self.max_output_tokens)?,
            stop: self.stop.take().unwrap_or_default().0,
            logprobs: self.logprobs()?,
            cache_salt: self.cache_salt.take().unwrap_or_default(),
            ..Options::default()
        })
    }

    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        if top > TOP_LOGPROBS_MAX as u64 {
            let message = format!("top_logprobs must be from 0 to {TOP_LOGPROBS_MAX} but is {top}");
            return Err(ApiError::invalid("top_logprobs", message));
        }
        Ok(self.includes("message.output_text.logprobs").then(|| clamped(top)))
    }

    fn format(&mut self) -> Result<(Format, TextEcho), ApiError> {
        let TextConfig { format, verbosity } = self.text.take().unwrap_or_default();
        let format = format.unwrap_or_else(|| Map::from_iter([("type".into(), "text".into())]));
        let text = |key: &str| {
            format.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| {
                let place = format!("text.format.{key}");
                let message = format!("{place} is missing or not a string");
                ApiError::invalid(place, message)
            })
        };
        let translated = match text("type")?.as_str() {
            "text" => Format::Text,
            "json_object" => Format::JsonObject,
            "json_schema" => {
                // Chat completions nest the schema, responses do not.
                let nested = format.get("json_schema").and_then(|nested| nested.get("schema"));
                match format.get("schema").or(nested) {
                    Some(schema) if !schema.is_null() => Format::JsonSchema(schema.clone()),
                    _ => {
                        let message = "text.format.schema is missing";
                        return Err(ApiError::invalid("text.format.schema", message));
                    }
                }
            }
            "regex" => Format::Regex(text("pattern")?),
            "grammar" => Format::Lark(text("definition")?),
            other => {
                let message = format!(
                    "text.format.type must be text, json_object, json_schema, regex or grammar but is {:?}",
                    quoted(other)
                );
                return Err(ApiError::invalid("text.format.type", message));
            }
        };
        Ok((translated, TextEcho { format: Value::Object(format), verbosity }))
    }

    /// The response as it is before anything has happened.
    fn response(
        self,
        model: &Model,
        options: &Options,
        tools: Vec<Value>,
        text: TextEcho,
        reasoning: ReasoningEcho,
    ) -> Result<ResponseObject, ApiError> {
        let sampling = sampling(options, &model.parts().defaults)?;
        Ok(ResponseObject {
            id: new_id("resp"),
            object: "response",
            created_at: now(),
            completed_at: None,
            status: Status::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            instructions: self.instructions,
            max_output_tokens: self.max_output_tokens,
            max_tool_calls: self.max_tool_calls,
            model: self.model,
            output: vec![],
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous_response_id: self.previous_response_id,
            prompt_cache_key: self.prompt_cache_key,
            reasoning,
            safety_identifier: self.safety_identifier,
            service_tier: "default",
            store: self.store.unwrap_or(true),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            top_logprobs: self.top_logprobs.unwrap_or(0),
            text,
            tool_choice: self
                .tool_choice
                .filter(|choice| !choice.is_null())
                .unwrap_or("auto".into()),
            tools,
            truncation: "disabled",
            usage: None,
            user: self.user,
            metadata: self.metadata.unwrap_or_default(),
            timings: None,
            cache: None,
        })
    }
}

/// Puts items that are kept in the place of references to them.
fn resolve(items: Vec<Value>, store: &Store, owner: &str) -> Result<Vec<Value>, ApiError> {
    let resolved = items.into_iter().enumerate().map(|(index, item)| {
        if item.get("type").is_none_or(|kind| kind != "item_reference") {
            return Ok(item);
        }
        let id = item.get("id").and_then(Value::as_str).unwrap_or_default();
        let turn = store.turn_of_item(owner, id);
        let found = turn.map(|turn| outputs(&turn)).transpose()?.unwrap_or_default();
        found.into_iter().find(|item| item.get("id").is_some_and(|is| is == id)).ok_or_else(|| {
            let message = format!(
                "item with id {:?} not found: its response was not stored, or was dropped since; send the item",
                quoted(id)
            );
            ApiError::new(ErrorKind::NotFound, message).with_param(format!("input[{index}].id"))
        })
    });
    resolved.collect()
}

/// The items of a turn: what went in and what came out.
fn past_items(turn: &Turn) -> Result<Vec<Value>, ApiError> {
    let mut items = stored_items(&turn.input)?;
    items.extend(outputs(turn)?);
    Ok(items)
}

/// Items that were kept as a JSON list.
pub(super) fn stored_items(list: &str) -> Result<Vec<Value>, ApiError> {
    serde_json::from_str(list).map_err(|e| damaged(&e))
}

fn outputs(turn: &Turn) -> Result<Vec<Value>, ApiError> {
    #[derive(Deserialize)]
    struct Outputs {
        output: Vec<Value>,
    }
    let Outputs { output } = serde_json::from_str(&turn.response).map_err(|e| damaged(&e))?;
    Ok(output)
}

fn damaged(error: &serde_json::Error) -> ApiError {
    tracing::error!("a stored response cannot be read: {error}");
    ApiError::new(ErrorKind::Server, "a stored response cannot be read: this is a bug")
}

fn one_of(param: &str, value: Option<&str>, allowed: &[&str]) -> Result<(), ApiError> {
    match value {
        Some(value) if !allowed.contains(&value) => {
            let allowed = allowed.join(", ");
            let message = format!("{param} must be one of {allowed} but is {:?}", quoted(value));
            Err(ApiError::invalid(param, message))
        }
        _ => Ok(()),
    }
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
