//! `POST /v1/chat/completions`.

use super::chat_request::ChatRequest;
use super::chat_stream::ChatChunker;
use super::chunks::respond;
use super::logprobs::ChoiceLogprobs;
use super::usage::{CacheReport, TimingsReport, Usage};
use crate::app::App;
use crate::dialect::{Dialect, ErrorBody};
use crate::error::ApiError;
use crate::generate::{End, Ended, Generation};
use crate::http::access::Owner;
use crate::http::json::JsonBody;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;
use uuid::Uuid;

/// What says which version made a reply.
pub(super) const FINGERPRINT: &str = concat!("calla-", env!("CARGO_PKG_VERSION"));

/// What all chunks of a reply, or its one object, begin with.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// The name that the request used.
    pub(super) model: String,
}

impl Head {
    pub(super) fn new(prefix: &str, model: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { id: format!("{prefix}{}", Uuid::new_v4().simple()), created, model }
    }
}

/// A chat completion.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    id: String,
    #[schema(pattern = "^chat.completion$")]
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    choices: Vec<Choice>,
    usage: Usage,
    /// Extension.
    timings: TimingsReport,
    /// Extension.
    cache: CacheReport,
}

/// One of the replies.
#[derive(Serialize, ToSchema)]
pub(crate) struct Choice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChoiceLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: &'static str,
}

/// What the model said.
#[derive(Serialize, ToSchema)]
pub(crate) struct AssistantMessage {
    role: &'static str,
    /// Null beside tool calls without words.
    content: Option<String>,
    #[schema(value_type = Option<String>)]
    refusal: Option<()>,
    /// Extension that many clients know: the thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    #[schema(value_type = Vec<Object>)]
    annotations: [(); 0],
}

/// A call of a tool.
#[derive(Serialize, ToSchema)]
pub(crate) struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function,
}

/// The function that is called.
#[derive(Serialize, ToSchema)]
pub(crate) struct Function {
    name: String,
    /// A JSON object as a string.
    arguments: String,
}

/// Answers a conversation, at once or as a stream of events.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatRequest,
    responses(
        (status = 200, description = "The reply, or with `stream` chunks of it as events", content(
            (ChatCompletion = "application/json"), (String = "text/event-stream")
        )),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed, or cannot be taken now", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): State<App>,
    owner: Owner,
    JsonBody(request): JsonBody<ChatRequest>,
) -> Response {
    Dialect::OpenAi.respond(begin(&app, &owner, request).await)
}

async fn begin(app: &App, owner: &Owner, request: ChatRequest) -> Result<Response, ApiError> {
    let head = Head::new("chatcmpl-", request.model.clone());
    let (streams, includes_usage) = (request.stream.unwrap_or(false), request.includes_usage());
    let mut generation = app.service.generate(request.into_task()?, &owner.0).await?;
    if streams {
        let chunker = ChatChunker::new(head, includes_usage, generation.choices());
        return Ok(respond(generation, chunker, app.keep_alive));
    }
    let completion = completion(head, &mut generation).await?;
    Ok(Json(completion).into_response())
}

async fn completion(head: Head, generation: &mut Generation) -> Result<ChatCompletion, ApiError> {
    let replies = generation.collect().await?;
    let summary = generation.summary();
    Ok(ChatCompletion {
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        system_fingerprint: FINGERPRINT,
        choices: replies.into_iter().enumerate().map(choice).collect(),
        usage: Usage::from(&summary),
        timings: TimingsReport::from(&summary),
        cache: CacheReport::from(&summary),
    })
}

fn choice((index, ended): (usize, Ended)) -> Choice {
    let finish_reason = finish_reason(&ended.end);
    let Ended { reply, call_ids, logprobs, .. } = ended;
    let calls = reply.tool_calls.into_iter().zip(call_ids);
    let tool_calls: Vec<ToolCall> = calls
        .map(|(call, id)| ToolCall {
            id,
            kind: "function",
            function: Function {
                name: call.name,
                arguments: Value::Object(call.arguments).to_string(),
            },
        })
        .collect();
    let has_content = !reply.content.is_empty() || tool_calls.is_empty();
    Choice {
        index,
        message: AssistantMessage {
            role: "assistant",
            content: has_content.then_some(reply.content),
            refusal: None,
            reasoning_content: Some(reply.reasoning).filter(|text| !text.is_empty()),
            tool_calls,
            annotations: [],
        },
        logprobs: logprobs.map(|list| ChoiceLogprobs::from(list.as_slice())),
        finish_reason,
    }
}

/// Why a reply ended, in this dialect.
pub(super) fn finish_reason(end: &End) -> &'static str {
    match end {
        End::Stop | End::StopString(_) => "stop",
        End::Length => "length",
        End::ToolCalls => "tool_calls",
    }
}
