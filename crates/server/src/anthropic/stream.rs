//! A reply as events: what happens to it is put into content blocks, which open and close one after the other.

use super::response::{
    BlockDelta, ContentBlock, Message, MessageDelta, SIGNATURE, StreamEvent, Usage, stop_reason,
};
use crate::error::{ApiError, ErrorKind};
use crate::generate::{Delta, Ended, Happening};
use futures_util::{Stream, StreamExt, stream};
use serde_json::Map;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What a stream sends.
#[derive(Debug)]
pub(crate) enum Item {
    Event(StreamEvent),
    /// The last one of a reply that came to nothing.
    Error(ApiError),
}

impl From<StreamEvent> for Item {
    fn from(event: StreamEvent) -> Self {
        Self::Event(event)
    }
}

/// The events of a reply: the start at once, then what `happenings` bring, with a ping in each silence of
/// `ping_after`, until the reply has ended.
pub(crate) fn events(
    message: Message,
    happenings: impl Stream<Item = Happening>,
    ping_after: Duration,
) -> impl Stream<Item = Item> {
    let start = [StreamEvent::MessageStart { message }, StreamEvent::Ping {}];
    let waiting: VecDeque<Item> = start.into_iter().map(Item::from).collect();
    // Pinned, so that a ping in between loses nothing that is half received.
    let state = (waiting, Blocks::default(), Box::pin(happenings));
    stream::unfold(state, move |(mut waiting, mut blocks, mut happenings)| async move {
        // Of this silence: progress of the prompt, of which nothing is sent, does not end it.
        let ping_at = Instant::now() + ping_after;
        while waiting.is_empty() && !blocks.is_over {
            match timeout_at(ping_at, happenings.next()).await {
                Ok(Some(happening)) => blocks.take(happening, &mut waiting),
                Ok(None) => {
                    let message = "the reply broke off without an end: this is a bug";
                    let error = ApiError::new(ErrorKind::Server, message);
                    blocks.take(Happening::Failed(error), &mut waiting);
                }
                Err(_silence) => waiting.push_back(StreamEvent::Ping {}.into()),
            }
        }
        let item = waiting.pop_front()?;
        Some((item, (waiting, blocks, happenings)))
    })
}

/// The content blocks of a reply, as they are sent.
#[derive(Debug, Default)]
struct Blocks {
    /// Of the block that is open, or that opens next.
    index: usize,
    open: Option<Kind>,
    /// The last piece of the open call's input. It is held back until it is known that the call is complete: without
    /// it the JSON has no end, so that nobody takes a call that was cut for a whole one.
    last_piece: Option<String>,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

impl Blocks {
    fn take(&mut self, happening: Happening, out: &mut VecDeque<Item>) {
        match happening {
            Happening::Prefill { .. } => {}
            Happening::Delta { delta, .. } => self.delta(delta, out),
            Happening::Ended { ended, .. } => {
                self.close(out);
                out.extend(last_events(&ended).map(Item::from));
                self.is_over = true;
            }
            Happening::Failed(error) => {
                out.push_back(Item::Error(error));
                self.is_over = true;
            }
        }
    }

    fn delta(&mut self, delta: Delta, out: &mut VecDeque<Item>) {
        match delta {
            Delta::Reasoning(thinking) if !thinking.is_empty() => {
                self.enter(Kind::Thinking, out);
                self.add(BlockDelta::Thinking { thinking }, out);
            }
            Delta::Content(text, _) if !text.is_empty() => {
                self.enter(Kind::Text, out);
                self.add(BlockDelta::Text { text }, out);
            }
            Delta::Reasoning(_) | Delta::Content(..) => {}
            Delta::CallStart { id, name, .. } => {
                self.open(Kind::ToolUse, ContentBlock::tool_use(&id, name, Map::new()), out);
            }
            Delta::CallArguments { json, .. } => {
                let before = self.last_piece.replace(json);
                self.add_input(before, out);
            }
            Delta::CallEnd { complete, .. } => {
                let last = self.last_piece.take().filter(|_| complete);
                self.add_input(last, out);
                self.close(out);
            }
        }
    }

    fn add_input(&self, piece: Option<String>, out: &mut VecDeque<Item>) {
        if let Some(partial_json) = piece {
            self.add(BlockDelta::InputJson { partial_json }, out);
        }
    }

    /// Opens a block of a kind without particulars, unless one is open.
    fn enter(&mut self, kind: Kind, out: &mut VecDeque<Item>) {
        if self.open != Some(kind) {
            let block = match kind {
                Kind::Thinking => {
                    ContentBlock::Thinking { thinking: String::new(), signature: String::new() }
                }
                Kind::Text | Kind::ToolUse => ContentBlock::text(""),
            };
            self.open(kind, block, out);
        }
    }

    fn open(&mut self, kind: Kind, content_block: ContentBlock, out: &mut VecDeque<Item>) {
        self.close(out);
        self.open = Some(kind);
        out.push_back(StreamEvent::ContentBlockStart { index: self.index, content_block }.into());
    }

    fn add(&self, delta: BlockDelta, out: &mut VecDeque<Item>) {
        out.push_back(StreamEvent::ContentBlockDelta { index: self.index, delta }.into());
    }

    fn close(&mut self, out: &mut VecDeque<Item>) {
        let Some(kind) = self.open.take() else { return };
        self.last_piece = None;
        if kind == Kind::Thinking {
            self.add(BlockDelta::Signature { signature: SIGNATURE.into() }, out);
        }
        out.push_back(StreamEvent::ContentBlockStop { index: self.index }.into());
        self.index += 1;
    }
}

/// What is sent when all blocks are closed.
fn last_events(ended: &Ended) -> [StreamEvent; 2] {
    let (stop_reason, stop_sequence) = stop_reason(&ended.end);
    let delta = MessageDelta { stop_reason, stop_sequence, stop_details: (), container: () };
    let usage = Usage::of_reply(&ended.usage, ended.reasoning_tokens);
    [StreamEvent::MessageDelta { delta, usage }, StreamEvent::MessageStop {}]
}

#[cfg(test)]
mod tests;
