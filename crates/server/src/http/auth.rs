//! API keys: who sent a request.

use super::access::{Access, Owner};
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

/// Lets requests pass that carry a key, ask for nothing that needs one, or reach a server without keys.
pub(super) async fn check(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_open = matches!(*request.method(), Method::GET | Method::HEAD) && access.is_open(path);
    let owner = sent_keys(request.headers()).find_map(|key| access.owner_of(key));
    if access.needs_key() && owner.is_none() && !is_open {
        let has_key = sent_keys(request.headers()).next().is_some();
        return refuse(Dialect::of_path(path), has_key);
    }
    let owner = Owner(owner.unwrap_or_default().to_owned());
    request.extensions_mut().insert(owner);
    next.run(request).await
}

/// The keys that a request carries: `Authorization: Bearer KEY`, `x-api-key: KEY`. Some clients send both,
/// of which one may be a leftover.
fn sent_keys(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearers = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearers.chain(headers.get_all("x-api-key").iter().map(|value| value.as_bytes().trim_ascii()))
}

fn refuse(dialect: Dialect, has_key: bool) -> Response {
    let reason =
        if has_key { "the API key is not one of this server's" } else { "no API key was sent" };
    let message = format!("{reason}: send `Authorization: Bearer KEY` or `x-api-key: KEY`");
    let error = ApiError::new(ErrorKind::Authentication, message).with_code("invalid_api_key");
    let mut response = dialect.error_response(&error);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_both_headers_and_in_no_other_scheme() {
        let check = |sent: &[(&'static str, &str)], expected: &[&str]| {
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.append(*name, value.parse().unwrap());
            }
            let keys: Vec<_> = sent_keys(&headers).collect();
            assert_eq!(keys, expected.iter().map(|key| key.as_bytes()).collect::<Vec<_>>());
        };
        check(&[("authorization", "Bearer abc")], &["abc"]);
        check(&[("authorization", "bEARER  abc ")], &["abc"]);
        check(&[("x-api-key", " abc")], &["abc"]);
        check(&[("authorization", "Bearer a"), ("x-api-key", "b")], &["a", "b"]);
        check(&[("authorization", "Basic abc"), ("cookie", "key=abc")], &[]);
        check(&[("authorization", "Bearer"), ("authorization", "abc")], &[]);
    }
}
