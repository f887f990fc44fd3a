//! From token ids to a reply: detokenizer, reply parser and stop strings in one stream of events.

use crate::{
    Detokenizer, Event, Message, ReplyParser, Result, Role, StopScanner, Tokenizer, ToolCall,
};
use serde_json::{Map, Value};

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

/// A whole reply, gathered from its events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The thinking.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Calls, without ids.
    pub tool_calls: Vec<ToolCall>,
    /// Whether the reply ended inside of the last call, see [`Event::ToolCallEnd`].
    pub is_call_open: bool,
}

impl Reply {
    /// Adds what an event says.
    pub fn add(&mut self, event: &Event) {
        match event {
            Event::Reasoning(text) => self.reasoning.push_str(text),
            Event::Content(text) => self.content.push_str(text),
            Event::ToolCallStart { name, .. } => {
                let arguments = Map::new();
                self.tool_calls.push(ToolCall { id: None, name: name.clone(), arguments });
                self.is_call_open = true;
            }
            Event::ToolCallArguments { .. } => {}
            Event::ToolCallEnd { index, arguments, closed } => {
                self.is_call_open = !closed;
                if let Some(call) = self.tool_calls.get_mut(*index) {
                    call.arguments = arguments.clone();
                }
            }
        }
    }

    /// Takes out the call inside of which the reply ended, if it did. Where tokens ran out it must not be run: what it
    /// lacks cannot be known. Its number is that of the last event.
    pub fn take_open_call(&mut self) -> Option<ToolCall> {
        std::mem::take(&mut self.is_call_open).then(|| self.tool_calls.pop()).flatten()
    }

    /// The reply as a message for the next request.
    pub fn into_message(self) -> Message {
        Message {
            reasoning_content: Some(self.reasoning).filter(|text| !text.is_empty()),
            tool_calls: self.tool_calls,
            ..Message::new(Role::Assistant, self.content)
        }
    }
}

/// Assembles one reply from its ids, which come one by one and end before the end-of-turn token.
///
/// Stop strings count in the answer only: one that occurs in thinking or inside of a call does not end the
/// reply. Each event is given out once, and is also added to the whole
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
                Event::Content(text) if !self.reply.is_call_open => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn tokenizer() -> Tokenizer {
        Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo")).unwrap()
    }

    /// All events of a reply that is given as text with control tokens in it, and its end.
    fn assemble(form: ReplyForm<'_>, stops: &[&str], text: &str) -> (Vec<Event>, FinishedReply) {
        let tokenizer = tokenizer();
        let mut assembler = ReplyAssembler::new(&tokenizer, form, stops).unwrap();
        let mut events = Vec::new();
        for id in tokenizer.encode_raw(text).unwrap() {
            events.extend(assembler.push(id));
        }
        let finished = assembler.finish();
        events.extend(finished.events.iter().cloned());
        (events, finished)
    }

    fn content(events: &[Event]) -> String {
        let text = |event: &Event| match event {
            Event::Content(text) => text.clone(),
            _ => String::new(),
        };
        events.iter().map(text).collect()
    }

    const THINKING: ReplyForm<'_> = ReplyForm::Chat { thinking: true, tools: &[] };

    #[test]
    fn thinking_and_answer_come_apart_and_are_counted() {
        let (events, finished) = assemble(THINKING, &[], "12 and 30\n</think>\n\nIt is 42 🙂.");
        assert_eq!(finished.reply.reasoning, "12 and 30");
        assert_eq!(finished.reply.content, "It is 42 🙂.");
        assert_eq!(content(&events), finished.reply.content);
        let thinking = tokenizer().encode_raw("12 and 30\n</think>").unwrap().len();
        assert_eq!(finished.reasoning_tokens, thinking);
        assert_eq!(finished.stopped, None);

        let form = ReplyForm::Chat { thinking: false, tools: &[] };
        let (_, finished) = assemble(form, &[], "It is 42.");
        assert_eq!((finished.reply.content.as_str(), finished.reasoning_tokens), ("It is 42.", 0));
    }

    #[test]
    fn stop_strings_count_in_the_answer_only() {
        let text = "stop here\n</think>\n\nWe stop here, and no further.";
        let (events, finished) = assemble(THINKING, &["zebra", " here,"], text);
        assert_eq!(finished.reply.reasoning, "stop here");
        assert_eq!(finished.reply.content, "We stop");
        assert_eq!((finished.stopped, content(&events).as_str()), (Some(1), "We stop"));
        // What looked like a beginning comes out at the end.
        let (events, finished) = assemble(ReplyForm::Raw, &["further!"], "no further");
        assert_eq!(finished.stopped, None);
        assert_eq!(content(&events), "no further");
    }

    #[test]
    fn calls_are_parsed_and_what_stood_before_them_is_not_lost() {
        let tools = [json!({"type": "function", "function": {"name": "add", "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}}}}})];
        let form = ReplyForm::Chat { thinking: false, tools: &tools };
        let call = "<tool_call>\n<function=add>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>";
        let (events, finished) = assemble(form, &["wait!"], &format!("Let me wait\n\n{call}"));
        assert_eq!(content(&events), "Let me wait");
        assert_eq!(finished.reply.content, "Let me wait");
        assert_eq!(finished.reply.tool_calls[0].name, "add");
        assert_eq!(finished.reply.tool_calls[0].arguments["a"], 7);
    }

    #[test]
    fn a_raw_reply_is_all_content() {
        let (_, finished) = assemble(ReplyForm::Raw, &[], "a </think> b");
        assert_eq!(finished.reply.content, "a </think> b");
    }

    #[test]
    fn stop_strings_out_of_bounds_are_refused() {
        assert!(ReplyAssembler::new(&tokenizer(), ReplyForm::Raw, &[""]).is_err());
    }
}
