//! Marks user text before rendering, so that control tokens can be told from text that looks like them.
//!
//! A template joins its own markers and the user's text into one string; afterwards nobody can say
//! which `<|im_end|>` the template wrote. So a *mark*, one character that occurs nowhere in the
//! request, is put into user text: behind every character that begins an added token and before
//! every one that ends an added token (for the family: behind each `<` and before each `>`). No added
//! token then begins or ends in user text, however the template cuts it up or joins it. After
//! rendering, unmarked added tokens are cut out and the marks removed ([`Mark::remove`]): the text is
//! byte for byte the one that an unmarked rendering gives.
//!
//! Templates also *look* at user text (`'</think>' in content`, `content.startswith(...)`). There the
//! template's own literal has to be marked too: `template_source` does it for comparisons in the source,
//! `template` for arguments of string methods.
//!
//! What this cannot stop is a template that writes both ends itself around user text, such as
//! `'<' + name + '>'`, one that turns user text back to front, or one that computes the mark from numbers
//! (`'%c' | format(n)`) to take it out. Templates of the family do not; roles,
//! which some templates put between such ends, are an enum.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::{Error, Result, Tokenizer};

/// Depth to which messages, tools and variables may nest; `serde_json` parses no deeper either.
const DEPTH_MAX: usize = 128;

/// What may serve as a mark.
const CANDIDATES: [std::ops::RangeInclusive<char>; 2] =
    ['\u{fdd0}'..='\u{fdef}', '\u{e000}'..='\u{f8ff}'];

/// What there is to know of a request before marking it: its size, its depth, its odd characters.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Bytes of all strings, and a few for each value.
    pub(crate) bytes: usize,
    met: BTreeSet<char>,
}

impl Survey {
    /// Counts a text and notes which candidates it holds.
    pub(crate) fn text(&mut self, text: &str) {
        self.bytes += text.len() + 8;
        if !text.is_ascii() {
            let odd = |c: &char| CANDIDATES.iter().any(|range| range.contains(c));
            self.met.extend(text.chars().filter(odd));
        }
    }

    /// Surveys a value.
    ///
    /// # Errors
    /// [`Error::BadRequest`] if it nests too deeply.
    pub(crate) fn value(&mut self, value: &Value) -> Result<()> {
        self.value_at(value, 0)
    }

    /// Surveys a map, as [`value`](Self::value) does.
    pub(crate) fn map(&mut self, map: &Map<String, Value>) -> Result<()> {
        self.map_at(map, 0)
    }

    fn value_at(&mut self, value: &Value, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::BadRequest {
                reason: format!("a value is nested deeper than {DEPTH_MAX} levels"),
            });
        }
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                for item in items {
                    self.value_at(item, depth + 1)?;
                }
            }
            Value::Object(map) => self.map_at(map, depth)?,
            _ => {}
        }
        self.bytes += 8;
        Ok(())
    }

    fn map_at(&mut self, map: &Map<String, Value>, depth: usize) -> Result<()> {
        for (key, value) in map {
            self.text(key);
            self.value_at(value, depth + 1)?;
        }
        Ok(())
    }
}

/// A mark character and the characters that it guards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) mark: char,
    firsts: Vec<char>,
    lasts: Vec<char>,
}

impl Mark {
    /// A mark that the survey did not meet: a noncharacter or a private-use character.
    pub(crate) fn choose(tokenizer: &Tokenizer, survey: &Survey) -> Result<Mark> {
        let mut firsts = Vec::new();
        let mut lasts = Vec::new();
        for token in tokenizer.added_tokens() {
            let mut chars = token.content.chars();
            let (Some(first), Some(last)) = (chars.next(), chars.next_back()) else {
                return Err(Error::Template {
                    line: None,
                    reason: format!(
                        "the added token {:?} is one character long: it could not be told from the \
                         same character in user text",
                        token.content
                    ),
                });
            };
            firsts.push(first);
            lasts.push(last);
        }
        for set in [&mut firsts, &mut lasts] {
            set.sort_unstable();
            set.dedup();
        }
        match CANDIDATES.into_iter().flatten().find(|c| !survey.met.contains(c)) {
            Some(mark) => Ok(Mark { mark, firsts, lasts }),
            None => Err(Error::BadRequest {
                reason: "it holds every noncharacter and private-use character of the first plane"
                    .into(),
            }),
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(mark: char, firsts: &str, lasts: &str) -> Mark {
        Mark { mark, firsts: firsts.chars().collect(), lasts: lasts.chars().collect() }
    }

    /// The text with marks in it.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !text.contains(|c| self.firsts.contains(&c) || self.lasts.contains(&c)) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + text.len() / 8 + 8);
        for c in text.chars() {
            if self.lasts.contains(&c) {
                out.push(self.mark);
            }
            out.push(c);
            if self.firsts.contains(&c) {
                out.push(self.mark);
            }
        }
        Cow::Owned(out)
    }

    /// The text without marks.
    pub(crate) fn remove(&self, text: &str) -> String {
        text.replace(self.mark, "")
    }

    /// Marks every string of a value, keys included. The value has been surveyed, which bounds its depth.
    pub(crate) fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text).into_owned()),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => Value::Object(self.map(map)),
            other => other.clone(),
        }
    }

    /// Marks every string of a map, keys included.
    pub(crate) fn map(&self, map: &Map<String, Value>) -> Map<String, Value> {
        map.iter().map(|(key, value)| (self.text(key).into_owned(), self.value(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark::for_test('~', "<", ">")
    }

    #[test]
    fn marks_text_so_that_no_join_of_pieces_makes_a_token() {
        assert_eq!(mark().text("a<|im_end|>b"), "a<~|im_end|~>b");
        assert_eq!(mark().text("<><"), "<~~><~");
        assert_eq!(mark().text("plain"), "plain");
        let pieces = ["<|im", "_end|>"].map(|piece| mark().text(piece).into_owned());
        assert_eq!(pieces.concat(), "<~|im_end|~>");
        assert_eq!(mark().remove(&pieces.concat()), "<|im_end|>");
    }

    #[test]
    fn marks_keys_and_values_and_bounds_the_depth() {
        let value = serde_json::json!({"<k>": ["<v>", 1, {"a": "b"}]});
        let marked = mark().value(&value);
        assert_eq!(marked.to_string(), r#"{"<~k~>":["<~v~>",1,{"a":"b"}]}"#);
        let mut deep = Value::Null;
        for _ in 0..DEPTH_MAX + 2 {
            deep = Value::Array(vec![deep]);
        }
        assert!(matches!(Survey::default().value(&deep), Err(Error::BadRequest { .. })));
    }
}
