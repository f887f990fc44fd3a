//! What is answered: a message as a whole, and the events that it is sent in.
//!
//! Keys that this server has no use for are there with `null`, as strict clients want every key.

use crate::generate::{End, Ended};
use calla_engine::Usage as EngineUsage;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

/// Signature of every thinking block. Clients send back only thinking that is signed; here it is not checked, as
/// what a client says about earlier turns is believed anyway. (Base 64 of "calla", as some gateways decode it.)
pub(crate) const SIGNATURE: &str = "Y2FsbGE=";

/// A reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = anthropic::Message)]
pub(crate) struct Message {
    #[schema(example = "msg_0d7c1d5b5d0e4a5c8c2f6a1b2c3d4e5f")]
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: MessageKind,
    pub(crate) role: AssistantRole,
    /// The name that the request gave.
    pub(crate) model: String,
    pub(crate) content: Vec<ContentBlock>,
    /// Absent until the reply has ended.
    pub(crate) stop_reason: Option<StopReason>,
    /// The text that ended it, if one did.
    pub(crate) stop_sequence: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub(crate) stop_details: (),
    #[schema(value_type = Option<Object>)]
    pub(crate) container: (),
    pub(crate) usage: Usage,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = anthropic::MessageType)]
pub(crate) enum MessageKind {
    Message,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = anthropic::AssistantRole)]
pub(crate) enum AssistantRole {
    Assistant,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = anthropic::StopReason)]
pub(crate) enum StopReason {
    EndTurn,
    /// `max_tokens`, or the context is full.
    MaxTokens,
    StopSequence,
    ToolUse,
}

/// A part of a reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = anthropic::ContentBlock)]
pub(crate) enum ContentBlock {
    Thinking {
        thinking: String,
        signature: String,
    },
    Text {
        text: String,
        #[schema(value_type = Option<Vec<Object>>)]
        citations: (),
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
        caller: Caller,
    },
}

impl ContentBlock {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), citations: () }
    }

    /// `call_id` is the core's.
    pub(crate) fn tool_use(call_id: &str, name: String, input: Map<String, Value>) -> Self {
        let id = format!("toolu_{}", call_id.strip_prefix("call_").unwrap_or(call_id));
        Self::ToolUse { id, name, input, caller: Caller::Direct }
    }
}

/// Who calls: the model itself.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = anthropic::Caller)]
pub(crate) enum Caller {
    Direct,
}

/// Tokens. The prompt's are `input_tokens` and `cache_read_input_tokens` together.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = anthropic::Usage)]
pub(crate) struct Usage {
    /// Prompt tokens that were computed.
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    /// Prompt tokens that were reused.
    pub(crate) cache_read_input_tokens: usize,
    /// Always 0: all that is computed is kept, at no price.
    pub(crate) cache_creation_input_tokens: usize,
    #[schema(value_type = Option<Object>)]
    pub(crate) cache_creation: (),
    pub(crate) output_tokens_details: OutputTokensDetails,
    #[schema(value_type = Option<Object>)]
    pub(crate) server_tool_use: (),
    #[schema(value_type = Option<String>)]
    pub(crate) service_tier: (),
    #[schema(value_type = Option<String>)]
    pub(crate) inference_geo: (),
}

#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = anthropic::OutputTokensDetails)]
pub(crate) struct OutputTokensDetails {
    pub(crate) thinking_tokens: usize,
}

impl Usage {
    /// Of a reply that has not begun: what is reused is not known yet.
    pub(crate) fn of_prompt(tokens: usize) -> Self {
        Self { input_tokens: tokens, ..Self::default() }
    }

    pub(crate) fn of_reply(usage: &EngineUsage, thinking_tokens: usize) -> Self {
        let reused = usage.reuse.reused.min(usage.prompt_tokens);
        Self {
            input_tokens: usage.prompt_tokens - reused,
            output_tokens: usage.completion_tokens,
            cache_read_input_tokens: reused,
            output_tokens_details: OutputTokensDetails { thinking_tokens },
            ..Self::default()
        }
    }
}

/// Why a reply ended, and by which text.
pub(crate) fn stop_reason(end: &End) -> (StopReason, Option<String>) {
    match end {
        End::Stop => (StopReason::EndTurn, None),
        End::StopString(text) => (StopReason::StopSequence, Some(text.clone())),
        End::Length => (StopReason::MaxTokens, None),
        End::ToolCalls => (StopReason::ToolUse, None),
    }
}

impl Message {
    /// A message that has only begun.
    pub(crate) fn begun(model: String, prompt_tokens: usize) -> Self {
        Self {
            id: format!("msg_{}", Uuid::new_v4().simple()),
            kind: MessageKind::Message,
            role: AssistantRole::Assistant,
            model,
            content: vec![],
            stop_reason: None,
            stop_sequence: None,
            stop_details: (),
            container: (),
            usage: Usage::of_prompt(prompt_tokens),
        }
    }

    /// A whole message.
    pub(crate) fn ended(model: String, ended: Ended) -> Self {
        let Ended { end, reply, call_ids, usage, reasoning_tokens, .. } = ended;
        let mut content = vec![];
        if !reply.reasoning.is_empty() {
            let signature = SIGNATURE.into();
            content.push(ContentBlock::Thinking { thinking: reply.reasoning, signature });
        }
        if !reply.content.is_empty() {
            content.push(ContentBlock::text(reply.content));
        }
        let calls = call_ids.iter().zip(reply.tool_calls);
        content
            .extend(calls.map(|(id, call)| ContentBlock::tool_use(id, call.name, call.arguments)));
        let (stop_reason, stop_sequence) = stop_reason(&end);
        Self {
            content,
            stop_reason: Some(stop_reason),
            stop_sequence,
            usage: Usage::of_reply(&usage, reasoning_tokens),
            ..Self::begun(model, 0)
        }
    }
}

/// An event of a stream. Its `type` is also the event's name.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = anthropic::StreamEvent)]
pub(crate) enum StreamEvent {
    MessageStart { message: Message },
    Ping {},
    ContentBlockStart { index: usize, content_block: ContentBlock },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageDelta, usage: Usage },
    MessageStop {},
}

impl StreamEvent {
    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping {} => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
        }
    }
}

/// What is added to a block.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type")]
#[schema(as = anthropic::BlockDelta)]
pub(crate) enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// A piece of the JSON of a call's input.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// How a streamed message ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = anthropic::MessageDelta)]
pub(crate) struct MessageDelta {
    pub(crate) stop_reason: StopReason,
    pub(crate) stop_sequence: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub(crate) stop_details: (),
    #[schema(value_type = Option<Object>)]
    pub(crate) container: (),
}

/// Tokens of a prompt.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = anthropic::TokenCount)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

/// An error; what [`Dialect::error_body`](crate::Dialect::error_body) makes for this dialect.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is here for its schema")]
#[schema(as = anthropic::Error)]
pub(crate) struct ErrorBody {
    #[serde(rename = "type")]
    #[schema(example = "error")]
    kind: String,
    error: ErrorDetail,
}

/// What went wrong.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is here for its schema")]
#[schema(as = anthropic::ErrorDetail)]
pub(crate) struct ErrorDetail {
    #[serde(rename = "type")]
    #[schema(example = "invalid_request_error")]
    kind: String,
    /// With the field that is at fault, its bounds and its value.
    message: String,
}
