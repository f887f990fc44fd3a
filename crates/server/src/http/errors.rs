//! Errors that no handler makes: unknown paths, wrong methods, panics, a server that stops; and the headers
//! that all responses have.

use super::text::visible;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, REFERRER_POLICY, SERVER,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, Limited};
use std::panic::AssertUnwindSafe;
use tokio_util::sync::CancellationToken;

/// By which another instance recognises this program on its port.
pub(super) const SERVER_NAME: &str = concat!("calla/", env!("CARGO_PKG_VERSION"));

/// Paths that clients mean when they ask for others.
const PATHS: [&str; 11] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/models",
    "/v1/messages/count_tokens",
    "/v1/messages",
    "/tokenize",
    "/detokenize",
    "/health",
    "/metrics",
    "/openapi.json",
];

/// Longest text of an error that is given a shape, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Sets the headers that tell browsers to guess, keep and share nothing; a response's own `Cache-Control`
/// stays.
pub(super) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let policy = HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(policy, HeaderValue::from_static("same-origin"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(SERVER, HeaderValue::from_static(SERVER_NAME));
    response
}

/// Answers 500 when a handler panics. The panic's own message goes to the log only.
pub(super) async fn catch_panic(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let run = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    run.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        tracing::error!("a handler of {} panicked: {}", visible(&path, 200), visible(text, 1000));
        let message = "the server failed on this request; its log says more";
        Dialect::of_path(&path).error_response(&ApiError::new(ErrorKind::Server, message))
    })
}

/// Answers 503 once the server stops: on a connection that lives on, only what has begun is finished. Health
/// is told still, by its own handler.
pub(super) async fn refuse_while_stopping(
    State(stop): State<CancellationToken>,
    request: Request,
    next: Next,
) -> Response {
    if !stop.is_cancelled() || request.uri().path() == "/health" {
        return next.run(request).await;
    }
    let error = ApiError::new(ErrorKind::Unavailable, "the server is shutting down")
        .with_code("shutting_down")
        .with_retry_after(5);
    let mut response = Dialect::of_path(request.uri().path()).error_response(&error);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Answers 404 to a path that no route has.
pub(super) async fn not_found(uri: Uri) -> Response {
    let path = uri.path();
    let hint = match meant(path) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("there are {}", PATHS.join(", ")),
    };
    let message = format!("there is nothing at {}: {hint}", visible(path, 80));
    let error = ApiError::new(ErrorKind::NotFound, message).with_code("unknown_path");
    Dialect::of_path(path).error_response(&error)
}

/// The path that was meant: one with the same ending, as when a base URL has one `/v1` too many or too few,
/// or a path goes on where ours ends.
fn meant(path: &str) -> Option<&'static str> {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let asked = parts.join("/").to_ascii_lowercase();
    let is_ending = |known: &&'static str| {
        let tail = known.trim_start_matches("/v1").trim_start_matches('/');
        asked == tail || asked.ends_with(&format!("/{tail}"))
    };
    let longest = PATHS.into_iter().filter(is_ending).max_by_key(|known| known.len());
    longest.or_else(|| {
        // OpenAI's old engines, Ollama's chat.
        let is_chat = asked.ends_with("api/chat") || asked.ends_with("chat/completion");
        is_chat.then_some("/v1/chat/completions")
    })
}

/// Gives an error that has no shape of its own (a bare 405, an extractor's text) its dialect's.
pub(super) async fn shape(request: Request, next: Next) -> Response {
    let dialect = Dialect::of_path(request.uri().path());
    let what = format!("{} {}", request.method(), request.uri().path());
    let response = next.run(request).await;
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let is_text = match response.headers().get(CONTENT_TYPE) {
        Some(kind) => kind.as_bytes().starts_with(b"text/plain"),
        None => true,
    };
    if !is_text {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = match Limited::new(body, TEXT_BYTES_MAX).collect().await {
        Ok(text) => String::from_utf8_lossy(&text.to_bytes()).into_owned(),
        Err(_) => String::new(),
    };
    let message = match parts.headers.get(ALLOW).and_then(|allow| allow.to_str().ok()) {
        Some(allow) if status == StatusCode::METHOD_NOT_ALLOWED => {
            format!("{} is not allowed; the path takes {allow}", visible(&what, 100))
        }
        _ if text.is_empty() => {
            status.canonical_reason().unwrap_or("the request failed").to_owned()
        }
        _ => visible(&text, 400),
    };
    let kind = kind_of(status);
    let shaped = dialect.error_response(&ApiError::new(kind, message));
    let (shaped_parts, body) = shaped.into_parts();
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    parts.headers.extend(shaped_parts.headers);
    Response::from_parts(parts, body)
}

/// The kind whose words fit a status best; the status itself stays.
fn kind_of(status: StatusCode) -> ErrorKind {
    match status {
        StatusCode::UNAUTHORIZED => ErrorKind::Authentication,
        StatusCode::FORBIDDEN => ErrorKind::Forbidden,
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => ErrorKind::Method,
        StatusCode::REQUEST_TIMEOUT => ErrorKind::Timeout,
        StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ErrorKind::MediaType,
        StatusCode::UNPROCESSABLE_ENTITY => ErrorKind::Unprocessable,
        StatusCode::TOO_MANY_REQUESTS => ErrorKind::QueueFull,
        StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Unavailable,
        _ if status.is_server_error() => ErrorKind::Server,
        _ => ErrorKind::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn near_misses_name_the_path_that_was_meant() {
        let cases = [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/chat/completions/", Some("/v1/chat/completions")),
            ("/v1//chat/completions", Some("/v1/chat/completions")),
            ("/V1/Chat/Completions", Some("/v1/chat/completions")),
            ("/api/chat", Some("/v1/chat/completions")),
            ("/completions", Some("/v1/completions")),
            ("/v1/v1/messages", Some("/v1/messages")),
            ("/messages/count_tokens", Some("/v1/messages/count_tokens")),
            ("/v1/health", Some("/health")),
            ("/v1/embeddings", None),
            ("/", None),
            ("/xmodels", None),
        ];
        for (path, expected) in cases {
            assert_eq!(meant(path), expected, "{path}");
        }
    }
}
