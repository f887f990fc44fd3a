//! Server-sent events.

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use std::convert::Infallible;
use std::time::Duration;

/// What a stream sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SseItem {
    /// An event.
    Event {
        /// Its name, if the dialect has names.
        name: Option<&'static str>,
        /// Its data.
        data: String,
    },
    /// A line that clients pass over.
    Comment(String),
}

/// A response that streams items, and says that it lives where there is none for `keep_alive`.
pub(crate) fn sse(
    items: impl Stream<Item = SseItem> + Send + 'static,
    keep_alive: Duration,
) -> Response {
    let events = items.map(|item| {
        Ok::<_, Infallible>(match item {
            SseItem::Event { name: Some(name), data } => Event::default().event(name).data(data),
            SseItem::Event { name: None, data } => Event::default().data(data),
            SseItem::Comment(text) => Event::default().comment(text),
        })
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive)).into_response()
}
