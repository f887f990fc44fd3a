//! The limits of a request's body: its size, its pace, and what all bodies together may hold.

use super::limits::Limits;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::middleware::Next;
use axum::response::Response;
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// The limits of bodies, and what is left for those that are held.
#[derive(Clone)]
pub(super) struct Bodies {
    bytes: usize,
    idle: Duration,
    time: Duration,
    /// A permit for each byte that may be held.
    left: Arc<Semaphore>,
    held_bytes: usize,
}

impl Bodies {
    pub(super) fn new(limits: &Limits) -> Self {
        let held_bytes = limits.bodies_bytes.min(Semaphore::MAX_PERMITS);
        Self {
            bytes: limits.body_bytes,
            idle: limits.body_idle,
            time: limits.body_time,
            left: Arc::new(Semaphore::new(held_bytes)),
            held_bytes,
        }
    }

    fn too_large(&self, value: &str) -> ApiError {
        let message = format!("the request's body has {value} bytes; the limit is {}", self.bytes);
        ApiError::new(ErrorKind::TooLarge, message).with_code("request_too_large")
    }

    fn too_slow(&self, taken: usize) -> ApiError {
        let message = format!(
            "the request's body did not arrive in time: {taken} bytes came, and then none for {} s, or not \
             all within {} s",
            self.idle.as_secs_f32(),
            self.time.as_secs_f32()
        );
        ApiError::new(ErrorKind::Timeout, message)
    }

    fn too_many(&self) -> ApiError {
        let message = format!(
            "the requests that are being received hold {} bytes, which is the limit; try again",
            self.held_bytes
        );
        ApiError::new(ErrorKind::Unavailable, message).with_retry_after(1)
    }

    /// All of a body, and the permit to hold it.
    async fn collect(
        &self,
        mut body: Body,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
        let mut taken = BytesMut::new();
        let mut held: Option<OwnedSemaphorePermit> = None;
        let last = Instant::now() + self.time;
        while !body.is_end_stream() {
            let deadline = last.min(Instant::now() + self.idle);
            let Ok(frame) = timeout_at(deadline, body.frame()).await else {
                return Err(self.too_slow(taken.len()));
            };
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| {
                let message = format!("the request's body ended early or is malformed: {error}");
                ApiError::new(ErrorKind::Invalid, message)
            })?;
            // Trailers say nothing to us.
            let Ok(chunk) = frame.into_data() else { continue };
            if chunk.len() > self.bytes - taken.len() {
                return Err(self.too_large(&format!("more than {}", self.bytes)));
            }
            let count = u32::try_from(chunk.len()).map_err(|_| self.too_many())?;
            let permit = Arc::clone(&self.left).try_acquire_many_owned(count);
            let permit = permit.map_err(|_| self.too_many())?;
            match &mut held {
                Some(held) => held.merge(permit),
                None => held = Some(permit),
            }
            taken.extend_from_slice(&chunk);
        }
        Ok((taken.freeze(), held))
    }
}

/// Receives a request's body as a whole before its handler runs.
pub(super) async fn receive(
    State(bodies): State<Bodies>,
    request: Request,
    next: Next,
) -> Response {
    let dialect = Dialect::of_path(request.uri().path());
    let (parts, body) = request.into_parts();
    // The connection has refused lengths that are not numbers.
    let declared = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let received = if declared > bodies.bytes as u64 {
        Err(bodies.too_large(&declared.to_string()))
    } else {
        bodies.collect(body).await
    };
    match received {
        Ok((body, held)) => {
            let response = next.run(Request::from_parts(parts, Body::from(body))).await;
            drop(held);
            response
        }
        Err(error) => {
            let mut response = dialect.error_response(&error);
            // What is left of the body is not read, so nothing can follow it.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}
