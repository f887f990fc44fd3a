//! `POST /v1/completions`: prompts that are continued as they are.

use super::chat::{FINGERPRINT, Head, finish_reason};
use super::chat_request::{StreamOptions, top_k};
use super::chunks::{Chunker, Frame, data, respond};
use super::fields::{LogitBias, Strings, at_least_one, clamped, seed};
use super::usage::{CacheReport, TimingsReport, Usage};
use crate::app::App;
use crate::dialect::{Dialect, ErrorBody};
use crate::error::ApiError;
use crate::generate::task::{Options, Prompt, Task};
use crate::generate::{ContentLogprob, Delta, Ended, Happening, Summary};
use crate::http::access::Owner;
use crate::http::json::JsonBody;
use crate::http::sse::SseItem;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Most log-probabilities with a token, as OpenAI bounds them here.
const LOGPROBS_MAX: u64 = 5;
/// Tokens of a reply whose request does not say.
const MAX_TOKENS_DEFAULT: u64 = 16;

/// A request to `/v1/completions`. Fields that are not listed are accepted and have no effect.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// Any name: the one model that is loaded answers under it.
    model: String,
    /// A text or a list of tokens, in which control tokens count. Lists with one text or one list of tokens
    /// are accepted too.
    #[schema(value_type = Object)]
    prompt: Value,
    /// What follows the reply, for models with tokens for infilling.
    suffix: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Tokens of the reply at most; 16 without it.
    #[schema(minimum = 1)]
    max_tokens: Option<u64>,
    #[schema(minimum = 0, maximum = 100)]
    temperature: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    #[schema(minimum = -1)]
    top_k: Option<i64>,
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f32>,
    #[schema(minimum = -100, maximum = 100)]
    presence_penalty: Option<f32>,
    #[schema(minimum = -100, maximum = 100)]
    frequency_penalty: Option<f32>,
    #[schema(minimum = 0.01, maximum = 100)]
    repetition_penalty: Option<f32>,
    logit_bias: Option<LogitBias>,
    #[schema(minimum = -1)]
    seed: Option<i64>,
    stop: Option<Strings>,
    #[schema(minimum = 1, maximum = 16)]
    n: Option<u64>,
    /// Log-probabilities of each token and of so many most likely ones.
    #[schema(minimum = 0, maximum = 5)]
    logprobs: Option<u64>,
    /// Whether the reply begins with the prompt.
    echo: Option<bool>,
    cache_salt: Option<String>,
    min_tokens: Option<u64>,
    ignore_eos: Option<bool>,
}

/// A completion.
#[derive(Serialize, ToSchema)]
pub(crate) struct Completion {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    choices: Vec<CompletionChoice>,
    usage: Usage,
    timings: TimingsReport,
    cache: CacheReport,
}

/// One of the replies.
#[derive(Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`.
    finish_reason: &'static str,
}

/// Log-probabilities in the form of this endpoint.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    top_logprobs: Vec<BTreeMap<String, f64>>,
    /// Places in the text, in characters.
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    fn new(list: &[ContentLogprob], mut offset: usize) -> Self {
        let mut all = Self::default();
        for entry in list {
            let text = entry.token.text();
            all.text_offset.push(offset);
            offset += text.chars().count();
            all.token_logprobs.push(entry.token.logprob.into());
            let top = entry.top.iter().map(|token| (token.text(), f64::from(token.logprob)));
            all.top_logprobs.push(top.collect());
            all.tokens.push(text);
        }
        all
    }
}

impl CompletionRequest {
    fn into_task(self) -> Result<Task, ApiError> {
        let invalid = |param: &str, message: String| Err(ApiError::invalid(param, message));
        if let Some(logprobs) = self.logprobs.filter(|&n| n > LOGPROBS_MAX) {
            let message = format!("logprobs must be from 0 to {LOGPROBS_MAX} but is {logprobs}");
            return invalid("logprobs", message);
        }
        let echo = self.echo.unwrap_or(false);
        if echo && self.logprobs.is_some() {
            let message =
                "logprobs of an echoed prompt are not supported: leave out echo or logprobs";
            return invalid("echo", message.to_owned());
        }
        let mut prompt = read_prompt(self.prompt)?;
        if let Some(suffix) = self.suffix.filter(|suffix| !suffix.is_empty()) {
            let Prompt::Text(prefix) = prompt else {
                return invalid(
                    "suffix",
                    "suffix needs a prompt of text, not of tokens".to_owned(),
                );
            };
            prompt = Prompt::Infill { prefix, suffix };
        }
        let max_tokens = at_least_one("max_tokens", self.max_tokens)?;
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
            max_tokens: max_tokens.or(Some(clamped(MAX_TOKENS_DEFAULT))),
            min_tokens: self.min_tokens.map_or(0, clamped),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop: self.stop.unwrap_or_default().0,
            choices: self.n.map_or(1, clamped),
            logprobs: self.logprobs.map(clamped),
            cache_salt: self.cache_salt.unwrap_or_default(),
        };
        Ok(Task { prompt, options })
    }
}

/// A prompt in any of its forms. Several prompts in one request are refused.
fn read_prompt(prompt: Value) -> Result<Prompt, ApiError> {
    let invalid = |message: String| Err(ApiError::invalid("prompt", message));
    match prompt {
        Value::String(text) if text.is_empty() => invalid("prompt is empty".to_owned()),
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(list) if list.is_empty() => invalid("prompt is empty".to_owned()),
        Value::Array(mut list) => match list.first() {
            Some(Value::Number(_)) => {
                let mut tokens = Vec::with_capacity(list.len());
                for (index, token) in list.iter().enumerate() {
                    match token.as_u64().and_then(|token| u32::try_from(token).ok()) {
                        Some(token) => tokens.push(token),
                        None => return invalid(format!("prompt[{index}] is not a token id")),
                    }
                }
                Ok(Prompt::Tokens(tokens))
            }
            Some(Value::String(_) | Value::Array(_)) if list.len() == 1 => {
                read_prompt(list.swap_remove(0))
            }
            Some(Value::String(_) | Value::Array(_)) => {
                let count = list.len();
                invalid(format!("prompt is a list of {count} prompts: send one request for each"))
            }
            _ => invalid("prompt must be a text or a list of token ids".to_owned()),
        },
        _ => invalid("prompt must be a text or a list of token ids".to_owned()),
    }
}

/// Continues a prompt, at once or as a stream of events.
#[utoipa::path(
    post, path = "/v1/completions", tag = "OpenAI", request_body = CompletionRequest,
    responses(
        (status = 200, description = "The reply, or with `stream` chunks of it as events", content(
            (Completion = "application/json"), (String = "text/event-stream")
        )),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed, or cannot be taken now", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): State<App>,
    owner: Owner,
    JsonBody(request): JsonBody<CompletionRequest>,
) -> Response {
    Dialect::OpenAi.respond(begin(&app, &owner, request).await)
}

async fn begin(app: &App, owner: &Owner, request: CompletionRequest) -> Result<Response, ApiError> {
    let head = Head::new("cmpl-", request.model.clone());
    let streams = request.stream.unwrap_or(false);
    let usage = request.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
    let wants_echo = request.echo.unwrap_or(false);
    let task = request.into_task()?;
    let echo = match &task.prompt {
        Prompt::Text(text) if wants_echo => text.clone(),
        Prompt::Tokens(ids) if wants_echo => app.service.model.parts().tokenizer.decode(ids, false),
        _ => String::new(),
    };
    let mut generation = app.service.generate(task, &owner.0).await?;
    if streams {
        let sent = vec![0; generation.choices()];
        let frame = Frame { head, object: "text_completion", includes_usage: usage };
        let chunker = CompletionChunker { frame, echo, sent };
        return Ok(respond(generation, chunker, app.keep_alive));
    }
    let replies = generation.collect().await?;
    let summary = generation.summary();
    let completion = Completion {
        id: head.id,
        object: "text_completion",
        created: head.created,
        model: head.model,
        system_fingerprint: FINGERPRINT,
        choices: replies
            .into_iter()
            .enumerate()
            .map(|(index, ended)| {
                let Ended { end, reply, logprobs, .. } = ended;
                CompletionChoice {
                    index,
                    text: echo.clone() + &reply.content,
                    logprobs: logprobs.map(|list| CompletionLogprobs::new(&list, 0)),
                    finish_reason: finish_reason(&end),
                }
            })
            .collect(),
        usage: Usage::from(&summary),
        timings: TimingsReport::from(&summary),
        cache: CacheReport::from(&summary),
    };
    Ok(Json(completion).into_response())
}

/// Makes chunks of completions.
struct CompletionChunker {
    frame: Frame,
    /// What each reply begins with.
    echo: String,
    /// Characters of each reply that were sent.
    sent: Vec<usize>,
}

impl CompletionChunker {
    fn chunk(&self, index: usize, text: &str, logprobs: &Value, reason: Option<&str>) -> SseItem {
        data(&self.frame.chunk(json!([{
            "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason,
        }])))
    }
}

impl Chunker for CompletionChunker {
    fn chunks(&mut self, happening: Happening, _: &Summary) -> Vec<SseItem> {
        match happening {
            Happening::Delta { choice, delta: Delta::Content(text, logprobs) } => {
                let offset = self.sent[choice];
                self.sent[choice] += text.chars().count();
                let logprobs =
                    (!logprobs.is_empty()).then(|| CompletionLogprobs::new(&logprobs, offset));
                let text = if offset == 0 { self.echo.clone() + &text } else { text };
                vec![self.chunk(choice, &text, &json!(logprobs), None)]
            }
            Happening::Ended { choice, ended } => {
                // A reply without a word still echoes.
                let text = if self.sent[choice] == 0 { self.echo.as_str() } else { "" };
                vec![self.chunk(choice, text, &Value::Null, Some(finish_reason(&ended.end)))]
            }
            // A reply without a chat template has content only.
            Happening::Prefill { .. } | Happening::Delta { .. } | Happening::Failed(_) => vec![],
        }
    }

    fn frame(&self) -> &Frame {
        &self.frame
    }
}
