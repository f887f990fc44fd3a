//! What every request passes through, whatever it asks for: limits, access, shapes of errors.
//!
//! [`listen`] binds, [`serve`] runs the connections, [`protect`] wraps a router. From the outside in, a
//! request meets: its number and log line, the headers that keep browsers from guessing, the check of `Host`,
//! the check of `Origin`, the net under panics, the refusal while the server stops, the key, the limits of its
//! body, and the shaping of bare errors.

pub(crate) mod access;
mod auth;
mod bind;
mod body;
mod connection;
mod errors;
mod guarded;
mod host;
pub mod json;
mod limits;
mod origin;
mod request_log;
mod serve;
pub mod sse;
mod text;

pub use access::{Access, AccessError, Owner};
pub use bind::{ListenError, Listener, listen};
pub use connection::Peer;
pub use json::JsonBody;
pub use limits::Limits;
pub use request_log::RequestId;
pub use serve::serve;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;

/// Wraps a router in all the checks that requests pass before, and responses after, their routes.
///
/// Replaces the router's fallback: unknown paths get a 404 that names the path that was meant. Handlers find
/// [`Owner`], [`RequestId`] and, under [`serve`], [`Peer`] among the request's extensions. Bodies have
/// arrived as a whole, within `limits`, before a handler runs. Once `stop` is cancelled, requests get 503.
pub fn protect(router: Router, access: Access, limits: &Limits, stop: CancellationToken) -> Router {
    let access = Arc::new(access);
    let bodies = body::Bodies::new(limits);
    let layers = ServiceBuilder::new()
        .layer(from_fn(request_log::number_and_log))
        .layer(from_fn(errors::harden))
        .layer(from_fn_with_state(Arc::clone(&access), host::check))
        // Outside of all that follows, so that a listed page can read its errors.
        .layer(from_fn_with_state(Arc::clone(&access), origin::check))
        .layer(from_fn(errors::catch_panic))
        .layer(from_fn_with_state(stop, errors::refuse_while_stopping))
        .layer(from_fn_with_state(access, auth::check))
        .layer(from_fn_with_state(bodies, body::receive))
        .layer(from_fn(errors::shape));
    let router = router.fallback(errors::not_found).layer(DefaultBodyLimit::disable());
    // Around the whole router rather than by `Router::layer`, which runs after routing and would not see the
    // `Allow` header of a 405.
    Router::new().fallback_service(layers.service(router))
}
