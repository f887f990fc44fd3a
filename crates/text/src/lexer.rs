//! Cuts a streamed reply into text and the family's tags, holding back at most one incomplete tag.

/// A tag of thinking or of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tag {
    Think,
    CloseThink,
    ToolCall,
    CloseToolCall,
    /// `<function=NAME>`
    Function(String),
    CloseFunction,
    /// `<parameter=KEY>`
    Parameter(String),
    CloseParameter,
}

/// A run of text, or a tag with the text it was written as.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lexeme<'a> {
    Text(&'a str),
    Tag(Tag, &'a str),
}

const FIXED: [(&str, Tag); 6] = [
    ("<think>", Tag::Think),
    ("</think>", Tag::CloseThink),
    ("<tool_call>", Tag::ToolCall),
    ("</tool_call>", Tag::CloseToolCall),
    ("</function>", Tag::CloseFunction),
    ("</parameter>", Tag::CloseParameter),
];
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";

/// A name longer than this is no name; it bounds what is held back.
const NAME_BYTES_MAX: usize = 256;

/// The state between two pieces: the beginning of what may become a tag.
///
/// A tag holds no `<` but its first character, so when one fails, the search goes on at the character
/// that failed: no byte is looked at twice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lexer {
    partial: String,
}

enum Verdict {
    Complete(Tag),
    Viable,
    Dead,
}

impl Lexer {
    /// Takes the next piece.
    pub(crate) fn push(&mut self, piece: &str, mut take: impl FnMut(Lexeme<'_>)) {
        let mut rest = piece;
        while let Some(c) = rest.chars().next() {
            if self.partial.is_empty() {
                let (text, from_tag) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
                if !text.is_empty() {
                    take(Lexeme::Text(text));
                }
                rest = from_tag;
                if !rest.is_empty() {
                    self.partial.push('<');
                    rest = &rest[1..];
                }
                continue;
            }
            match judge(&self.partial, c) {
                Verdict::Viable => {
                    self.partial.push(c);
                    rest = &rest[c.len_utf8()..];
                }
                Verdict::Complete(tag) => {
                    self.partial.push(c);
                    rest = &rest[c.len_utf8()..];
                    take(Lexeme::Tag(tag, &self.partial));
                    self.partial.clear();
                }
                Verdict::Dead => {
                    take(Lexeme::Text(&self.partial));
                    self.partial.clear();
                }
            }
        }
    }

    /// The end: an incomplete tag is text.
    pub(crate) fn finish(&mut self, mut take: impl FnMut(Lexeme<'_>)) {
        if !self.partial.is_empty() {
            take(Lexeme::Text(&self.partial));
            self.partial.clear();
        }
    }
}

/// What becomes of a viable beginning with one more character.
fn judge(partial: &str, c: char) -> Verdict {
    for (head, tag) in [(FUNCTION, Tag::Function as fn(String) -> Tag), (PARAMETER, Tag::Parameter)]
    {
        if let Some(name) = partial.strip_prefix(head) {
            return match c {
                '>' if !name.trim().is_empty() => Verdict::Complete(tag(name.trim().to_owned())),
                '>' | '<' | '\n' => Verdict::Dead,
                c if name.len() + c.len_utf8() > NAME_BYTES_MAX => Verdict::Dead,
                _ => Verdict::Viable,
            };
        }
    }
    let goes_on = |tag: &str| tag[partial.len()..].starts_with(c) && tag.starts_with(partial);
    for (text, tag) in &FIXED {
        if partial.len() < text.len() && goes_on(text) {
            return match partial.len() + 1 == text.len() {
                true => Verdict::Complete(tag.clone()),
                false => Verdict::Viable,
            };
        }
    }
    match [FUNCTION, PARAMETER].into_iter().any(|head| partial.len() < head.len() && goes_on(head))
    {
        true => Verdict::Viable,
        false => Verdict::Dead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lexemes of the joined pieces, neighbouring texts joined, tags in brackets.
    fn lex(pieces: &[&str]) -> String {
        let mut lexer = Lexer::default();
        let mut out = String::new();
        let mut take = |lexeme: Lexeme<'_>| match lexeme {
            Lexeme::Text(text) => out.push_str(text),
            Lexeme::Tag(tag, raw) => out.push_str(&format!("[{tag:?} {raw}]")),
        };
        for piece in pieces {
            lexer.push(piece, &mut take);
        }
        lexer.finish(&mut take);
        out
    }

    #[test]
    fn cuts_tags_out_of_text() {
        assert_eq!(lex(&["a<think>b"]), "a[Think <think>]b");
        assert_eq!(lex(&["a</thi", "nk", ">b"]), "a[CloseThink </think>]b");
        assert_eq!(lex(&["<<think>"]), "<[Think <think>]");
        assert_eq!(lex(&["<thi<tool_call>"]), "<thi[ToolCall <tool_call>]");
        assert_eq!(lex(&["<function= f >"]), "[Function(\"f\") <function= f >]");
        assert_eq!(lex(&["<parameter=é>"]), "[Parameter(\"é\") <parameter=é>]");
        assert_eq!(lex(&["<parameter=>"]), "<parameter=>");
        assert_eq!(lex(&["<function=a\nb>"]), "<function=a\nb>");
        assert_eq!(lex(&["<function=a<think>"]), "<function=a[Think <think>]");
        assert_eq!(lex(&["</function", "</parameter"]), "</function</parameter");
        assert_eq!(lex(&["1 < 2 é<é>"]), "1 < 2 é<é>");
    }

    #[test]
    fn holds_back_no_more_than_a_tag() {
        let mut lexer = Lexer::default();
        let mut given = 0;
        let text = format!("<function={}", "x".repeat(10_000));
        for (at, piece) in text.split_inclusive(|_| true).enumerate() {
            lexer.push(piece, |lexeme| {
                let Lexeme::Text(text) = lexeme else { panic!("no tag here") };
                given += text.len();
            });
            assert!(at + 1 - given <= FUNCTION.len() + NAME_BYTES_MAX);
        }
    }
}
