//! Follows a list or object of JSON as it comes, as far as to know whether the next character is inside of a string.

/// How far the text has come. It is not a check: what is no JSON for another reason is found out later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonScan {
    /// Nothing but white space yet.
    Start,
    /// Outside of strings, in so many brackets.
    Open { depth: usize },
    /// In a string.
    Text { depth: usize, escaped: bool },
    /// The value is complete, or the text cannot become a list or an object any more.
    Over,
}

impl JsonScan {
    /// Takes the next piece.
    pub(crate) fn push(&mut self, piece: &str) {
        // What matters is ASCII, which is part of no other character.
        for byte in piece.bytes() {
            *self = match (*self, byte) {
                (JsonScan::Over, _) => return,
                (JsonScan::Start, b' ' | b'\t' | b'\n' | b'\r') => JsonScan::Start,
                (JsonScan::Start, b'{' | b'[') => JsonScan::Open { depth: 1 },
                (JsonScan::Start, _) => JsonScan::Over,
                (JsonScan::Open { depth }, b'"') => JsonScan::Text { depth, escaped: false },
                (JsonScan::Open { depth }, b'{' | b'[') => JsonScan::Open { depth: depth + 1 },
                (JsonScan::Open { depth: 1 }, b'}' | b']') => JsonScan::Over,
                (JsonScan::Open { depth }, b'}' | b']') => JsonScan::Open { depth: depth - 1 },
                (open @ JsonScan::Open { .. }, _) => open,
                // A string of JSON holds no control character.
                (JsonScan::Text { .. }, ..b' ') => JsonScan::Over,
                (JsonScan::Text { depth, escaped: false }, b'"') => JsonScan::Open { depth },
                (JsonScan::Text { depth, escaped }, byte) => {
                    JsonScan::Text { depth, escaped: !escaped && byte == b'\\' }
                }
            };
        }
    }

    /// Whether a piece that comes now would be part of a string, and leave it open to become whole.
    pub(crate) fn takes_into_string(mut self, piece: &str) -> bool {
        let inside = |scan| matches!(scan, JsonScan::Text { .. });
        inside(self) && {
            self.push(piece);
            inside(self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_strings_from_the_rest() {
        for (text, expected) in [
            ("", JsonScan::Start),
            (" \n", JsonScan::Start),
            ("5", JsonScan::Over),
            ("\"a", JsonScan::Over),
            ("{\"a", JsonScan::Text { depth: 1, escaped: false }),
            ("[{\"a\\", JsonScan::Text { depth: 2, escaped: true }),
            ("[{\"a\\\"", JsonScan::Text { depth: 2, escaped: false }),
            ("[{\"a\\\\\"", JsonScan::Open { depth: 2 }),
            ("[{\"}\"}, ", JsonScan::Open { depth: 1 }),
            ("[{\"é\": 1}]", JsonScan::Over),
            ("[\"a\n", JsonScan::Over),
            ("[\n\"a", JsonScan::Text { depth: 1, escaped: false }),
        ] {
            let mut scan = JsonScan::Start;
            scan.push(text);
            assert_eq!(scan, expected, "{text:?}");
            let mut cut = JsonScan::Start;
            text.split_inclusive(|_| true).for_each(|piece| cut.push(piece));
            assert_eq!(cut, expected, "{text:?}");
        }
        let mut scan = JsonScan::Start;
        scan.push("[\"a");
        assert!(scan.takes_into_string("</b> ") && !scan.takes_into_string("</b>\n"));
        assert!(!scan.takes_into_string("\"") && !JsonScan::Over.takes_into_string("a"));
    }
}
