//! OpenAI's API: chat completions, completions and the list of models.

mod chat;
pub(crate) mod chat_request;
mod chat_stream;
mod chunks;
mod completions;
pub(crate) mod fields;
pub(crate) mod logprobs;
mod models;
pub(crate) mod tools;
pub(crate) mod usage;

use crate::app::App;
use axum::Router;
use axum::routing::{get, post};
use utoipa::OpenApi;

pub(crate) use tools::functions;

/// The description of this dialect's paths.
#[derive(OpenApi)]
#[openapi(paths(chat::create, completions::create, models::list, models::retrieve))]
pub(crate) struct Api;

/// The routes of this dialect.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::retrieve))
}
