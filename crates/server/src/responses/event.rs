//! Events of a streamed response.

use super::response::{OutputItem, Part, ResponseObject};
use crate::http::sse::SseItem;
use crate::openai::logprobs::TokenLogprob;
use serde::Serialize;
use utoipa::ToSchema;

/// An event of the stream: `data` of a server-sent event whose name is `type`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseEvent)]
pub(crate) struct Event {
    /// What has happened, such as `response.output_text.delta`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// From 0, in steps of 1.
    pub(super) sequence_number: u64,
    #[serde(flatten)]
    pub(super) body: Body,
}

/// What an event says beside its type.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseEventBody)]
#[serde(untagged)]
pub(crate) enum Body {
    /// `response.created`, `.in_progress`, `.completed`, `.incomplete`, `.failed`.
    Response { response: Box<ResponseObject> },
    /// `response.output_item.added`, `.done`.
    Item { output_index: usize, item: OutputItem },
    /// `response.content_part.added`, `.done`.
    Part { item_id: String, output_index: usize, content_index: usize, part: Part },
    /// `response.reasoning_summary_part.added`, `.done`.
    SummaryPart { item_id: String, output_index: usize, summary_index: usize, part: Part },
    /// `response.output_text.delta`.
    TextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        logprobs: Vec<TokenLogprob>,
    },
    /// `response.output_text.done`.
    TextDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        logprobs: Vec<TokenLogprob>,
    },
    /// `response.reasoning_text.delta`.
    ReasoningDelta { item_id: String, output_index: usize, content_index: usize, delta: String },
    /// `response.reasoning_text.done`.
    ReasoningDone { item_id: String, output_index: usize, content_index: usize, text: String },
    /// `response.reasoning_summary_text.delta`.
    SummaryDelta { item_id: String, output_index: usize, summary_index: usize, delta: String },
    /// `response.reasoning_summary_text.done`.
    SummaryDone { item_id: String, output_index: usize, summary_index: usize, text: String },
    /// `response.function_call_arguments.delta`, `response.custom_tool_call_input.delta`.
    CallDelta { item_id: String, output_index: usize, delta: String },
    /// `response.function_call_arguments.done`.
    ArgumentsDone { item_id: String, output_index: usize, name: String, arguments: String },
    /// `response.custom_tool_call_input.done`.
    InputDone { item_id: String, output_index: usize, input: String },
    /// `error`: the same twice, since clients look at either place.
    Error {
        code: Option<&'static str>,
        message: String,
        param: Option<String>,
        error: ErrorDetails,
    },
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseErrorDetails)]
pub(crate) struct ErrorDetails {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) code: Option<&'static str>,
    pub(super) message: String,
    pub(super) param: Option<String>,
}

impl From<Event> for SseItem {
    fn from(event: Event) -> Self {
        // Strings, numbers and lists of them: there is nothing that JSON could not say.
        let data = serde_json::to_string(&event).unwrap_or_default();
        Self::Event { name: Some(event.kind), data }
    }
}
