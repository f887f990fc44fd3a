//! One of the replies to a prompt: tokens in, what a client is told out.

use super::content_logprobs::{ContentLogprob, ContentLogprobs};
use calla_engine::{FinishReason, Usage};
use calla_ops::sample::TokenLogprobs;
use calla_text::{Event, FinishedReply, Reply, ReplyAssembler, Tokenizer};
use uuid::Uuid;

/// What a call begins with.
const CALL_MARKER: &str = "<tool_call>";

/// Why a reply ended, as clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is complete.
    Stop,
    /// This stop string came.
    StopString(String),
    /// `max_tokens`, or the context is full.
    Length,
    /// It calls tools.
    ToolCalls,
}

/// What a piece of a reply adds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Delta {
    /// More thinking.
    Reasoning(String),
    /// More of the answer, and the tokens that it completes if log-probabilities were asked for.
    Content(String, Vec<ContentLogprob>),
    /// A call begins.
    CallStart { index: usize, id: String, name: String },
    /// More of the JSON of its arguments.
    CallArguments { index: usize, json: String },
    /// The call is over. Where tokens ran out inside of it, it is not `complete` and must not be run.
    CallEnd { index: usize, complete: bool },
}

/// A reply that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    /// All of it, but for a call inside of which tokens ran out: that must not be run.
    pub(crate) reply: Reply,
    /// Ids of its calls, as in [`Delta::CallStart`]; of all that began.
    pub(crate) call_ids: Vec<String>,
    pub(crate) logprobs: Option<Vec<ContentLogprob>>,
    pub(crate) usage: Usage,
    pub(crate) reasoning_tokens: usize,
}

/// A reply under way.
pub(crate) struct Choice {
    assembler: ReplyAssembler,
    logprobs: Option<ContentLogprobs>,
    /// All that were given out.
    given: Vec<ContentLogprob>,
    call_ids: Vec<String>,
    one_call: bool,
    /// Tokens that it is made of.
    tokens: usize,
    /// Set once a stop string or the one call has ended it before the engine did.
    is_complete: bool,
}

impl Choice {
    pub(crate) fn new(assembler: ReplyAssembler, one_call: bool, wants_logprobs: bool) -> Self {
        Self {
            assembler,
            logprobs: wants_logprobs.then(ContentLogprobs::default),
            given: vec![],
            call_ids: vec![],
            one_call,
            tokens: 0,
            is_complete: false,
        }
    }

    /// Takes a token. Nothing is added once the reply is complete.
    pub(crate) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        logprobs: Option<TokenLogprobs>,
    ) -> Vec<Delta> {
        if self.is_complete {
            return vec![];
        }
        self.tokens += 1;
        if let Some(list) = &mut self.logprobs {
            list.push(tokenizer, id, logprobs);
        }
        let events = self.assembler.push(id);
        let deltas = self.deltas(events);
        self.is_complete |= self.assembler.stopped().is_some();
        deltas
    }

    /// Whether nothing more is wanted of the engine.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The end: what had been held back, and the whole.
    pub(crate) fn finish(
        mut self,
        reason: FinishReason,
        mut usage: Usage,
        stops: &[String],
    ) -> (Vec<Delta>, Ended) {
        // What the engine made behind its end, until it heard of that, nobody asked for.
        if self.is_complete {
            usage.completion_tokens = self.tokens;
        }
        let call_complete = self.one_call && self.is_complete;
        let FinishedReply { events, mut reply, stopped, reasoning_tokens, .. } =
            self.assembler.clone().finish();
        // What follows the one call is not wanted.
        let mut deltas = if call_complete { vec![] } else { self.deltas(events) };
        if let Some(last) = self.logprobs.as_mut().and_then(ContentLogprobs::finish) {
            self.given.push(last.clone());
            match deltas.iter_mut().rev().find(|delta| matches!(delta, Delta::Content(..))) {
                Some(Delta::Content(_, logprobs)) => logprobs.push(last),
                _ => deltas.push(Delta::Content(String::new(), vec![last])),
            }
        }
        let end = match (stopped, reason) {
            (Some(index), _) => End::StopString(stops.get(index).cloned().unwrap_or_default()),
            _ if !self.is_complete
                && matches!(reason, FinishReason::Length | FinishReason::ContextFull) =>
            {
                End::Length
            }
            _ if reply.tool_calls.is_empty() => End::Stop,
            _ => End::ToolCalls,
        };
        // A model that ended its turn has only forgotten to close its call.
        if end == End::Length {
            if reply.take_open_call().is_some() {
                // What would close its arguments: cut ones must not read as whole.
                deltas.retain(|delta| !matches!(delta, Delta::CallArguments { .. }));
            }
            leave_out_begun_call(&mut deltas, &mut reply);
        } else {
            for delta in &mut deltas {
                if let Delta::CallEnd { complete, .. } = delta {
                    *complete = true;
                }
            }
        }
        let logprobs = self.logprobs.is_some().then_some(self.given);
        let call_ids = self.call_ids;
        (deltas, Ended { end, reply, call_ids, logprobs, usage, reasoning_tokens })
    }

    fn deltas(&mut self, events: Vec<Event>) -> Vec<Delta> {
        let mut deltas = Vec::with_capacity(events.len());
        for event in events {
            if let (Some(list), false) = (&mut self.logprobs, matches!(event, Event::Content(_))) {
                list.other();
            }
            deltas.push(match event {
                Event::Reasoning(text) => Delta::Reasoning(text),
                Event::Content(text) => {
                    let logprobs = self.logprobs.as_mut().map(|list| list.content(&text));
                    let logprobs = logprobs.unwrap_or_default();
                    self.given.extend_from_slice(&logprobs);
                    Delta::Content(text, logprobs)
                }
                Event::ToolCallStart { index, name } => {
                    let id = format!("call_{}", Uuid::new_v4().simple());
                    self.call_ids.push(id.clone());
                    Delta::CallStart { index, id, name }
                }
                Event::ToolCallArguments { index, json } => Delta::CallArguments { index, json },
                Event::ToolCallEnd { index, closed, .. } => {
                    deltas.push(Delta::CallEnd { index, complete: closed });
                    if self.one_call {
                        self.is_complete = true;
                        return deltas;
                    }
                    continue;
                }
            });
        }
        deltas
    }
}

/// Tokens ran out before a call had its function's name: its marker had been held back and is no answer.
fn leave_out_begun_call(deltas: &mut Vec<Delta>, reply: &mut Reply) {
    for delta in &mut *deltas {
        if let Delta::Content(text, _) = delta
            && let Some(at) = text.rfind(CALL_MARKER)
        {
            let begun = text.split_off(at);
            if reply.content.ends_with(&begun) {
                reply.content.truncate(reply.content.len() - begun.len());
            }
        }
    }
    deltas.retain(
        |delta| !matches!(delta, Delta::Content(text, list) if text.is_empty() && list.is_empty()),
    );
}
