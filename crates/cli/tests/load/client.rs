//! One request of one client, who may vanish in the middle.

use crate::prompts::Prompt;
use crate::reply::{Events, Reply};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// A stream that takes longer hangs: on a busy machine most of its time is spent in the queue.
const REPLY_TIME: Duration = Duration::from_secs(600);

/// When a client drops its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Vanish {
    /// So long after sending: while it waits, during prefill, or soon after.
    After(Duration),
    /// After so many events.
    AtEvent(usize),
}

/// How a stream ended for its client.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Whole,
    Vanished,
    /// Answered with an error's status.
    Refused(u16, String),
    /// No answer at all.
    Unanswered(String),
    /// Broken off, or not what a stream looks like.
    Broken(String),
}

/// A stream as its client saw it.
#[derive(Clone, Debug)]
pub(crate) struct Streamed {
    pub(crate) reply: Reply,
    pub(crate) end: End,
    /// From sending to the first text.
    pub(crate) first_text: Option<Duration>,
}

/// Sends a prompt and reads the stream.
pub(crate) async fn stream(
    client: &reqwest::Client,
    url: &str,
    prompt: &Prompt,
    salt: Option<u64>,
    vanish: Option<Vanish>,
) -> Streamed {
    let start = Instant::now();
    let mut reply = Reply::default();
    let request = client.post(url.to_owned() + prompt.dialect.path()).json(&prompt.body(salt));
    let (events, time) = match vanish {
        None => (usize::MAX, REPLY_TIME),
        Some(Vanish::AtEvent(events)) => (events, REPLY_TIME),
        Some(Vanish::After(time)) => (usize::MAX, time),
    };
    // Dropping what is not finished closes the connection.
    let read = timeout(time, read(request, prompt, events, &mut reply)).await;
    let end = match (read, vanish) {
        (Ok(end), _) => end,
        (Err(_), Some(Vanish::After(_))) => End::Vanished,
        (Err(_), _) => End::Broken(format!("not at its end after {} s", time.as_secs())),
    };
    let first_text = reply.first_text.map(|first| first - start);
    Streamed { reply, end, first_text }
}

async fn read(
    request: reqwest::RequestBuilder,
    prompt: &Prompt,
    events_max: usize,
    reply: &mut Reply,
) -> End {
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) => return End::Unanswered(format!("{error:?}")),
    };
    if response.status() != 200 {
        let status = response.status().as_u16();
        return End::Refused(status, response.text().await.unwrap_or_default());
    }
    let mut events = Events::default();
    loop {
        let bytes = match response.chunk().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) if reply.is_whole => return End::Whole,
            Ok(None) => return End::Broken("an end without the last event".to_owned()),
            Err(error) => return End::Broken(format!("{error:?}")),
        };
        let taken = events
            .push(&bytes)
            .and_then(|events| events.iter().try_for_each(|data| reply.take(prompt.dialect, data)));
        if let Err(error) = taken {
            return End::Broken(error);
        }
        if reply.events >= events_max {
            return End::Vanished;
        }
    }
}
