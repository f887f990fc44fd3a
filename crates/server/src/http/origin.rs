//! The check of `Origin`: which web pages may call the server (CORS), and the answers that browsers ask for
//! beforehand.

use super::access::Access;
use super::host;
use super::text::visible;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderName, ORIGIN, VARY,
};
use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use std::sync::Arc;

/// The request headers of clients that run in browsers, besides all that begin with [`SDK_PREFIX`].
const REQUEST_HEADERS: [&str; 17] = [
    "accept",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "authorization",
    "content-type",
    "http-referer",
    "idempotency-key",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "traceparent",
    "user-agent",
    "x-api-key",
    "x-client-request-id",
    "x-request-id",
    "x-title",
];
/// What OpenAI's and Anthropic's SDKs tell about themselves.
const SDK_PREFIX: &str = "x-stainless-";

/// Lets requests pass that come from no page, from the server's own, or from a listed one.
pub(super) async fn check(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let origin = match sender(&access, &request) {
        Ok(origin) => origin,
        Err(error) => return vary(Dialect::of_path(request.uri().path()).error_response(&error)),
    };
    let is_preflight = *request.method() == Method::OPTIONS
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && headers.contains_key(ORIGIN);
    let mut response = match &origin {
        Sender::Listed(_) if is_preflight => preflight(headers),
        _ => next.run(request).await,
    };
    if let Sender::Listed(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, request-id, retry-after"),
        );
    }
    vary(response)
}

/// Where a request comes from, as far as it may pass.
enum Sender {
    /// The server's own page, or no page at all.
    Own,
    /// A page that the operator listed.
    Listed(HeaderValue),
}

/// # Errors
///
/// When the request comes from a page that is not listed.
fn sender(access: &Access, request: &Request) -> Result<Sender, ApiError> {
    let headers = request.headers();
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else {
        return if is_cross_site(request) { Err(refused("another site")) } else { Ok(Sender::Own) };
    };
    let text = origin.to_str().unwrap_or("one that is not ASCII");
    if origins.next().is_some() {
        return Err(refused("several"));
    }
    if access.allows_origin(text) {
        return Ok(Sender::Listed(origin.clone()));
    }
    let host = host::host(headers)?;
    if host.is_some_and(|host| is_same(text, &host)) { Ok(Sender::Own) } else { Err(refused(text)) }
}

fn refused(origin: &str) -> ApiError {
    let origin = visible(origin, 120);
    let message = format!(
        "pages of the origin {origin} may not call this server; if they should, start it with \
         --allowed-origin and that origin, as in --allowed-origin https://chat.example.com"
    );
    ApiError::new(ErrorKind::Forbidden, message).with_code("origin_not_allowed")
}

/// Whether a browser says that another site's page loads this as a script, an image or the like, for which
/// it sends no `Origin`. Following a link is no such thing.
fn is_cross_site(request: &Request) -> bool {
    let is =
        |name: &str, value: &str| request.headers().get(name).is_some_and(|sent| sent == value);
    is("sec-fetch-site", "cross-site") && !is("sec-fetch-mode", "navigate")
}

/// Whether an origin is that of the server's own pages. The scheme may be that of a proxy in front of it.
fn is_same(origin: &str, host: &Authority) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let default_port = match origin.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return false,
    };
    let Some(authority) = origin.authority() else { return false };
    authority.host().eq_ignore_ascii_case(host.host())
        && authority.port_u16().unwrap_or(default_port) == host.port_u16().unwrap_or(default_port)
        && !authority.as_str().contains('@')
}

/// The answer to a browser that asks, for a listed page, what it may send.
fn preflight(headers: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    answer.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, DELETE, OPTIONS"),
    );
    answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(headers));
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    // A public page that reaches into a private network asks once more.
    if headers.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        answer.insert(name, HeaderValue::from_static("true"));
    }
    response
}

/// The headers that a page may send: all that clients are known to, and the SDKs' own of those it asks for.
fn allowed_headers(headers: &HeaderMap) -> HeaderValue {
    let asked = headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let asked = asked.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let of_sdks = asked.map(str::trim).filter(|name| {
        let is_name = HeaderName::from_bytes(name.as_bytes()).is_ok();
        is_name && name.to_ascii_lowercase().starts_with(SDK_PREFIX)
    });
    let names: Vec<_> = REQUEST_HEADERS.into_iter().chain(of_sdks).collect();
    HeaderValue::from_str(&names.join(", "))
        .unwrap_or(HeaderValue::from_static("authorization, content-type"))
}

/// What a cache must compare: the answer depends on who asked.
fn vary(mut response: Response) -> Response {
    response.headers_mut().append(VARY, HeaderValue::from_static("Origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_origin_means_the_same_host_and_port() {
        let same = [
            ("http://localhost:8080", "localhost:8080"),
            ("http://LOCALHOST", "localhost:80"),
            ("https://calla.example", "calla.example"),
            ("http://[::1]:8080", "[::1]:8080"),
        ];
        for (origin, host) in same {
            assert!(is_same(origin, &host.parse().unwrap()), "{origin} {host}");
        }
        let other = [
            ("http://localhost:3000", "localhost:8080"),
            ("http://localhost", "localhost:8080"),
            ("https://localhost", "localhost:80"),
            ("http://127.0.0.1:8080", "localhost:8080"),
            ("null", "null"),
            ("http://evil@localhost:8080", "localhost:8080"),
            ("ftp://localhost:8080", "localhost:8080"),
            ("", "localhost"),
        ];
        for (origin, host) in other {
            assert!(!is_same(origin, &host.parse().unwrap()), "{origin} {host}");
        }
    }
}
