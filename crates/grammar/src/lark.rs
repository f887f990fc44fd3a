//! Checks a Lark grammar before it is compiled, and closes the JSON schemas in it.
//!
//! The library follows schemas in `%json` without a bound, so each is found and rewritten like one that is a
//! request's whole grammar. What is a quoted text, an expression or a comment is told apart as the library
//! does it; where the two could disagree, the grammar is refused.

use crate::GrammarError;
use crate::compiler::{TEXT_BYTES_MAX, bound};
use crate::json_schema;
use serde_json::Value;

/// Lines of a grammar; a rule takes one, and rules may nest as deeply as there are rules.
const LINES_MAX: usize = 10_000;
/// Opening brackets and negations of all rules, quoted ones too, those of schemas not: each deepens the
/// recursion over a chain of rules.
const NESTING_MAX: usize = 20_000;
const JSON: &str = "%json";

/// The grammar with its schemas rewritten to stand alone.
///
/// `barred` tells the added tokens, written `<NAME>`, that no reply may hold.
pub(crate) fn close(text: &str, barred: impl Fn(&str) -> bool) -> Result<String, GrammarError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    bound("the grammar's size in bytes", text.len(), TEXT_BYTES_MAX)?;
    bound("the grammar's number of lines", text.lines().count(), LINES_MAX)?;
    let mut closed = String::with_capacity(text.len());
    let mut nesting = 0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = if let Some(after) = rest.strip_prefix(JSON) {
            let (schema, length) = json_prefix(after)
                .ok_or_else(|| refused("%json is not followed by a JSON schema"))?;
            let schema = json_schema::close(&schema, &schema)?;
            closed.push_str(&format!("{JSON} {schema}"));
            rest = &after[length..];
            continue;
        } else if let Some(after) = rest.strip_prefix("%llguidance") {
            let (options, length) =
                json_prefix(after).ok_or_else(|| refused("%llguidance is not followed by JSON"))?;
            if options.get("allow_invalid_utf8").is_some_and(|value| *value != Value::Bool(false)) {
                return Err(refused("replies are UTF-8: remove allow_invalid_utf8"));
            }
            rest.len() - after.len() + length
        } else if let Some(after) = rest.strip_prefix("%regex") {
            let length = json_prefix(after).map_or(0, |(_, length)| length);
            rest.len() - after.len() + length
        } else {
            opaque(rest).unwrap_or(first.len_utf8())
        };
        let (piece, after) = rest.split_at(taken);
        if piece.starts_with('<') && barred(piece) {
            return Err(GrammarError::BarredToken(piece.into()));
        }
        for (at, _) in piece.match_indices(JSON) {
            if json_prefix(&rest[at + JSON.len()..]).is_some() {
                return Err(refused(
                    "%json with a schema inside of a quoted text, an expression or a comment; \
                     write its percent sign as \\u0025",
                ));
            }
        }
        nesting += piece.bytes().filter(|byte| b"([{~".contains(byte)).count();
        bound("the grammar's number of opening brackets and `~`", nesting, NESTING_MAX)?;
        closed.push_str(piece);
        rest = after;
    }
    Ok(closed)
}

/// Bytes of the quoted text, the expression, the comment or the special token at the start of `rest`.
fn opaque(rest: &str) -> Option<usize> {
    let end_of_line = || rest.find('\n').unwrap_or(rest.len());
    match rest.as_bytes() {
        [b'#', ..] | [b'/', b'/', ..] => Some(end_of_line()),
        [quote @ (b'"' | b'/'), ..] => {
            let mut escaped = false;
            let end = rest.bytes().enumerate().skip(1).find(|&(_, byte)| {
                let ends = !escaped && (byte == *quote || (byte == b'\n' && *quote == b'"'));
                escaped = !escaped && byte == b'\\';
                ends
            });
            Some(end.map_or(rest.len(), |(at, _)| at + 1))
        }
        [b'<', ..] => {
            let end = 1 + rest[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace())?;
            (end > 1 && rest.as_bytes()[end] == b'>').then_some(end + 1)
        }
        _ => None,
    }
}

/// The JSON value at the start of a text, and its bytes.
fn json_prefix(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, values.byte_offset()))
}

fn refused(words: &str) -> GrammarError {
    GrammarError::Refused(words.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_closed_wherever_they_stand() {
        for text in [
            "start: %json {\"type\": \"integer\", \"title\": \"x\"}",
            "start: \"a\\\"\" %json{\"type\": \"integer\"} /[\"]\\//",
            "# \"\nstart: <tool_call> %json\n{\"type\":\n\"integer\"}\na: \"b\"",
            "start: \"\n%json {\"type\": \"integer\"}",
        ] {
            let closed = close(text, |_| false).unwrap();
            assert_eq!(closed.matches("x-guidance").count(), 1, "{closed}");
            assert!(!closed.contains("title"), "{closed}");
            assert_eq!(close(&closed, |_| false), Ok(closed.clone()));
        }
    }

    #[test]
    fn other_text_is_kept() {
        for text in [
            "start: \"100%json\" /a%jsonb/ // %json\n",
            "start: <%json> \"é\" A~2..3\nA: %regex {\"pattern\": \"%\"}\n",
            "%llguidance {\"no_forcing\": true}\nstart: \"(\" /[^\"]/",
        ] {
            assert_eq!(close(text, |_| false).as_deref(), Ok(text));
        }
    }

    #[test]
    fn schemas_cannot_be_hidden() {
        for text in [
            "start: \"%json {}\"",
            "start: /%json {}/",
            "start: \"a\" // %json {}",
            "start: <%json{}>",
            "start: %json {",
            "start: %json {\"$ref\": \"http://a/b\"}",
            "start: %json {\"not\": {}}",
            "%llguidance {\"\\u0061llow_invalid_utf8\": true}\nstart: \"a\"",
        ] {
            assert!(close(text, |_| false).is_err(), "{text}");
        }
    }
}
