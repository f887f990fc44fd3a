//! Tokens of a source with its headers inlined, each knowing the file and line that it came from.

use crate::Error;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Spaces, newlines and what is left of comments.
    Space,
    /// A preprocessor line, with its continuations, without its newline.
    Directive,
    /// A string or character literal.
    Literal,
    /// An identifier or keyword.
    Word,
    /// A number.
    Number,
    /// Any other character, or `::` or `->`.
    Punct,
}

/// A piece of text.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// Index in [`Tokens::files`].
    pub(crate) file: usize,
    /// From 1.
    pub(crate) line: u32,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text && !matches!(self.kind, Kind::Space | Kind::Directive | Kind::Literal)
    }
}

/// All tokens of a translation unit.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) list: Vec<Token>,
    pub(crate) files: Vec<String>,
}

/// Headers of Apple's compiler: the target's runtime takes their place.
fn is_system(header: &str) -> bool {
    header.starts_with("metal_") || header == "simd/simd.h"
}

impl Tokens {
    /// Reads `text`, a file called `name`, with every quoted include inlined once.
    pub(crate) fn read(name: &str, text: &str, headers: &[(&str, &str)]) -> Result<Self, Error> {
        let mut tokens = Self::default();
        tokens.read_file(name, text, headers)?;
        Ok(tokens)
    }

    fn read_file(&mut self, name: &str, text: &str, headers: &[(&str, &str)]) -> Result<(), Error> {
        let file = self.files.len();
        self.files.push(name.to_owned());
        self.set_line(file, 1);
        for token in lex(text, file) {
            if token.kind != Kind::Directive {
                self.list.push(token);
                continue;
            }
            let words = token.text.trim_start_matches([' ', '\t', '#']).trim();
            if let Some(rest) = words.strip_prefix("include") {
                let rest = rest.trim();
                let header = rest.trim_matches(['"', '<', '>']);
                if is_system(header) {
                    continue;
                }
                let found = headers.iter().find(|(known, _)| *known == header);
                let (Some((header, text)), true) = (found, rest.starts_with('"')) else {
                    return Err(self.error_at(&token, format!("there is no header {rest}")));
                };
                if self.files.iter().any(|known| known == header) {
                    continue;
                }
                if !text.contains("#pragma once") {
                    return Err(self.error_at(&token, format!("{header} has no #pragma once")));
                }
                self.read_file(header, text, headers)?;
                self.set_line(file, token.line);
            } else if words != "pragma once" {
                self.list.push(token);
            }
        }
        Ok(())
    }

    /// Says to the next compiler which line the following one is.
    fn set_line(&mut self, file: usize, line: u32) {
        let text = format!("\n#line {line} \"{}\"\n", self.files[file]);
        self.list.push(Token { kind: Kind::Directive, text, file, line });
    }

    /// An error at a token.
    pub(crate) fn error_at(&self, token: &Token, reason: impl Into<String>) -> Error {
        Error { file: self.files[token.file].clone(), line: token.line, reason: reason.into() }
    }

    /// An error at a token's index.
    pub(crate) fn error(&self, at: usize, reason: impl Into<String>) -> Error {
        let token = &self.list[at.min(self.list.len() - 1)];
        self.error_at(token, reason)
    }

    /// Whether the token at `at` means something to the parser.
    fn is_solid(&self, at: usize) -> bool {
        !matches!(self.list[at].kind, Kind::Space | Kind::Directive)
    }

    /// The next token that is not space; `len` at the end.
    pub(crate) fn next(&self, at: usize) -> usize {
        (at + 1..self.list.len()).find(|&i| self.is_solid(i)).unwrap_or(self.list.len())
    }

    /// The previous token that is not space.
    pub(crate) fn prev(&self, at: usize) -> Option<usize> {
        (0..at).rev().find(|&i| self.is_solid(i))
    }

    /// Whether the token at `at` is `text`.
    pub(crate) fn is(&self, at: usize, text: &str) -> bool {
        self.list.get(at).is_some_and(|token| token.is(text))
    }

    /// Whether the token before `at` is one of `texts`, or there is none.
    pub(crate) fn follows(&self, at: usize, texts: &[&str]) -> bool {
        self.prev(at).is_none_or(|i| texts.iter().any(|text| self.is(i, text)))
    }

    /// Whether an attribute `[[` starts at `at`.
    pub(crate) fn is_attribute(&self, at: usize) -> bool {
        self.is(at, "[") && self.is(at + 1, "[")
    }

    /// Index of the bracket that closes the one at `at`.
    pub(crate) fn close(&self, at: usize) -> Result<usize, Error> {
        let open = self.list[at].text.as_str();
        let shut = match open {
            "(" => ")",
            "[" => "]",
            "{" => "}",
            _ => ">",
        };
        let mut depth = 0;
        for i in at..self.list.len() {
            if self.is(i, open) {
                depth += 1;
            } else if self.is(i, shut) {
                depth -= 1;
                if depth == 0 {
                    return Ok(i);
                }
            }
        }
        Err(self.error(at, format!("{open} is never closed")))
    }

    /// The first `text` at or after `at`, outside brackets.
    pub(crate) fn find(&self, at: usize, text: &str) -> Result<usize, Error> {
        let mut i = at;
        while i < self.list.len() {
            if self.is(i, text) {
                return Ok(i);
            }
            if ["(", "[", "{"].iter().any(|open| self.is(i, open)) {
                i = self.close(i)?;
            }
            i += 1;
        }
        Err(self.error(at, format!("no {text} follows")))
    }

    /// Text of `range` on one line, without comments.
    pub(crate) fn text(&self, range: std::ops::Range<usize>) -> String {
        let all: String = self.list[range].iter().map(|t| t.text.as_str()).collect();
        all.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Splits `range` at commas outside brackets.
    pub(crate) fn split(&self, range: std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
        let (mut parts, mut depth, mut start) = (vec![], 0, range.start);
        for i in range.clone() {
            if ["(", "[", "{", "<"].iter().any(|open| self.is(i, open)) {
                depth += 1;
            } else if [")", "]", "}", ">"].iter().any(|shut| self.is(i, shut)) {
                depth -= 1;
            } else if depth == 0 && self.is(i, ",") {
                parts.push(start..i);
                start = i + 1;
            }
        }
        if !self.text(start..range.end).is_empty() {
            parts.push(start..range.end);
        }
        parts
    }

    /// Removes what `range` says but keeps its lines.
    pub(crate) fn blank(&mut self, range: std::ops::Range<usize>) {
        for token in &mut self.list[range] {
            if token.kind != Kind::Directive {
                token.text = "\n".repeat(token.text.matches('\n').count());
                token.kind = Kind::Space;
            }
        }
    }

    /// Replaces the token at `at`; what is put there is not looked at again.
    pub(crate) fn replace(&mut self, at: usize, text: String) {
        self.list[at].text = text;
        self.list[at].kind = Kind::Literal;
    }

    /// Everything.
    pub(crate) fn join(&self) -> String {
        self.list.iter().map(|token| token.text.as_str()).collect()
    }
}

fn lex(text: &str, file: usize) -> Vec<Token> {
    let mut tokens: Vec<Token> = vec![];
    let (mut rest, mut line, mut fresh_line) = (text, 1, true);
    while let Some(first) = rest.chars().next() {
        let (kind, len) = if first == '#' && fresh_line {
            (Kind::Directive, directive(rest))
        } else if rest.starts_with("//") {
            (Kind::Space, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (Kind::Space, rest.find("*/").map_or(rest.len(), |end| end + 2))
        } else if first.is_whitespace() {
            (Kind::Space, first.len_utf8())
        } else if first == '"' || first == '\'' {
            (Kind::Literal, quoted(rest, first))
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            (Kind::Word, end.unwrap_or(rest.len()))
        } else if first.is_ascii_digit() || is_fraction(rest) {
            (Kind::Number, number(rest))
        } else if rest.starts_with("::") || rest.starts_with("->") {
            (Kind::Punct, 2)
        } else {
            (Kind::Punct, first.len_utf8())
        };
        let (piece, tail) = rest.split_at(len);
        let newlines = piece.matches('\n').count() as u32;
        let text = match kind {
            Kind::Space if piece.starts_with('/') => {
                // A comment separates words, and its lines count.
                format!(" {}", "\n".repeat(newlines as usize))
            }
            Kind::Directive => without_comment(piece),
            _ => piece.to_owned(),
        };
        tokens.push(Token { kind, text, file, line });
        fresh_line = match kind {
            Kind::Space => fresh_line || newlines > 0,
            _ => false,
        };
        line += newlines;
        rest = tail;
    }
    tokens
}

/// Length of a preprocessor line with its continuations.
fn directive(text: &str) -> usize {
    let mut from = 0;
    while let Some(end) = text[from..].find('\n') {
        let end = from + end;
        if !text[..end].trim_end_matches('\r').ends_with('\\') {
            return end;
        }
        from = end + 1;
    }
    text.len()
}

/// A directive without a `//` comment at its end.
fn without_comment(text: &str) -> String {
    text.find("//").map_or(text, |at| text[..at].trim_end()).to_owned()
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote || c == '\n' {
            return at + 1;
        }
    }
    text.len()
}

fn is_fraction(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next() == Some('.') && chars.next().is_some_and(|c| c.is_ascii_digit())
}

/// Length of a number, with its exponent and suffix.
fn number(text: &str) -> usize {
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let exponent = matches!(before, 'e' | 'E') && matches!(c, '+' | '-') && !hexadecimal;
        if !(c.is_alphanumeric() || c == '.' || c == '_' || exponent) {
            return at;
        }
        before = c;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solid(text: &str) -> Vec<String> {
        let tokens = lex(text, 0);
        tokens.into_iter().filter(|t| t.kind != Kind::Space).map(|t| t.text).collect()
    }

    #[test]
    fn numbers_keep_their_exponents_and_suffixes() {
        assert_eq!(solid("1e-5f+0x1e-2 .5h 3u"), ["1e-5f", "+", "0x1e", "-", "2", ".5h", "3u"]);
    }

    #[test]
    fn comments_vanish_and_lines_count() {
        let tokens = lex("a /* b\n\n */ c // d\ne", 0);
        let words: Vec<_> = tokens.iter().filter(|t| t.kind == Kind::Word).collect();
        let lines: Vec<_> = words.iter().map(|t| (t.text.as_str(), t.line)).collect();
        assert_eq!(lines, [("a", 1), ("c", 3), ("e", 4)]);
    }

    #[test]
    fn directives_take_their_continuations() {
        assert_eq!(solid("#define A \\\n  b\nc"), ["#define A \\\n  b", "c"]);
    }

    #[test]
    fn brackets_close_where_they_should() {
        let tokens = Tokens::read("t", "a[b[0]] (c)", &[]).unwrap();
        let open = (0..).find(|&i| tokens.is(i, "[")).unwrap();
        assert_eq!(tokens.text(open..tokens.close(open).unwrap() + 1), "[b[0]]");
    }

    #[test]
    fn headers_are_inlined_once() {
        let headers = [("h.h", "#pragma once\nint h;\n")];
        let source = "#include <metal_stdlib>\n#include \"h.h\"\n#include \"h.h\"\nint x;\n";
        let tokens = Tokens::read("a.metal", source, &headers).unwrap();
        assert_eq!(tokens.join().matches("int h;").count(), 1);
        let x = tokens.list.iter().find(|t| t.is("x")).unwrap();
        assert_eq!((tokens.files[x.file].as_str(), x.line), ("a.metal", 4));
        let error = Tokens::read("a.metal", "\n#include \"no.h\"\n", &[]).unwrap_err();
        assert_eq!(error.to_string(), "a.metal:2: there is no header \"no.h\"");
    }
}
