//! A response's body that tells when it has ended, and whether all of it was taken.

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body with a function that is called once: with `true` after the body's last frame was taken, or with
/// `false` when the body is dropped before that or fails.
pub(super) struct Guarded<F: FnOnce(bool) + Unpin> {
    body: Body,
    ended: Option<F>,
}

impl<F: FnOnce(bool) + Unpin> Guarded<F> {
    /// Calls `ended` at once for an empty body.
    pub(super) fn new(body: Body, ended: F) -> Self {
        let mut guarded = Self { body, ended: Some(ended) };
        guarded.end_if_taken();
        guarded
    }

    fn end_if_taken(&mut self) {
        if self.body.is_end_stream() {
            self.end(true);
        }
    }

    fn end(&mut self, complete: bool) {
        if let Some(ended) = self.ended.take() {
            ended(complete);
        }
    }
}

impl<F: FnOnce(bool) + Unpin> HttpBody for Guarded<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            // A body of known length is not polled again after its last frame.
            Some(Ok(_)) => self.end_if_taken(),
            Some(Err(_)) => self.end(false),
            None => self.end(true),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: FnOnce(bool) + Unpin> Drop for Guarded<F> {
    fn drop(&mut self) {
        self.end(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn tells_once_whether_the_body_was_taken() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let guarded = |body| {
            let calls = Arc::clone(&calls);
            Guarded::new(body, move |complete| calls.lock().unwrap().push(complete))
        };
        drop(guarded(Body::empty()));
        assert_eq!(*calls.lock().unwrap(), [true]);

        let mut whole = guarded(Body::from("text"));
        assert_eq!(calls.lock().unwrap().len(), 1);
        whole.frame().await.unwrap().unwrap();
        drop(whole);
        assert_eq!(*calls.lock().unwrap(), [true, true]);

        drop(guarded(Body::from("text")));
        assert_eq!(*calls.lock().unwrap(), [true, true, false]);
    }
}
