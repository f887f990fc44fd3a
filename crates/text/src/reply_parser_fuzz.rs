//! What must hold for any reply however it is cut into pieces: shared by the fuzz target and the tests.

use serde_json::{Value, json};

use crate::{Event, ReplyParser};

/// The tools that the checks offer: one parameter of each kind.
pub fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "i": {"type": "integer"},
                "n": {"type": ["number", "null"]},
                "b": {"type": "boolean"},
                "o": {"type": "object"},
                "a": {"anyOf": [{"type": "array"}, {"type": "string"}]},
            },
        }}}),
        json!({"type": "function", "function": {"name": "g"}}),
    ]
}

/// Events of a reply, given in these pieces, neighbours of one kind joined.
pub fn parse<'a>(pieces: impl IntoIterator<Item = &'a str>, thinking: bool) -> Vec<Event> {
    let mut parser = ReplyParser::new(&tools(), thinking);
    let mut events: Vec<Event> = Vec::new();
    for piece in pieces {
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish());
    let mut joined: Vec<Event> = Vec::new();
    for event in events {
        match (joined.last_mut(), event) {
            (Some(Event::Reasoning(last)), Event::Reasoning(more))
            | (Some(Event::Content(last)), Event::Content(more)) => last.push_str(&more),
            (
                Some(Event::ToolCallArguments { index, json }),
                Event::ToolCallArguments { index: same, json: more },
            ) if *index == same => json.push_str(&more),
            (_, event) => joined.push(event),
        }
    }
    joined
}

/// Parses bytes as a reply in several cuts and asserts what must hold. The first byte chooses whether
/// the reply begins in thinking and how it is cut.
pub fn check_bytes(bytes: &[u8]) {
    if let Some((&choice, reply)) = bytes.split_first() {
        check(&String::from_utf8_lossy(reply), choice & 1 == 1, usize::from(choice >> 1) % 31 + 1);
    }
}

/// Asserts for one reply that cuts do not matter, that every call is well formed and that no letter is
/// lost.
pub fn check(reply: &str, thinking: bool, piece_chars: usize) {
    let events = parse([reply], thinking);
    let cuts: Vec<usize> = reply.char_indices().map(|(at, _)| at).step_by(piece_chars).collect();
    let ends = cuts.iter().skip(1).copied().chain([reply.len()]);
    let pieces: Vec<&str> = cuts.iter().zip(ends).map(|(&from, to)| &reply[from..to]).collect();
    assert_eq!(parse(pieces, thinking), events, "in pieces of {piece_chars}");

    let mut open: Option<(usize, String)> = None;
    let mut calls = 0;
    let mut given = 0;
    for (number, event) in events.iter().enumerate() {
        match event {
            Event::Reasoning(text) => {
                assert!(open.is_none() && !text.is_empty());
                given += letters(text);
            }
            Event::Content(text) => {
                assert!(!text.is_empty());
                given += letters(text);
            }
            Event::ToolCallStart { index, name } => {
                assert!(open.is_none() && *index == calls && !name.is_empty());
                calls += 1;
                open = Some((*index, String::new()));
            }
            Event::ToolCallArguments { index, json } => {
                let Some((current, all)) = &mut open else { panic!("arguments outside of a call") };
                assert_eq!(current, index);
                *all += json;
            }
            Event::ToolCallEnd { index, arguments, closed } => {
                assert!(*closed || number + 1 == events.len(), "an open call is not the last");
                let Some((current, all)) = open.take() else { panic!("the end of no call") };
                assert_eq!((current, all), (*index, Value::from(arguments.clone()).to_string()));
            }
        }
    }
    assert!(open.is_none(), "a call without an end");
    // Letters that no tag uses must all be there, in texts, strings or names.
    let whole = format!("{events:?}");
    if whole.is_ascii() && reply.is_ascii() {
        let marks = |text: &str| text.bytes().filter(|b| b"QZ".contains(b)).count();
        // But for a tag in the making when the reply ended inside of a call.
        let in_call = matches!(events.last(), Some(Event::ToolCallEnd { .. }));
        let tail = reply.rfind('<').filter(|_| in_call).unwrap_or(reply.len());
        assert!(marks(&whole) >= marks(&reply[..tail]), "lost letters: {events:?}");
    }
    assert!(given <= letters(reply));
}

fn letters(text: &str) -> usize {
    text.chars().filter(|c| !c.is_whitespace()).count()
}
