//! Anthropic's API: a translation into the core's tasks and back, nothing more.

mod request;
mod response;
mod stream;
mod translate;

use crate::app::App;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use crate::generate::{Generation, render};
use crate::http::access::Owner;
use crate::http::json::JsonBody;
use crate::http::sse::{SseItem, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use request::MessagesRequest;
use response::{ErrorBody, Message, StreamEvent, TokenCount};
use stream::Item;
use translate::in_own_words;
use utoipa::OpenApi;

/// The description of this dialect's paths.
#[derive(OpenApi)]
#[openapi(paths(create_message, count_tokens))]
pub(crate) struct Api;

/// The routes of this dialect.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/messages", post(create_message))
        .route("/v1/messages/count_tokens", post(count_tokens))
}

/// Answers a conversation, at once or as a stream of events.
#[utoipa::path(
    post, path = "/v1/messages", tag = "Anthropic", request_body = MessagesRequest,
    responses(
        (status = 200, description = "The reply, or with `stream` the events that it is made of", content(
            (Message = "application/json"), (StreamEvent = "text/event-stream")
        )),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed, or cannot be taken now", body = ErrorBody),
    )
)]
async fn create_message(
    State(app): State<App>,
    owner: Owner,
    JsonBody(request): JsonBody<MessagesRequest>,
) -> Response {
    Dialect::Anthropic.respond(reply(&app, &owner, request).await.map_err(in_own_words))
}

async fn reply(app: &App, owner: &Owner, request: MessagesRequest) -> Result<Response, ApiError> {
    let (model, is_streamed) = (request.model.clone(), request.stream == Some(true));
    let mut generation = app.service.generate(translate::task(request)?, &owner.0).await?;
    if is_streamed {
        return Ok(streamed(model, generation, app));
    }
    let missing = || ApiError::new(ErrorKind::Server, "the reply is missing: this is a bug");
    let ended = generation.collect().await?.pop().ok_or_else(missing)?;
    Ok(Json(Message::ended(model, ended)).into_response())
}

fn streamed(model: String, generation: Generation, app: &App) -> Response {
    let message = Message::begun(model, generation.summary().prompt_tokens);
    let happenings = unfold(generation, |mut generation| async move {
        let happening = generation.next().await?;
        Some((happening, generation))
    });
    let items = stream::events(message, happenings, app.keep_alive);
    // The pings come first: comments would say the same again.
    sse(items.map(sse_item), app.keep_alive * 2)
}

fn sse_item(item: Item) -> SseItem {
    let (name, data) = match item {
        Item::Event(event) => (event.name(), serde_json::to_string(&event)),
        Item::Error(error) => {
            let body = Dialect::Anthropic.error_body(&in_own_words(error));
            ("error", serde_json::to_string(&body))
        }
    };
    // Maps with keys that are not text are all that JSON could not say; there are none.
    SseItem::Event { name: Some(name), data: data.unwrap_or_default() }
}

/// Counts the tokens of a conversation's prompt, which needs no weights.
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", tag = "Anthropic", request_body = MessagesRequest,
    responses(
        (status = 200, description = "The count", body = TokenCount),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed, or cannot be taken now", body = ErrorBody),
    )
)]
async fn count_tokens(
    State(app): State<App>,
    JsonBody(request): JsonBody<MessagesRequest>,
) -> Response {
    let counted = count(&app, request).await.map_err(in_own_words);
    Dialect::Anthropic.respond(counted.map(|input_tokens| Json(TokenCount { input_tokens })))
}

async fn count(app: &App, request: MessagesRequest) -> Result<usize, ApiError> {
    let model = app.service.model.clone();
    let count = move || {
        let (ids, _) = render(&model, &translate::chat(request)?)?;
        Ok(ids.len())
    };
    app.service.blocking(count).await?
}

#[cfg(test)]
mod tests {
    use super::Api;
    use serde_json::Value;
    use utoipa::OpenApi;

    #[test]
    fn all_that_the_description_refers_to_is_there() {
        let description = serde_json::to_value(Api::openapi()).unwrap();
        let mut waiting = vec![&description];
        let mut references = 0;
        while let Some(value) = waiting.pop() {
            match value {
                Value::Array(list) => waiting.extend(list),
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        let place = reference.strip_prefix('#').unwrap();
                        assert!(description.pointer(place).is_some(), "{reference}");
                        references += 1;
                    }
                    waiting.extend(map.values());
                }
                _ => {}
            }
        }
        assert!(references > 20, "{references}");
        let block = &description["components"]["schemas"]["anthropic.InputBlock"]["oneOf"];
        assert_eq!(block.as_array().map(Vec::len), Some(6), "{block}");
    }
}
