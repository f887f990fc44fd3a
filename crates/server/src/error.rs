//! Why a request was refused or failed, before its dialect gives that a shape.

use axum::http::StatusCode;

/// What kind of error it is; the HTTP status follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// 400: the request is malformed or a value is out of range.
    Invalid,
    /// 401: no key, or a wrong one.
    Authentication,
    /// 403: a host or an origin that is not allowed.
    Forbidden,
    /// 404: no such path, model or stored response.
    NotFound,
    /// 405: another method is meant.
    Method,
    /// 408: the request did not arrive in time.
    Timeout,
    /// 413: the body is too large.
    TooLarge,
    /// 415: the body is not JSON by its content type.
    MediaType,
    /// 422: the request is well formed and cannot be done.
    Unprocessable,
    /// 429: the queue is full.
    QueueFull,
    /// 431: the headers are too large.
    HeadersTooLarge,
    /// 500: our fault or the device's.
    Server,
    /// 503: shutting down, or the model cannot be loaded.
    Unavailable,
}

impl ErrorKind {
    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Authentication => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
            Self::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Server => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// An error for a client. The message says what was wrong, the bound, the value and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// What happened, for a person.
    pub message: String,
    /// The field that is at fault, as a path such as `messages[3].content`.
    pub param: Option<String>,
    /// A word for programs, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
    /// Seconds after which it may work.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// An error without further particulars.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A field of the request has a bad value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message).with_param(param)
    }

    /// Names the field that is at fault.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Gives programs a word for it.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}
