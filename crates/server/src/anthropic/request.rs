//! Bodies of requests, as far as they are read.
//!
//! What is not listed here is accepted and ignored: `metadata`, `service_tier`, `container`, `cache_control`
//! (every prefix is cached), `display` of the thinking (it is always shown), and whatever a beta adds.
//! `null` is the same as leaving a field out.

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use utoipa::ToSchema;

/// Body of `/v1/messages`, and of `/v1/messages/count_tokens`, which needs no `max_tokens`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    /// Any name: the loaded model answers under it.
    pub(crate) model: String,
    /// The conversation so far. The last message is not the assistant's, except where tokens are counted.
    pub(crate) messages: Vec<InputMessage>,
    /// Instructions.
    pub(crate) system: Option<Content>,
    /// Tokens of the reply at most, thinking included; required by `/v1/messages`.
    pub(crate) max_tokens: Option<i64>,
    /// Texts that end the reply.
    pub(crate) stop_sequences: Option<Vec<String>>,
    /// Whether the reply is sent as it is made.
    pub(crate) stream: Option<bool>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    /// Tools that the model may call.
    pub(crate) tools: Option<Vec<Tool>>,
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Without it the model does not think.
    pub(crate) thinking: Option<Thinking>,
    pub(crate) output_config: Option<OutputConfig>,
    /// An older place of `output_config.format`.
    pub(crate) output_format: Option<OutputFormat>,
    pub(crate) context_management: Option<ContextManagement>,
}

/// A turn of the conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "a message: an object with `role` and `content`")]
#[schema(as = anthropic::InputMessage)]
pub(crate) struct InputMessage {
    pub(crate) role: InputRole,
    pub(crate) content: Content,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = anthropic::Role)]
pub(crate) enum InputRole {
    User,
    Assistant,
    /// Instructions within the conversation; they stay in their place.
    System,
    /// The same by another name.
    Developer,
}

/// A text, or a list of blocks.
#[derive(Clone, Debug, ToSchema)]
#[serde(untagged)]
#[schema(as = anthropic::Content)]
pub(crate) enum Content {
    Text(String),
    Blocks(Vec<InputBlock>),
}

// Not derived: an error would then not say in which block it is.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrList;
        impl<'de> Visitor<'de> for TextOrList {
            type Value = Content;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text or a list of content blocks")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Content, A::Error> {
                let list = de::value::SeqAccessDeserializer::new(list);
                Deserialize::deserialize(list).map(Content::Blocks)
            }
        }
        deserializer.deserialize_any(TextOrList)
    }
}

/// A part of a message.
#[derive(Clone, Debug, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = anthropic::InputBlock)]
pub(crate) enum InputBlock {
    Text(TextBlock),
    /// Thinking of an earlier reply. Its signature is not looked at.
    Thinking(ThinkingBlock),
    /// Thinking that only Anthropic can read: left out.
    RedactedThinking,
    ToolUse(ToolUseBlock),
    ToolResult(ToolResultBlock),
    /// Instructions within the conversation.
    MidConvSystem(MidConvSystemBlock),
    /// Read so that the refusal can say where it stands.
    #[serde(skip)]
    Other(String),
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::TextBlock)]
pub(crate) struct TextBlock {
    pub(crate) text: String,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::ThinkingBlock)]
pub(crate) struct ThinkingBlock {
    pub(crate) thinking: String,
}

/// A call that an earlier reply made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::ToolUseBlock)]
pub(crate) struct ToolUseBlock {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) input: Map<String, Value>,
}

/// What a call gave.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::ToolResultBlock)]
pub(crate) struct ToolResultBlock {
    pub(crate) tool_use_id: String,
    /// Text, or text blocks.
    #[schema(no_recursion)]
    pub(crate) content: Option<Content>,
    /// Whether it says what went wrong.
    pub(crate) is_error: Option<bool>,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::MidConvSystemBlock)]
pub(crate) struct MidConvSystemBlock {
    /// Text blocks.
    #[schema(no_recursion)]
    pub(crate) content: Content,
}

// Not derived: an error would then not name the field.
impl<'de> Deserialize<'de> for InputBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let block = Map::<String, Value>::deserialize(deserializer)?;
        let kind = match block.get("type") {
            Some(Value::String(kind)) => kind.clone(),
            Some(_) => return Err(de::Error::custom("type: it is not a string")),
            None => return Err(de::Error::missing_field("type")),
        };
        Ok(match kind.as_str() {
            "text" => Self::Text(typed(block)?),
            "thinking" => Self::Thinking(typed(block)?),
            "redacted_thinking" => Self::RedactedThinking,
            "tool_use" => Self::ToolUse(typed(block)?),
            "tool_result" => Self::ToolResult(typed(block)?),
            "mid_conv_system" => Self::MidConvSystem(typed(block)?),
            _ => Self::Other(kind),
        })
    }
}

/// Reads an object; an error begins with the field's path.
fn typed<T: DeserializeOwned, E: de::Error>(object: Map<String, Value>) -> Result<T, E> {
    serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if path == "." { E::custom(inner) } else { E::custom(format_args!("{path}: {inner}")) }
    })
}

/// A tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(expecting = "a tool: an object with `name` and `input_schema`")]
#[schema(as = anthropic::Tool)]
pub(crate) struct Tool {
    /// `custom` or nothing for a tool that the client describes. Any other is one that Anthropic's models know
    /// (`web_search_...`, `bash_...`): without an `input_schema` this model is not told of it.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// JSON schema of the call's input.
    pub(crate) input_schema: Option<Map<String, Value>>,
    /// Whether a schema that cannot be enforced to the letter is refused, where a call is forced.
    pub(crate) strict: Option<bool>,
}

/// Whether tools are called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::ToolChoice)]
pub(crate) struct ToolChoice {
    #[serde(rename = "type")]
    pub(crate) kind: ToolChoiceKind,
    /// Of the tool, where `type` is `tool`.
    pub(crate) name: Option<String>,
    /// Whether there is one call at most.
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = anthropic::ToolChoiceType)]
pub(crate) enum ToolChoiceKind {
    /// The model decides.
    Auto,
    /// One is called.
    Any,
    /// The named one is called.
    Tool,
    /// None is called.
    None,
}

/// Whether the model thinks first.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::Thinking)]
pub(crate) struct Thinking {
    #[serde(rename = "type")]
    pub(crate) kind: ThinkingKind,
    /// Tokens of thinking at most.
    pub(crate) budget_tokens: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = anthropic::ThinkingType)]
pub(crate) enum ThinkingKind {
    Enabled,
    Disabled,
    /// As much as `output_config.effort` says.
    Adaptive,
}

/// What the answer is to be like.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::OutputConfig)]
pub(crate) struct OutputConfig {
    /// `low`, `medium`, `high`, `xhigh` or `max`: how much an adaptive model thinks.
    pub(crate) effort: Option<String>,
    pub(crate) format: Option<OutputFormat>,
}

/// JSON by a schema.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::OutputFormat)]
pub(crate) struct OutputFormat {
    #[serde(rename = "type")]
    #[expect(dead_code, reason = "there is one type: reading it is the check")]
    pub(crate) kind: OutputFormatKind,
    pub(crate) schema: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = anthropic::OutputFormatType)]
pub(crate) enum OutputFormatKind {
    JsonSchema,
}

/// What is left out of long conversations. Of all edits one is read: `clear_thinking_...` with `keep: "all"`
/// keeps the thinking of earlier turns in the prompt.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::ContextManagement)]
pub(crate) struct ContextManagement {
    pub(crate) edits: Option<Vec<Edit>>,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = anthropic::Edit)]
pub(crate) struct Edit {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[schema(value_type = Option<Object>)]
    pub(crate) keep: Option<Value>,
}
