//! Who asks.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use std::convert::Infallible;

/// Whoever sent the request: a digest of the API key, empty where no key is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for Owner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}
