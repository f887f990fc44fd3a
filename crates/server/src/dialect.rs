//! Which API a request speaks, and so which shape its errors have.

use crate::error::{ApiError, ErrorKind};
use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// The API that a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, and whatever has no shape of its own.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Dialect {
    /// The dialect of a path.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let is_messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
        if is_messages { Self::Anthropic } else { Self::OpenAi }
    }

    /// The body of an error.
    #[must_use]
    pub fn error_body(self, error: &ApiError) -> Value {
        match self {
            Self::OpenAi => json!(ErrorBody {
                error: ErrorDetails {
                    message: error.message.clone(),
                    kind: openai_type(error.kind),
                    param: error.param.clone(),
                    code: error.code,
                }
            }),
            Self::Anthropic => json!({"type": "error", "error": {
                "type": anthropic_type(error.kind),
                "message": error.message,
            }}),
        }
    }

    /// The response that a result is.
    pub(crate) fn respond(self, result: Result<impl IntoResponse, ApiError>) -> Response {
        match result {
            Ok(answer) => answer.into_response(),
            Err(error) => self.error_response(&error),
        }
    }

    /// The response to a request that was refused or failed.
    #[must_use]
    pub fn error_response(self, error: &ApiError) -> Response {
        let mut response = (error.kind.status(), Json(self.error_body(error))).into_response();
        if let Some(seconds) = error.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The body of an error of OpenAI's API.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorDetails,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorDetails {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The field that is at fault.
    param: Option<String>,
    /// A word for programs.
    code: Option<&'static str>,
}

/// `error.type` of OpenAI's API.
pub(crate) fn openai_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Authentication => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::QueueFull => "rate_limit_error",
        ErrorKind::Server | ErrorKind::Unavailable => "server_error",
        ErrorKind::Invalid
        | ErrorKind::Unprocessable
        | ErrorKind::Method
        | ErrorKind::Timeout
        | ErrorKind::TooLarge
        | ErrorKind::HeadersTooLarge
        | ErrorKind::MediaType => "invalid_request_error",
    }
}

/// `error.type` of Anthropic's API.
fn anthropic_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Authentication => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge | ErrorKind::HeadersTooLarge => "request_too_large",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::QueueFull => "rate_limit_error",
        ErrorKind::Server => "api_error",
        ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Invalid
        | ErrorKind::Unprocessable
        | ErrorKind::Method
        | ErrorKind::MediaType => "invalid_request_error",
    }
}
