//! Takes a streamed reply apart into thinking, content and tool calls.
//!
//! The family writes calls as
//! `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>`,
//! after optional content, and thinking up to `</think>`. Models slip, so the parser bends:
//!
//! * A call inside thinking ends the thinking. `<tool_call>` counts only before `<function=NAME>`:
//!   the mere words stay text.
//! * A missing `<tool_call>` is forgiven where NAME is a function on offer (in thinking, at the start
//!   of a line only). With `<tool_call>` any NAME is a call: whether it exists is for the caller.
//! * `</parameter>` ends a value only if white space and then a tag that may follow it come next (or
//!   nothing): a value may speak of these tags. Likewise `</function>` and `</tool_call>` for a value
//!   that was never closed, and `<parameter=KEY>` at the start of a line for a KEY that fits.
//! * In a string of JSON, where the schema has a list or an object, no tag ends the value, if that JSON comes to
//!   its end. If it does not (it is broken, or the reply ends), the text from the first such tag on is read
//!   again by the other rules, and this one is left out for the rest of the reply: at most once, so that a
//!   broken value neither swallows what follows it nor costs more than a second look.
//! * Whatever ends, ends what is open in it. The end of the reply ends everything; a call that it ends is marked.
//!
//! Nothing is lost: text inside a call but outside its parameters is content, and so is a second
//! parameter of the same name, tags included.
//!
//! White space that the template puts around things is taken away and no more: a line feed before
//! `</think>` and two after it, two before `<tool_call>`, one at each end of a value. White space alone
//! before or after a call is not content.

use serde_json::{Map, Value};

use crate::json_scan::JsonScan;
use crate::lexer::{Lexeme, Lexer, Tag};
use crate::schema::{Kinds, Tools, escaped};

/// What a piece of the reply adds.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// More thinking.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A call begins.
    ToolCallStart {
        /// Number of the call, from 0.
        index: usize,
        /// Name of the function; not checked against the functions on offer.
        name: String,
    },
    /// More of the arguments' JSON. All pieces of a call, joined, are the compact JSON of the map that
    /// [`Event::ToolCallEnd`] carries. Strings stream; other values come whole.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// The piece.
        json: String,
    },
    /// A call has ended.
    ToolCallEnd {
        /// Number of the call.
        index: usize,
        /// Its arguments, typed by the function's schema, in the order written.
        arguments: Map<String, Value>,
        /// Whether the call was closed. If not, the reply ended inside of it, and so it comes last: where tokens
        /// ran out, arguments are missing or cut off; where the model ended its turn, it forgot to close it.
        closed: bool,
    },
}

/// A streaming parser for one reply. How the reply is cut into pieces does not change the events, but
/// for where texts are cut; the work is linear in the reply's length.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    lexer: Lexer,
    parser: Parser,
}

impl ReplyParser {
    /// `tools` are the tool descriptions of the request: their schemas type the arguments. `thinking`
    /// says whether the prompt ended inside `<think>`
    /// ([`Rendered::thinking`](crate::Rendered::thinking)).
    pub fn new(tools: &[Value], thinking: bool) -> ReplyParser {
        let section = if thinking { Section::Thinking } else { Section::Content };
        let parser = Parser {
            tools: Tools::new(tools),
            section,
            state: State::Text,
            newlines: 0,
            strip: 0,
            fresh: true,
            lead: String::new(),
            thinking_cut: false,
            block_open: false,
            calls: 0,
            follows_json: true,
            events: Vec::new(),
            #[cfg(test)]
            work: 0,
        };
        ReplyParser { lexer: Lexer::default(), parser }
    }

    /// Takes the next piece of the reply.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        let ReplyParser { lexer, parser } = self;
        lexer.push(piece, |lexeme| parser.take(lexeme));
        std::mem::take(&mut parser.events)
    }

    /// The end of the reply: gives out what was held back and closes what is open.
    pub fn finish(mut self) -> Vec<Event> {
        let ReplyParser { lexer, parser } = &mut self;
        // Where a tag of the call has to come, the beginning of one is neither content nor value.
        let expects_tag = match &parser.state {
            State::Call(call) => !call.stray,
            State::ValueClose { .. } => true,
            State::Text => parser.block_open,
            _ => false,
        };
        if !expects_tag {
            lexer.finish(|lexeme| parser.take(lexeme));
        }
        parser.finish();
        std::mem::take(&mut parser.events)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Thinking,
    Content,
}

#[derive(Debug, Clone)]
enum State {
    /// In the section's text.
    Text,
    /// After `<tool_call>`, which with the white space behind it is held until a function follows.
    CallOpen { held: String },
    /// In a call, outside of its parameters.
    Call(Call),
    /// In a parameter's value.
    Value(Call, Parameter),
    /// After a tag in a value that may be its end; held with the white space behind it.
    ValueClose { call: Call, parameter: Parameter, tag: Tag, held: String },
}

#[derive(Debug, Clone)]
struct Call {
    index: usize,
    name: String,
    arguments: Map<String, Value>,
    /// Whether text outside of parameters is running since the last tag.
    stray: bool,
}

#[derive(Debug, Clone)]
struct Parameter {
    key: String,
    kinds: Kinds,
    text: String,
    /// A line feed that belongs to the value unless the value ends here.
    newline: bool,
    /// Nothing has come yet, not even the line feed behind the opening tag.
    fresh: bool,
    json: JsonScan,
    /// Where in `text` the first tag lies that would have ended the value, had it not been in a string of JSON.
    passed: Option<usize>,
}

impl Parameter {
    fn at_line_start(&self) -> bool {
        self.newline || self.text.is_empty()
    }

    /// Whether a tag was passed over, and the value, which ends here, is no JSON after all.
    fn is_misread(&self) -> bool {
        self.passed.is_some() && serde_json::from_str::<Value>(&self.text).is_err()
    }
}

/// Line feeds that the template writes before `<tool_call>`; as many are held back.
const NEWLINES_BEFORE_CALL: usize = 2;
const NEWLINES_AFTER_THINKING: usize = 2;

#[derive(Debug, Clone)]
struct Parser {
    tools: Tools,
    section: Section,
    state: State,
    /// Line feeds at the end of the section's text so far, held back.
    newlines: usize,
    /// Line feeds still to be taken away at the start of the section.
    strip: usize,
    /// The section has given out nothing yet.
    fresh: bool,
    /// White space held at the start of content: it may stand before a call, or be all there is.
    lead: String,
    /// A call ended the thinking, whose `</think>` may still come.
    thinking_cut: bool,
    /// The last call's `</tool_call>` has not come yet.
    block_open: bool,
    calls: usize,
    /// Whether tags in strings of JSON are passed over.
    follows_json: bool,
    events: Vec<Event>,
    /// Bytes looked at or copied, for the test that this is linear.
    #[cfg(test)]
    work: usize,
}

impl Parser {
    fn count(&mut self, _bytes: usize) {
        #[cfg(test)]
        {
            self.work += _bytes;
        }
    }

    fn take(&mut self, lexeme: Lexeme<'_>) {
        match lexeme {
            Lexeme::Text(text) => self.text(text),
            Lexeme::Tag(tag, raw) => self.tag(tag, raw),
        }
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        let white = text.chars().all(char::is_whitespace);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.section_text(text),
            State::CallOpen { mut held } if white => {
                held.push_str(text);
                self.state = State::CallOpen { held };
            }
            State::CallOpen { held } => {
                self.section_text(&held);
                self.section_text(text);
            }
            State::Call(call) => self.call_text(call, text),
            State::Value(call, parameter) => self.value_text(call, parameter, text),
            State::ValueClose { call, parameter, tag, mut held } if white => {
                held.push_str(text);
                self.state = State::ValueClose { call, parameter, tag, held };
            }
            State::ValueClose { call, parameter, held, .. } => {
                self.value_text(call, parameter, &held);
                self.text(text);
            }
        }
    }

    fn tag(&mut self, tag: Tag, raw: &str) {
        self.count(raw.len());
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.section_tag(tag, raw),
            State::CallOpen { held } => match tag {
                Tag::Function(name) => self.start_call(name),
                tag => {
                    self.section_text(&held);
                    self.section_tag(tag, raw);
                }
            },
            State::Call(call) => self.call_tag(call, tag, raw),
            State::Value(call, parameter) => self.value_tag(call, parameter, tag, raw),
            State::ValueClose { call, parameter, tag: close, held } => {
                let mut parameter = parameter;
                if !self.may_follow(&call, &parameter, &close, &tag) {
                    self.value_text(call, parameter, &held);
                } else if parameter.json.takes_into_string(&held) {
                    parameter.passed.get_or_insert(parameter.text.len());
                    self.value_text(call, parameter, &held);
                } else if parameter.is_misread() {
                    self.read_again(call, parameter, &held);
                } else {
                    self.close_value(call, parameter, close);
                }
                self.tag(tag, raw);
            }
        }
    }

    fn finish(&mut self) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => {}
            State::CallOpen { held } => self.section_text(&held),
            State::Call(call) => self.end_call(call, false),
            State::Value(call, parameter) if parameter.is_misread() => {
                self.read_again(call, parameter, "");
                return self.finish();
            }
            State::ValueClose { call, parameter, held, .. } if parameter.is_misread() => {
                self.read_again(call, parameter, &held);
                return self.finish();
            }
            State::Value(call, parameter) => {
                let call = self.end_value(call, parameter);
                self.end_call(call, false);
            }
            State::ValueClose { call, parameter, tag, .. } => {
                self.close_value(call, parameter, tag);
                return self.finish();
            }
        }
        self.give_newlines(0);
        if self.calls == 0 {
            let lead = std::mem::take(&mut self.lead);
            self.give(&lead);
        }
    }

    // --- Thinking and content.

    fn section_text(&mut self, text: &str) {
        let mut text = text;
        while self.strip > 0 && !text.is_empty() {
            match text.strip_prefix('\n') {
                Some(rest) => (text, self.strip) = (rest, self.strip - 1),
                None => self.strip = 0,
            }
        }
        if self.section == Section::Content && self.fresh {
            let rest = text.trim_start();
            self.lead.push_str(&text[..text.len() - rest.len()]);
            if rest.is_empty() {
                return;
            }
            self.fresh = false;
            self.block_open = false;
            let lead = std::mem::take(&mut self.lead);
            self.give_but_newlines(&lead);
            text = rest;
        }
        self.give_but_newlines(text);
    }

    fn section_tag(&mut self, tag: Tag, raw: &str) {
        let line_start = self.newlines > 0 || self.fresh;
        match (self.section, tag) {
            (_, Tag::ToolCall) => self.state = State::CallOpen { held: raw.to_owned() },
            (Section::Thinking, Tag::CloseThink) => {
                self.give_newlines(1);
                self.start_section(Section::Content, NEWLINES_AFTER_THINKING);
            }
            (Section::Content, Tag::CloseThink) if self.thinking_cut => {
                self.thinking_cut = false;
                self.give_newlines(1);
                self.start_section(Section::Content, NEWLINES_AFTER_THINKING);
            }
            (_, Tag::Think) if self.fresh => self.start_section(Section::Thinking, 1),
            (Section::Content, Tag::CloseToolCall) if self.block_open => {
                self.block_open = false;
                self.lead.clear();
            }
            (Section::Content, Tag::Function(name))
                if self.block_open || self.tools.knows(&name) =>
            {
                self.start_call(name);
            }
            (Section::Thinking, Tag::Function(name)) if line_start && self.tools.knows(&name) => {
                self.start_call(name);
            }
            _ => self.section_text(raw),
        }
    }

    fn start_section(&mut self, section: Section, strip: usize) {
        self.section = section;
        self.newlines = 0;
        self.strip = strip;
        self.fresh = true;
        self.block_open = false;
        self.lead.clear();
    }

    /// Gives text out, all but the line feeds at its end that may stand before a tag.
    fn give_but_newlines(&mut self, text: &str) {
        let body = text.trim_end_matches('\n');
        let trailing = text.len() - body.len();
        if body.is_empty() {
            let all = self.newlines + trailing;
            self.newlines = all.min(NEWLINES_BEFORE_CALL);
            self.give(&"\n".repeat(all - self.newlines));
        } else {
            self.give_newlines(0);
            self.newlines = trailing.min(NEWLINES_BEFORE_CALL);
            self.give(&text[..text.len() - self.newlines]);
        }
    }

    /// Gives out the held line feeds, but for the last `drop` of them.
    fn give_newlines(&mut self, drop: usize) {
        let newlines = std::mem::take(&mut self.newlines).saturating_sub(drop);
        self.give(&"\n\n"[..newlines]);
    }

    fn give(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        self.count(text.len());
        match (self.section, self.events.last_mut()) {
            (Section::Thinking, Some(Event::Reasoning(last)))
            | (Section::Content, Some(Event::Content(last))) => last.push_str(text),
            (Section::Thinking, _) => self.events.push(Event::Reasoning(text.to_owned())),
            (Section::Content, _) => self.events.push(Event::Content(text.to_owned())),
        }
    }

    // --- Calls.

    fn start_call(&mut self, name: String) {
        self.give_newlines(NEWLINES_BEFORE_CALL);
        self.thinking_cut |= self.section == Section::Thinking;
        self.start_section(Section::Content, 0);
        // Even where `<tool_call>` is missing, `</tool_call>` will come.
        self.block_open = true;
        let index = self.calls;
        self.calls += 1;
        self.events.push(Event::ToolCallStart { index, name: name.clone() });
        self.state = State::Call(Call { index, name, arguments: Map::new(), stray: false });
    }

    fn end_call(&mut self, call: Call, closed: bool) {
        let close = if call.arguments.is_empty() { "{}" } else { "}" };
        self.give_json(call.index, close);
        let Call { index, arguments, .. } = call;
        self.events.push(Event::ToolCallEnd { index, arguments, closed });
        let block_open = self.block_open;
        self.start_section(Section::Content, 0);
        self.block_open = block_open;
    }

    fn call_text(&mut self, mut call: Call, text: &str) {
        let text = if call.stray { text } else { text.trim_start() };
        call.stray |= !text.is_empty();
        self.give(text);
        self.state = State::Call(call);
    }

    fn call_tag(&mut self, mut call: Call, tag: Tag, raw: &str) {
        match tag {
            Tag::Parameter(key) if !call.arguments.contains_key(&key) => {
                call.stray = false;
                let kinds = self.tools.kinds(&call.name, &key);
                if kinds.only_string() {
                    let open = self.key_json(&call, &key) + "\"";
                    self.give_json(call.index, &open);
                }
                let follows_json = self.follows_json && kinds.may_be_container();
                let parameter = Parameter {
                    key,
                    kinds,
                    text: String::new(),
                    newline: false,
                    fresh: true,
                    json: if follows_json { JsonScan::Start } else { JsonScan::Over },
                    passed: None,
                };
                self.state = State::Value(call, parameter);
            }
            Tag::CloseFunction => self.end_call(call, true),
            Tag::CloseToolCall => {
                self.block_open = false;
                self.end_call(call, true);
            }
            Tag::ToolCall => {
                self.block_open = false;
                self.end_call(call, true);
                self.section_tag(Tag::ToolCall, raw);
            }
            Tag::Function(name) if self.block_open || self.tools.knows(&name) => {
                self.end_call(call, true);
                self.start_call(name);
            }
            Tag::CloseThink if self.thinking_cut => {
                self.thinking_cut = false;
                self.state = State::Call(call);
            }
            _ => {
                call.stray = true;
                self.give(raw);
                self.state = State::Call(call);
            }
        }
    }

    fn value_text(&mut self, call: Call, mut parameter: Parameter, text: &str) {
        parameter.json.push(text);
        let mut text = text;
        if parameter.fresh && !text.is_empty() {
            parameter.fresh = false;
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if !text.is_empty() {
            if parameter.newline {
                self.give_value(call.index, &mut parameter, "\n");
            }
            let body = text.strip_suffix('\n');
            parameter.newline = body.is_some();
            self.give_value(call.index, &mut parameter, body.unwrap_or(text));
        }
        self.state = State::Value(call, parameter);
    }

    fn value_tag(&mut self, call: Call, parameter: Parameter, tag: Tag, raw: &str) {
        match tag {
            Tag::CloseParameter | Tag::CloseFunction | Tag::CloseToolCall => {
                self.state = State::ValueClose { call, parameter, tag, held: raw.to_owned() };
            }
            Tag::ToolCall if parameter.at_line_start() => {
                self.state = State::ValueClose { call, parameter, tag, held: raw.to_owned() };
            }
            Tag::Parameter(key)
                if parameter.at_line_start()
                    && is_new_key(&call, &parameter, &key)
                    && self
                        .tools
                        .has_parameter(&call.name, &key)
                        .unwrap_or(is_identifier(&key)) =>
            {
                if parameter.is_misread() {
                    self.read_again(call, parameter, "");
                    return self.tag(Tag::Parameter(key), raw);
                }
                let call = self.end_value(call, parameter);
                self.call_tag(call, Tag::Parameter(key), raw);
            }
            _ => self.value_text(call, parameter, raw),
        }
    }

    /// Whether `close`, seen in a value, ends it when `next` is the tag behind it.
    fn may_follow(&self, call: &Call, parameter: &Parameter, close: &Tag, next: &Tag) -> bool {
        match (close, next) {
            (Tag::CloseParameter, Tag::Parameter(key)) => is_new_key(call, parameter, key),
            (Tag::CloseParameter, Tag::CloseFunction) => true,
            (Tag::CloseParameter | Tag::CloseFunction, Tag::CloseToolCall | Tag::ToolCall) => true,
            (Tag::CloseParameter | Tag::CloseFunction, Tag::Function(name)) => {
                self.block_open || self.tools.knows(name)
            }
            (Tag::CloseToolCall, Tag::ToolCall) => true,
            (Tag::ToolCall, Tag::Function(name)) => self.tools.knows(name),
            _ => false,
        }
    }

    /// Takes a value back to the first tag that was passed over, and all text from there once more, without passing
    /// over anything from now on. `held` is what came behind the value's text.
    fn read_again(&mut self, call: Call, mut parameter: Parameter, held: &str) {
        self.follows_json = false;
        parameter.json = JsonScan::Over;
        let mut rest = parameter.text.split_off(parameter.passed.take().unwrap_or_default());
        if std::mem::take(&mut parameter.newline) {
            rest.push('\n');
        }
        rest.push_str(held);
        self.state = State::Value(call, parameter);
        let mut lexer = Lexer::default();
        lexer.push(&rest, |lexeme| self.take(lexeme));
        lexer.finish(|lexeme| self.take(lexeme));
    }

    /// Ends a value, and what `close` ends beside it.
    fn close_value(&mut self, call: Call, parameter: Parameter, close: Tag) {
        let call = self.end_value(call, parameter);
        match close {
            Tag::CloseParameter => self.state = State::Call(call),
            Tag::ToolCall => self.call_tag(call, Tag::ToolCall, "<tool_call>"),
            close => self.call_tag(call, close, ""),
        }
    }

    fn end_value(&mut self, mut call: Call, parameter: Parameter) -> Call {
        let Parameter { key, kinds, text, .. } = parameter;
        let value = if kinds.only_string() {
            self.give_json(call.index, "\"");
            Value::String(text)
        } else {
            let value = kinds.value(&text);
            let json = self.key_json(&call, &key) + &value.to_string();
            self.give_json(call.index, &json);
            value
        };
        call.arguments.insert(key, value);
        call
    }

    fn key_json(&self, call: &Call, key: &str) -> String {
        let before = if call.arguments.is_empty() { '{' } else { ',' };
        format!("{before}\"{}\":", escaped(key))
    }

    fn give_value(&mut self, index: usize, parameter: &mut Parameter, text: &str) {
        parameter.text.push_str(text);
        self.count(text.len());
        if parameter.kinds.only_string() {
            self.give_json(index, &escaped(text));
        }
    }

    fn give_json(&mut self, index: usize, more: &str) {
        self.count(more.len());
        match self.events.last_mut() {
            Some(Event::ToolCallArguments { json, .. }) => json.push_str(more),
            _ if more.is_empty() => {}
            _ => self.events.push(Event::ToolCallArguments { index, json: more.to_owned() }),
        }
    }
}

fn is_new_key(call: &Call, parameter: &Parameter, key: &str) -> bool {
    key != parameter.key && !call.arguments.contains_key(key)
}

fn is_identifier(key: &str) -> bool {
    key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

#[cfg(test)]
mod tests;
