//! Stored responses: read, listed and forgotten.

use super::request::stored_items;
use super::response::ResponseObject;
use crate::app::App;
use crate::dialect::{Dialect, ErrorBody};
use crate::error::{ApiError, ErrorKind};
use crate::http::access::Owner;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

fn not_found(id: &str) -> ApiError {
    let id: String = id.chars().take(80).collect();
    let message =
        format!("response with id {id:?} not found: it was not stored, or was dropped since");
    ApiError::new(ErrorKind::NotFound, message)
}

fn raw_json(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

/// Gives a stored response.
#[utoipa::path(
    get, path = "/v1/responses/{response_id}", tag = "OpenAI",
    params(("response_id" = String, Path)),
    responses(
        (status = 200, body = ResponseObject),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
    )
)]
pub(super) async fn retrieve(
    State(app): State<App>,
    owner: Owner,
    Path(id): Path<String>,
) -> Response {
    let turn = app.responses.turn(&owner.0, &id).ok_or_else(|| not_found(&id));
    Dialect::OpenAi.respond(turn.map(|turn| raw_json(turn.response.clone())))
}

/// What a deletion answers.
#[derive(Serialize, ToSchema)]
#[schema(as = ResponseDeleted)]
pub(crate) struct Deleted {
    id: String,
    /// Always `response`.
    object: &'static str,
    deleted: bool,
}

/// Forgets a stored response.
#[utoipa::path(
    delete, path = "/v1/responses/{response_id}", tag = "OpenAI",
    params(("response_id" = String, Path)),
    responses(
        (status = 200, body = Deleted),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
    )
)]
pub(super) async fn delete(
    State(app): State<App>,
    owner: Owner,
    Path(id): Path<String>,
) -> Response {
    let is_there = app.responses.remove(&owner.0, &id);
    let deleted = is_there.then_some(()).ok_or_else(|| not_found(&id));
    Dialect::OpenAi
        .respond(deleted.map(|()| Json(Deleted { id, object: "response", deleted: true })))
}

/// Refuses: only background responses could be cancelled, and there are none. Closing the connection cancels.
#[utoipa::path(
    post, path = "/v1/responses/{response_id}/cancel", tag = "OpenAI",
    params(("response_id" = String, Path)),
    responses((status = "4XX", description = "Always", body = ErrorBody))
)]
pub(super) async fn cancel(
    State(app): State<App>,
    owner: Owner,
    Path(id): Path<String>,
) -> Response {
    if app.responses.turn(&owner.0, &id).is_none() {
        return Dialect::OpenAi.error_response(&not_found(&id));
    }
    let message =
        "only background responses can be cancelled: close the connection to cancel others";
    Dialect::OpenAi.error_response(&ApiError::invalid("response_id", message))
}

/// Refuses: compacting a conversation is not offered, and clients that ask for it look for a 404.
pub(super) async fn compact() -> Response {
    let message = "conversations are not compacted here: shorten the input and POST /v1/responses";
    Dialect::OpenAi.error_response(&ApiError::new(ErrorKind::NotFound, message))
}

/// Which items of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Items at most; 20 without it.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    /// `asc`, or `desc`, which is the default.
    order: Option<String>,
    /// The id of the item behind which the page begins.
    after: Option<String>,
}

/// The items of a stored response's request.
#[derive(Serialize, ToSchema)]
pub(crate) struct InputItems {
    /// Always `list`.
    object: &'static str,
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// Lists the items of a stored response's request.
#[utoipa::path(
    get, path = "/v1/responses/{response_id}/input_items", tag = "OpenAI",
    params(("response_id" = String, Path), Page),
    responses(
        (status = 200, body = InputItems),
        (status = "4XX", description = "The request is refused", body = ErrorBody),
        (status = "5XX", description = "It failed", body = ErrorBody),
    )
)]
pub(super) async fn input_items(
    State(app): State<App>,
    owner: Owner,
    Path(id): Path<String>,
    page: Result<Query<Page>, QueryRejection>,
) -> Response {
    let listed = page
        .map_err(|error| ApiError::new(ErrorKind::Invalid, error.body_text()))
        .and_then(|Query(page)| {
            let turn = app.responses.turn(&owner.0, &id).ok_or_else(|| not_found(&id))?;
            page.of(&turn.input)
        });
    Dialect::OpenAi.respond(listed.map(Json))
}

impl Page {
    fn of(&self, input: &str) -> Result<InputItems, ApiError> {
        let limit = self.limit.unwrap_or(20);
        if !(1..=100).contains(&limit) {
            let message = format!("limit must be from 1 to 100 but is {limit}");
            return Err(ApiError::invalid("limit", message));
        }
        let mut items = stored_items(input)?;
        match self.order.as_deref() {
            None | Some("desc") => items.reverse(),
            Some("asc") => {}
            Some(other) => {
                let other: String = other.chars().take(80).collect();
                let message = format!("order must be asc or desc but is {other:?}");
                return Err(ApiError::invalid("order", message));
            }
        }
        let id_of = |item: &Value| item.get("id").and_then(Value::as_str).map(str::to_owned);
        if let Some(after) = &self.after {
            let place = items.iter().position(|item| id_of(item).as_ref() == Some(after));
            let place = place.ok_or_else(|| {
                ApiError::invalid("after", "after is not the id of an item of this list")
            })?;
            items.drain(..=place);
        }
        let has_more = items.len() as u64 > limit;
        items.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let (first_id, last_id) = (items.first().and_then(id_of), items.last().and_then(id_of));
        Ok(InputItems { object: "list", data: items, first_id, last_id, has_more })
    }
}
