//! From token ids to a reply: detokenizer, reply parser and stop strings in one stream of events.

use crate::reply_parser::Reply;
use crate::{Detokenizer, Event, ReplyParser, Result, StopScanner, Tokenizer};
use serde_json::Value;

/// How the text of a reply is to be read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplyForm<'a> {
    /// The continuation of a raw prompt: all of it is content.
    Raw,
    /// An assistant's turn.
    Chat {
        /// Whether the prompt ended inside `<think>` ([`Rendered::thinking`](crate::Rendered::thinking)).
        thinking: bool,
        /// Tool descriptions of the request: their schemas type the calls' arguments.
        tools: &'a [Value],
    },
}

/// Assembles one reply from its ids, which come one by one and end before the end-of-turn token.
///
/// Stop strings count in the answer only: one that occurs in thinking or in a call's arguments does not
/// end the reply. Each event is given out once, and is also added to the whole
/// ([`FinishedReply::reply`]).
#[derive(Debug, Clone)]
pub struct ReplyAssembler {
    detokenizer: Detokenizer,
    /// `None` for a raw reply.
    parser: Option<ReplyParser>,
    stop: StopScanner,
    stopped: Option<usize>,
    /// Until the thinking is closed.
    thinking: bool,
    think_end: Option<u32>,
    reasoning_tokens: usize,
    reply: Reply,
}

/// A whole reply.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedReply {
    /// Events that the end brought: what had been held back.
    pub events: Vec<Event>,
    /// Thinking, content and calls.
    pub reply: Reply,
    /// Index of the stop string that ended it, if one did.
    pub stopped: Option<usize>,
    /// Tokens of the thinking, its closing marker included.
    pub reasoning_tokens: usize,
}

impl ReplyAssembler {
    /// An assembler for one reply.
    ///
    /// # Errors
    /// If the stop strings are out of bounds, see [`StopScanner::new`].
    pub fn new<S: AsRef<str>>(
        tokenizer: &Tokenizer,
        form: ReplyForm<'_>,
        stops: &[S],
    ) -> Result<ReplyAssembler> {
        let (parser, thinking) = match form {
            ReplyForm::Raw => (None, false),
            ReplyForm::Chat { thinking, tools } => {
                (Some(ReplyParser::new(tools, thinking)), thinking)
            }
        };
        Ok(ReplyAssembler {
            detokenizer: Detokenizer::new(tokenizer, true),
            parser,
            stop: StopScanner::new(stops)?,
            stopped: None,
            thinking,
            think_end: tokenizer.token_id("</think>"),
            reasoning_tokens: 0,
            reply: Reply::default(),
        })
    }

    /// Takes the next id: what it adds. Nothing once a stop string was found.
    pub fn push(&mut self, id: u32) -> Vec<Event> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        self.reasoning_tokens += usize::from(self.thinking);
        let piece = self.detokenizer.push(id);
        let events = self.parse(piece);
        let events = self.filter(events);
        let answers = |event: &Event| !matches!(event, Event::Reasoning(_));
        if Some(id) == self.think_end || events.iter().any(answers) {
            self.thinking = false;
        }
        events
    }

    /// Index of the stop string that was found, if one was: the reply should end here.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// The end of the ids.
    pub fn finish(mut self) -> FinishedReply {
        let mut events = Vec::new();
        if self.stopped.is_none() {
            let piece = self.detokenizer.finish();
            let mut last = self.parse(piece);
            last.extend(self.parser.take().map(ReplyParser::finish).into_iter().flatten());
            events = self.filter(last);
        }
        if self.stopped.is_none() {
            let held = self.stop.finish();
            self.emit(Event::Content(held), &mut events);
        }
        FinishedReply {
            events,
            reply: self.reply,
            stopped: self.stopped,
            reasoning_tokens: self.reasoning_tokens,
        }
    }

    fn parse(&mut self, piece: String) -> Vec<Event> {
        match &mut self.parser {
            _ if piece.is_empty() => Vec::new(),
            Some(parser) => parser.push(&piece),
            None => vec![Event::Content(piece)],
        }
    }

    /// Sends content through the stop scanner, and drops all that follows a stop string.
    fn filter(&mut self, events: Vec<Event>) -> Vec<Event> {
        let mut out = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Content(text) => {
                    let step = self.stop.push(&text);
                    self.emit(Event::Content(step.text), &mut out);
                    if step.stopped.is_some() {
                        self.stopped = step.stopped;
                        return out;
                    }
                }
                other => {
                    // What stands before a call was no beginning of a stop string.
                    let held = self.stop.finish();
                    self.emit(Event::Content(held), &mut out);
                    self.emit(other, &mut out);
                }
            }
        }
        out
    }

    fn emit(&mut self, event: Event, out: &mut Vec<Event>) {
        if matches!(&event, Event::Content(text) | Event::Reasoning(text) if text.is_empty()) {
            return;
        }
        self.reply.add(&event);
        out.push(event);
    }
}
