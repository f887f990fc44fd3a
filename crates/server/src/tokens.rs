//! `POST /tokenize` and `POST /detokenize`.

use crate::app::App;
use crate::dialect::{Dialect, ErrorBody};
use crate::error::ApiError;
use crate::generate::task::Chat;
use crate::generate::{render, text_error};
use crate::http::json::JsonBody;
use crate::openai::functions;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use calla_text::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A text, or a conversation as its prompt would be.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    /// A text.
    #[serde(alias = "content")]
    prompt: Option<String>,
    /// A conversation, instead of a text.
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Vec<Message>>,
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    enable_thinking: Option<bool>,
    /// Whether control tokens in a text count; they do not unless this says so.
    parse_special: Option<bool>,
}

/// Token ids.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenizeResponse {
    tokens: Vec<u32>,
    count: usize,
    /// Tokens that prompt and reply together may have.
    max_model_len: usize,
}

/// Token ids.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    tokens: Vec<u32>,
}

/// The text of token ids.
#[derive(Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    /// U+FFFD stands for bytes that are no characters.
    prompt: String,
}

/// Turns a text or a conversation into token ids.
#[utoipa::path(
    post, path = "/tokenize", tag = "calla", request_body = TokenizeRequest,
    responses(
        (status = 200, body = TokenizeResponse),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed", body = ErrorBody),
    )
)]
pub(crate) async fn tokenize(
    State(app): State<App>,
    JsonBody(request): JsonBody<TokenizeRequest>,
) -> Response {
    let model = app.service.model.clone();
    let work = move || match (request.prompt, request.messages) {
        (Some(text), None) => {
            let tokenizer = &model.parts().tokenizer;
            let ids = if request.parse_special == Some(true) {
                tokenizer.encode_raw(&text)
            } else {
                tokenizer.encode_text(&text)
            };
            ids.map_err(|error| text_error(&error).with_param("prompt"))
        }
        (None, Some(messages)) => {
            let tools = functions(request.tools.unwrap_or_default())?;
            let enable_thinking = request.enable_thinking;
            let chat = Chat { messages, tools, enable_thinking, ..Chat::default() };
            render(&model, &chat).map(|(ids, _)| ids)
        }
        _ => Err(ApiError::invalid("prompt", "give either prompt or messages")),
    };
    let result = app.service.blocking(work).await.and_then(|result| result);
    let max_model_len = app.service.model.parts().context;
    Dialect::OpenAi.respond(
        result.map(|tokens| Json(TokenizeResponse { count: tokens.len(), tokens, max_model_len })),
    )
}

/// Turns token ids into text.
#[utoipa::path(
    post, path = "/detokenize", tag = "calla", request_body = DetokenizeRequest,
    responses(
        (status = 200, body = DetokenizeResponse),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed", body = ErrorBody),
    )
)]
pub(crate) async fn detokenize(
    State(app): State<App>,
    JsonBody(request): JsonBody<DetokenizeRequest>,
) -> Response {
    let tokenizer = &app.service.model.parts().tokenizer;
    let size = tokenizer.vocab_size();
    let stranger = request.tokens.iter().enumerate().find(|(_, id)| **id as usize >= size);
    if let Some((index, id)) = stranger {
        let place = format!("tokens[{index}]");
        let message =
            format!("{place} is {id}, but the vocabulary ends at {}", size.saturating_sub(1));
        return Dialect::OpenAi.error_response(&ApiError::invalid(place, message));
    }
    let prompt = tokenizer.decode(&request.tokens, false);
    Json(DetokenizeResponse { prompt }).into_response()
}
