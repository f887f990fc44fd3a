//! OpenAI's responses API: a translation to the one core path, and a store of what it answered.

mod event;
mod items;
mod request;
mod response;
mod run;
mod store;
mod stored;
mod tools;
mod translator;

use crate::app::App;
use crate::dialect::{Dialect, ErrorBody};
use crate::error::ApiError;
use crate::http::access::Owner;
use crate::http::json::JsonBody;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use request::{Plan, ResponseRequest};
use response::ResponseObject;
use run::{Keeper, Run, refused_in_stream};
use utoipa::OpenApi;

pub(crate) use store::Store;

/// The description of this dialect's paths.
#[derive(OpenApi)]
#[openapi(paths(create, stored::retrieve, stored::delete, stored::cancel, stored::input_items))]
pub(crate) struct Api;

/// The routes of this dialect.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/responses", post(create))
        // Else it would be an id, at which another method is wrong rather than the path.
        .route("/v1/responses/compact", any(stored::compact))
        .route("/v1/responses/{response_id}", get(stored::retrieve).delete(stored::delete))
        .route("/v1/responses/{response_id}/cancel", post(stored::cancel))
        .route("/v1/responses/{response_id}/input_items", get(stored::input_items))
}

/// Answers a conversation, at once or as a stream of events.
#[utoipa::path(
    post, path = "/v1/responses", tag = "OpenAI", request_body = ResponseRequest,
    responses(
        (status = 200, description = "The response, or with `stream` its events", content(
            (ResponseObject = "application/json"), (String = "text/event-stream")
        )),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed, or cannot be taken now", body = ErrorBody),
    )
)]
async fn create(
    State(app): State<App>,
    owner: Owner,
    JsonBody(request): JsonBody<ResponseRequest>,
) -> Response {
    Dialect::OpenAi.respond(begin(&app, owner.0, request).await)
}

async fn begin(app: &App, owner: String, request: ResponseRequest) -> Result<Response, ApiError> {
    let plan = request.plan(&app.service.model, &app.responses, &owner)?;
    let Plan { task, translator, streams, kept } = plan;
    let generation = app.service.generate(task, &owner).await.map_err(in_own_words);
    let keeper = kept.map(|kept| Keeper { store: app.responses.clone(), owner, kept });
    match generation {
        Ok(generation) => {
            let run = Run { generation, translator, keeper };
            if streams {
                return Ok(run.respond(app.keep_alive));
            }
            Ok(Json(run.collect().await?).into_response())
        }
        // Where it streams, OpenAI tells this in the stream, and Codex compacts only on that.
        Err(error) if streams && error.code == Some("context_length_exceeded") => {
            Ok(refused_in_stream(translator, &error, app.keep_alive))
        }
        Err(error) => Err(error),
    }
}

/// Names the field as this dialect calls it.
fn in_own_words(mut error: ApiError) -> ApiError {
    error.param = error.param.map(|param| match param.as_str() {
        "response_format" | "regex" | "grammar" => "text.format".to_owned(),
        "max_tokens" => "max_output_tokens".to_owned(),
        param if param.starts_with("messages") || param == "prompt" => "input".to_owned(),
        _ => param,
    });
    error
}
