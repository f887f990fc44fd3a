//! The object that a response is, as it goes over the wire.

use crate::generate::Summary;
use crate::openai::logprobs::TokenLogprob;
use crate::openai::usage::{CacheReport, TimingsReport};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A response, under way or complete.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseObject {
    pub(super) id: String,
    /// Always `response`.
    pub(super) object: &'static str,
    /// Seconds since 1970.
    pub(super) created_at: u64,
    /// Seconds since 1970, once it is complete.
    pub(super) completed_at: Option<u64>,
    pub(super) status: Status,
    /// Always false.
    pub(super) background: bool,
    pub(super) error: Option<ResponseError>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) max_tool_calls: Option<u64>,
    /// The name that the request used.
    pub(super) model: String,
    pub(super) output: Vec<OutputItem>,
    pub(super) parallel_tool_calls: bool,
    pub(super) previous_response_id: Option<String>,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) reasoning: ReasoningEcho,
    pub(super) safety_identifier: Option<String>,
    /// Always `default`.
    pub(super) service_tier: &'static str,
    pub(super) store: bool,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) presence_penalty: f32,
    pub(super) frequency_penalty: f32,
    pub(super) top_logprobs: u64,
    /// The format of the answer, as requested.
    pub(super) text: TextEcho,
    /// As requested: a word or an object.
    #[schema(value_type = Value)]
    pub(super) tool_choice: Value,
    #[schema(value_type = Vec<Object>)]
    pub(super) tools: Vec<Value>,
    /// Always `disabled`: input that is too long is refused, not cut.
    pub(super) truncation: &'static str,
    pub(super) usage: Option<Usage>,
    pub(super) user: Option<String>,
    #[schema(value_type = Object)]
    pub(super) metadata: Map<String, Value>,
    /// Extension, once it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timings: Option<TimingsReport>,
    /// Extension, once it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cache: Option<CacheReport>,
}

/// How far a response or an item of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseStatus)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    /// Cut off by a limit.
    Incomplete,
    Failed,
}

/// Why a response failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// Why a response is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseIncompleteDetails)]
pub(crate) struct IncompleteDetails {
    /// Always `max_output_tokens`: that number is reached, or the context is full.
    pub(super) reason: &'static str,
}

/// `reasoning` as requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseReasoning)]
pub(crate) struct ReasoningEcho {
    pub(super) effort: Option<String>,
    pub(super) summary: Option<String>,
}

/// `text` as requested.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseText)]
pub(crate) struct TextEcho {
    #[schema(value_type = Object)]
    pub(super) format: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verbosity: Option<String>,
}

/// What a response consists of.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseOutputItem)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// Thinking.
    Reasoning {
        id: String,
        /// The thinking, if the request asked for a summary.
        summary: Vec<Part>,
        /// The thinking, if it did not.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<Vec<Part>>,
        /// The thinking again, if `include` has `reasoning.encrypted_content`. It is not encrypted.
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    /// The answer.
    Message { id: String, status: Status, role: &'static str, content: Vec<Part> },
    /// A call of a function.
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        /// Where the function's tool stood in a namespace.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// A JSON object as a string.
        arguments: String,
        status: Status,
    },
    /// A call of a tool that takes free text.
    CustomToolCall {
        id: String,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        input: String,
        status: Status,
    },
}

impl OutputItem {
    /// The item's id.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::CustomToolCall { id, .. } => id,
        }
    }
}

/// A part of an item.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponsePart)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "these are OpenAI's names")]
pub(crate) enum Part {
    /// Text of the answer.
    OutputText {
        text: String,
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: [(); 0],
        /// Its tokens, if `include` has `message.output_text.logprobs`.
        logprobs: Vec<TokenLogprob>,
    },
    /// Thinking.
    ReasoningText { text: String },
    /// Thinking, in the place of a summary.
    SummaryText { text: String },
}

impl Part {
    /// Its text.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::OutputText { text, .. }
            | Self::ReasoningText { text }
            | Self::SummaryText { text } => text,
        }
    }

    /// Adds text, and the tokens that it came from.
    pub(super) fn push(&mut self, more: &str, tokens: &[TokenLogprob]) {
        match self {
            Self::OutputText { text, logprobs, .. } => {
                text.push_str(more);
                logprobs.extend_from_slice(tokens);
            }
            Self::ReasoningText { text } | Self::SummaryText { text } => text.push_str(more),
        }
    }
}

/// Token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseUsage)]
pub(crate) struct Usage {
    input_tokens: usize,
    input_tokens_details: InputTokensDetails,
    output_tokens: usize,
    output_tokens_details: OutputTokensDetails,
    total_tokens: usize,
}

/// Of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseInputTokensDetails)]
pub(crate) struct InputTokensDetails {
    /// Tokens that were not computed again.
    cached_tokens: usize,
}

/// Of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ResponseOutputTokensDetails)]
pub(crate) struct OutputTokensDetails {
    /// Tokens of the thinking.
    reasoning_tokens: usize,
}

impl From<&Summary> for Usage {
    fn from(summary: &Summary) -> Self {
        Self {
            input_tokens: summary.prompt_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens: summary.reuse.reused },
            output_tokens: summary.completion_tokens,
            output_tokens_details: OutputTokensDetails {
                reasoning_tokens: summary.reasoning_tokens,
            },
            total_tokens: summary.prompt_tokens + summary.completion_tokens,
        }
    }
}
