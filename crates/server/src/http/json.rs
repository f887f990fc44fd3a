//! Bodies of JSON.

use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::response::Response;
use serde::de::DeserializeOwned;

/// A body of JSON, read as `T`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let dialect = Dialect::of_path(request.uri().path());
        let refuse = |error: ApiError| dialect.error_response(&error);
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|e| refuse(ApiError::new(ErrorKind::Invalid, e.to_string())))?;
        let mut json = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            refuse(ApiError::invalid(path, error.into_inner().to_string()))
        })?;
        json.end().map_err(|e| refuse(ApiError::new(ErrorKind::Invalid, e.to_string())))?;
        Ok(Self(value))
    }
}
