//! A request's number, and its line in the log.

use super::guarded::Guarded;
use super::text::visible;
use crate::dialect::Dialect;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use std::time::Instant;
use uuid::Uuid;

/// Where a request's number is sent, by clients and by us.
const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's SDK looks for it.
const NAME_ANTHROPIC: HeaderName = HeaderName::from_static("request-id");
/// Longest number that is taken from a client, in bytes.
const LENGTH_MAX: usize = 128;
/// Longest path in a line of the log, in characters.
const PATH_LENGTH_MAX: usize = 200;

/// A request's number: visible ASCII, the client's own where it sent one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(pub String);

impl RequestId {
    fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(NAME).and_then(|value| value.to_str().ok()).filter(|value| {
            let is_visible = value.bytes().all(|byte| byte.is_ascii_graphic());
            !value.is_empty() && value.len() <= LENGTH_MAX && is_visible
        });
        Self(sent.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned))
    }
}

/// Gives a request its number, and writes its line once its response has been taken or abandoned.
///
/// The line has no query and no headers: both may hold keys.
pub(super) async fn number_and_log(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let dialect = Dialect::of_path(request.uri().path());
    let value = HeaderValue::from_str(&id.0);
    request.extensions_mut().insert(id.clone());
    let mut line = Line::new(&request, id);

    let mut response = next.run(request).await;
    line.status = Some(response.status());
    if let Ok(value) = value {
        if dialect == Dialect::Anthropic {
            response.headers_mut().insert(NAME_ANTHROPIC, value.clone());
        }
        response.headers_mut().insert(NAME, value);
    }
    response.map(|body| Body::new(Guarded::new(body, move |complete| line.end(complete))))
}

/// A line of the log, written when it is dropped: handlers are dropped too when their client goes away.
struct Line {
    id: RequestId,
    method: Method,
    path: String,
    begun: Instant,
    status: Option<StatusCode>,
    is_complete: bool,
}

impl Line {
    fn new(request: &Request, id: RequestId) -> Self {
        Self {
            id,
            method: request.method().clone(),
            path: visible(request.uri().path(), PATH_LENGTH_MAX),
            begun: Instant::now(),
            status: None,
            // Bodies of responses to HEAD are never taken.
            is_complete: *request.method() == Method::HEAD,
        }
    }

    /// Writes the line.
    fn end(mut self, is_complete: bool) {
        self.is_complete |= is_complete;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let status = self.status.map_or(0, |status| status.as_u16());
        let ms = self.begun.elapsed().as_secs_f64() * 1e3;
        let ending = match (self.status, self.is_complete) {
            (Some(_), true) => "",
            (Some(_), false) => ", cut off",
            (None, _) => ", client gone",
        };
        tracing::info!(
            target: "calla::http",
            request_id = %self.id.0,
            "{} {} {status} {ms:.1} ms{ending}",
            visible(self.method.as_str(), 20),
            self.path,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_from_clients_when_they_are_harmless() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(NAME, HeaderValue::from_bytes(value).unwrap());
            RequestId::of(&headers).0
        };
        assert_eq!(of(b"trace-1/a"), "trace-1/a");
        let longest = [b'a'; LENGTH_MAX];
        assert_eq!(of(&longest).as_bytes(), longest);
        for bad in [&b""[..], b"with space", b"tab\there", "é".as_bytes(), &[b'a'; LENGTH_MAX + 1]]
        {
            let id = of(bad);
            assert!(id.parse::<Uuid>().is_ok(), "{id}");
        }
        assert!(RequestId::of(&HeaderMap::new()).0.parse::<Uuid>().is_ok());
    }
}
