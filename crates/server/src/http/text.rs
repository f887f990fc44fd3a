//! A client's text made fit for logs and messages: short, and without control characters.

/// At most `limit` characters of `text`, with control characters, bidirectional overrides and other
/// characters that do not show written as escapes, so that they cannot forge a line or move a cursor.
/// What was left out is marked by `…`.
pub(super) fn visible(text: &str, limit: usize) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    for character in characters.by_ref().take(limit) {
        match character {
            '"' | '\'' | '\\' => out.push(character),
            _ => out.extend(character.escape_debug()),
        }
    }
    if characters.next().is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn keeps_what_shows_and_escapes_the_rest() {
        let cases = [
            ("plain 'text' \"é漢\"", "plain 'text' \"é漢\""),
            ("a\r\nINFO forged", "a\\r\\nINFO forged"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}txt", "\\u{202e}txt"),
            ("nul\0", "nul\\0"),
            ("back\\slash", "back\\slash"),
        ];
        for (text, expected) in cases {
            assert_eq!(visible(text, 80), expected);
        }
    }

    #[test]
    fn cuts_between_characters() {
        assert_eq!(visible("ééé", 2), "éé…");
        assert_eq!(visible("ééé", 3), "ééé");
    }
}
