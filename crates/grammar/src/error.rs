//! Why a grammar was refused.

/// A grammar was refused. All of these are the request's fault but for [`Vocabulary`](Self::Vocabulary) and
/// [`Internal`](Self::Internal).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A bound on the grammar's text or shape.
    #[error("{what} is {value}, over the bound of {bound}: simplify the grammar")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// What there was, or where counting stopped.
        value: usize,
        /// What is allowed.
        bound: usize,
    },
    /// The schema is not JSON, or a keyword has a value of the wrong kind.
    #[error("invalid JSON schema: {0}")]
    InvalidSchema(String),
    /// A keyword that cannot be enforced token by token.
    #[error(
        "JSON schema keyword {keyword:?} at {place} is not supported in structured output: remove it"
    )]
    UnsupportedKeyword {
        /// The keyword.
        keyword: String,
        /// Path of the schema that has it.
        place: String,
    },
    /// A reference that leads nowhere or out of the schema.
    #[error("JSON schema reference {reference:?} at {place}: {reason}")]
    Reference {
        /// The reference as written.
        reference: String,
        /// Path of the schema that has it.
        place: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A tool whose calls cannot be written as a grammar.
    #[error("tool {tool:?}: {reason}")]
    Tool {
        /// Name of the tool, or its place in the list.
        tool: String,
        /// What is wrong.
        reason: String,
    },
    /// A call is required, and the list of tools is empty.
    #[error("a tool call is required, but no tool is on offer: offer at least one tool")]
    NoTools,
    /// No text matches it.
    #[error(
        "no reply matches the grammar: look for a rule or reference that leads back to itself without an end, or for \
         constraints that exclude each other"
    )]
    Unsatisfiable,
    /// A Lark grammar names a token that no reply may hold.
    #[error(
        "the grammar names {0}, which no reply may hold: remove it (a reply ends by itself where the grammar does)"
    )]
    BarredToken(String),
    /// The grammar compiler refused it.
    #[error("the grammar was refused: {0}")]
    Refused(String),
    /// The tokenizer cannot be used for grammars.
    #[error("the vocabulary cannot be used for grammars: {0}")]
    Vocabulary(String),
    /// The grammar compiler failed.
    #[error("the grammar compiler failed: {0}")]
    Internal(String),
}

/// What the library says, without what it adds for its developers: backtraces, and the lines of the grammar around the
/// place, which for a tool call the user has not written.
pub(crate) fn plain_words(words: &str) -> String {
    const BYTES_MAX: usize = 400;
    let words = words.split("\n<").next().unwrap_or_default();
    let lines = words.lines().map(str::trim).filter(|line| !is_excerpt(line));
    let mut plain: String = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    if let Some(reason) = plain.strip_prefix("panic: ") {
        plain = format!("the compiler cannot deal with it ({reason})");
    }
    // The option that it speaks of is not the user's to set.
    if let Some((before, _)) = plain.split_once(" Enable 'coerce_one_of'") {
        plain = format!(
            "{before} Here members of oneOf might both hold: write anyOf, or make them differ"
        );
    }
    if plain.len() > BYTES_MAX {
        plain.truncate(plain.floor_char_boundary(BYTES_MAX));
        plain.push_str("...");
    }
    plain
}

/// `12 | start: a`, or a line of `^` below one.
fn is_excerpt(line: &str) -> bool {
    let numbered =
        line.split_once('|').is_some_and(|(number, _)| number.trim().parse::<u32>().is_ok());
    numbered || (!line.is_empty() && line.chars().all(|c| c == '^'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_for_users() {
        for (words, plain) in [
            (
                "at 3(4): unknown name: \"a\"\n  2 | b: c\n  3 | start: a\n      ^",
                "at 3(4): unknown name: \"a\"",
            ),
            ("panic: overflow\n<backtrace>\n 0: x", "the compiler cannot deal with it (overflow)"),
            ("a  b\nc", "a b c"),
            (
                "oneOf constraints are not supported. Enable 'coerce_one_of' option to x",
                "oneOf constraints are not supported. Here members of oneOf might both hold: write anyOf, or make them differ",
            ),
        ] {
            assert_eq!(plain_words(words), plain);
        }
        assert_eq!(plain_words(&"é".repeat(500)).len(), 403);
    }
}
