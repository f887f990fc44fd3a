//! The check of `Host`, which keeps web pages from reaching the server by a name of theirs that they have
//! pointed at this machine (DNS rebinding).

use super::access::Access;
use super::connection::Peer;
use super::text::visible;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Version};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

/// Lets requests pass that call the server by one of its names.
pub(super) async fn check(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    match check_names(&access, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => Dialect::of_path(request.uri().path()).error_response(&error),
    }
}

fn check_names(access: &Access, request: &Request) -> Result<(), ApiError> {
    let local = request.extensions().get::<Peer>().map(|peer| peer.local);
    let named = host(request.headers())?;
    if named.is_none() && request.version() >= Version::HTTP_11 {
        return Err(ApiError::new(ErrorKind::Invalid, "the request has no Host header"));
    }
    // A request line may hold a whole URI, whose host then counts; both must be ours.
    for authority in named.iter().chain(request.uri().authority()) {
        let has_user = authority.as_str().contains('@');
        if has_user || !access.allows_host(authority, local) {
            let name = visible(authority.host(), 80);
            let message = format!(
                "the host {name} is not one that this server answers to; if it is meant, start the server \
                 with --allowed-host {name}"
            );
            return Err(ApiError::new(ErrorKind::Forbidden, message).with_code("host_not_allowed"));
        }
    }
    Ok(())
}

/// What the `Host` header names.
///
/// # Errors
///
/// When there are several, or the one is not a host.
pub(super) fn host(headers: &HeaderMap) -> Result<Option<Authority>, ApiError> {
    let mut values = headers.get_all(HOST).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::new(ErrorKind::Invalid, "the request has several Host headers"));
    }
    let authority = Authority::try_from(value.as_bytes()).map_err(|_| {
        let value = visible(&String::from_utf8_lossy(value.as_bytes()), 80);
        ApiError::new(ErrorKind::Invalid, format!("the Host header {value:?} is not a host"))
    })?;
    Ok(Some(authority))
}
