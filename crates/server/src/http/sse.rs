//! Server-sent events: how a stream of items becomes a response.

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::Response;
use futures_util::Stream;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_stream::StreamExt as _;

/// How long a stream may be silent before a comment shows that it lives. Clients and proxies give up after
/// tens of seconds; a long prefill is silent for minutes.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// What a stream sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    /// An event.
    Event {
        /// The event's name, one line.
        name: Option<&'static str>,
        /// Its data; each line of it becomes a `data:` line.
        data: String,
    },
    /// A comment, which clients skip.
    Comment(String),
    /// Anthropic's `ping` event.
    Ping,
}

impl SseItem {
    /// An event without a name, as OpenAI's chat completions have them.
    #[must_use]
    pub fn data(data: impl Into<String>) -> Self {
        Self::Event { name: None, data: data.into() }
    }

    /// An event with a name.
    #[must_use]
    pub fn event(name: &'static str, data: impl Into<String>) -> Self {
        Self::Event { name: Some(name), data: data.into() }
    }

    /// The item's bytes, with the empty line that ends it.
    fn encode(&self) -> Bytes {
        let mut out = String::new();
        match self {
            Self::Event { name, data } => {
                if let Some(name) = name {
                    push_lines(&mut out, "event: ", name);
                }
                push_lines(&mut out, "data: ", data);
            }
            Self::Comment(text) => push_lines(&mut out, ": ", text),
            Self::Ping => out.push_str("event: ping\ndata: {\"type\": \"ping\"}\n"),
        }
        out.push('\n');
        out.into()
    }
}

/// Each line of `text` after `prefix`. A carriage return ends a line too, as it does for the reader.
fn push_lines(out: &mut String, prefix: &str, text: &str) {
    out.reserve(prefix.len() + text.len() + 2);
    let mut rest = text;
    loop {
        out.push_str(prefix);
        let Some(end) = rest.find(['\r', '\n']) else {
            out.push_str(rest);
            out.push('\n');
            return;
        };
        out.push_str(&rest[..end]);
        out.push('\n');
        let ending = if rest[end..].starts_with("\r\n") { 2 } else { 1 };
        rest = &rest[end + ending..];
    }
}

/// A response that sends the items of `stream` as they come, and a comment whenever it has been silent for
/// `keep_alive` (more than zero). Dropping the response, which is what happens when the client goes away,
/// drops the stream.
///
/// There is no `Connection` header: HTTP/1.1 keeps connections alive unless told otherwise, and only the
/// connection knows whether it may promise that.
pub fn sse(stream: impl Stream<Item = SseItem> + Send + 'static, keep_alive: Duration) -> Response {
    let mut interval = interval_at(Instant::now() + keep_alive, keep_alive);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let chunks = stream.timeout_repeating(interval).map(|item| {
        Ok::<_, Infallible>(match item {
            Ok(item) => item.encode(),
            Err(_silent) => Bytes::from_static(b": keep-alive\n\n"),
        })
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx collects a proxied response otherwise.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[test]
    fn lines_become_fields() {
        let cases = [
            (SseItem::data("{}"), "data: {}\n\n"),
            (SseItem::data(""), "data: \n\n"),
            (SseItem::event("message_stop", "{}"), "event: message_stop\ndata: {}\n\n"),
            (SseItem::data("a\nb\r\nc\rd\n"), "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"),
            (SseItem::Comment("a\nevent: forged".into()), ": a\n: event: forged\n\n"),
            (SseItem::Ping, "event: ping\ndata: {\"type\": \"ping\"}\n\n"),
        ];
        for (item, expected) in cases {
            assert_eq!(item.encode(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn comments_fill_silence_alone() {
        let stream = futures_util::stream::unfold(0_u64, |count| async move {
            // Silence of 1, 2, 3 s between the items.
            tokio::time::sleep(Duration::from_secs(count)).await;
            (count < 4).then(|| (SseItem::data(count.to_string()), count + 1))
        });
        let response = sse(stream, Duration::from_millis(1500));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let kept = ": keep-alive\n\n";
        let expected =
            format!("data: 0\n\ndata: 1\n\n{kept}data: 2\n\n{kept}data: 3\n\n{kept}{kept}");
        // The item after 3 s and the second tick fall on the same instant: the item comes first and resets.
        assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
    }
}
