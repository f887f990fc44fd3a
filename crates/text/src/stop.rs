//! Finds stop strings in streamed text, holding back only what may still become one.

use crate::{Error, Result};

/// Number of stop strings that one request may have.
const STOPS_MAX: usize = 64;
/// Length of one stop string.
const STOP_BYTES_MAX: usize = 1024;

/// What a piece of text amounts to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is certainly before any stop string.
    pub text: String,
    /// Index of the stop string that was found; the text ends before it and nothing follows.
    pub stopped: Option<usize>,
}

/// Scans a stream for stop strings, across the borders of its pieces.
///
/// The stop string that is complete first wins; of several complete at the same byte, the longest.
/// Each string has its own Knuth-Morris-Pratt automaton, so the work per byte is bounded by the number
/// of strings (amortised), and the text held back is the longest possible beginning of one.
#[derive(Debug, Clone)]
pub struct StopScanner {
    stops: Vec<Automaton>,
    held: String,
    stopped: Option<usize>,
}

#[derive(Debug, Clone)]
struct Automaton {
    pattern: Vec<u8>,
    /// For each prefix length less one: the longest proper border of that prefix.
    borders: Vec<usize>,
    /// Bytes of the pattern that the text now ends with.
    matched: usize,
}

impl Automaton {
    fn new(pattern: &str) -> Automaton {
        let pattern = pattern.as_bytes().to_vec();
        let mut borders = vec![0; pattern.len()];
        let mut border = 0;
        for i in 1..pattern.len() {
            while border > 0 && pattern[i] != pattern[border] {
                border = borders[border - 1];
            }
            border += usize::from(pattern[i] == pattern[border]);
            borders[i] = border;
        }
        Automaton { pattern, borders, matched: 0 }
    }

    /// Whether the pattern is complete with this byte.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && byte != self.pattern[self.matched] {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(byte == self.pattern[self.matched]);
        self.matched == self.pattern.len()
    }
}

impl StopScanner {
    /// A scanner for these strings; none at all is fine.
    ///
    /// # Errors
    /// [`Error::BadStop`] for an empty string, one longer than 1,024 bytes, or more than 64 of them.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<StopScanner> {
        let bad = |reason| Err(Error::BadStop { reason });
        if stops.len() > STOPS_MAX {
            return bad(format!("there are {}, at most {STOPS_MAX} are allowed", stops.len()));
        }
        for (index, stop) in stops.iter().enumerate() {
            let bytes = stop.as_ref().len();
            if bytes == 0 {
                return bad(format!("number {index} is empty, it would stop at once"));
            }
            if bytes > STOP_BYTES_MAX {
                return bad(format!(
                    "number {index} has {bytes} bytes, at most {STOP_BYTES_MAX} are allowed"
                ));
            }
        }
        let stops = stops.iter().map(|stop| Automaton::new(stop.as_ref())).collect();
        Ok(StopScanner { stops, held: String::new(), stopped: None })
    }

    /// Takes the next piece. After a stop string was found, everything is swallowed.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.stopped.is_some() {
            return StopStep { text: String::new(), stopped: self.stopped };
        }
        let base = self.held.len();
        self.held.push_str(piece);
        if self.stops.is_empty() {
            return StopStep { text: std::mem::take(&mut self.held), stopped: None };
        }
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                if stop.step(byte) && longest.is_none_or(|(len, _)| stop.pattern.len() > len) {
                    longest = Some((stop.pattern.len(), index));
                }
            }
            if let Some((len, index)) = longest {
                self.stopped = Some(index);
                // A match begins where its first byte was taken, and that is still held.
                self.held.truncate(base + at + 1 - len);
                return StopStep { text: std::mem::take(&mut self.held), stopped: self.stopped };
            }
        }
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopStep { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The end of the text: what was held back and became no stop string.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut scanner = StopScanner::new(stops).unwrap();
        let mut text = String::new();
        for piece in pieces {
            let step = scanner.push(piece);
            text += &step.text;
            if step.stopped.is_some() {
                return (text, step.stopped);
            }
        }
        (text + &scanner.finish(), None)
    }

    #[test]
    fn finds_a_stop_string_across_pieces() {
        assert_eq!(run(&["END"], &["abE", "N", "Dxyz"]), ("ab".into(), Some(0)));
        assert_eq!(run(&["END"], &["abE", "N"]), ("abEN".into(), None));
        assert_eq!(run(&["aab"], &["aaaa", "b"]), ("aa".into(), Some(0)));
        assert_eq!(run(&["🙂"], &["x🙂y"]), ("x".into(), Some(0)));
        assert_eq!(run(&["b", "ab", "zzz"], &["xab"]), ("x".into(), Some(1)));
        assert_eq!(run(&[], &["abc"]), ("abc".into(), None));
    }

    #[test]
    fn holds_back_only_a_possible_beginning() {
        let mut scanner = StopScanner::new(&["\n\nUser:"]).unwrap();
        assert_eq!(scanner.push("a\n").text, "a");
        assert_eq!(scanner.push("b\n\nUse").text, "\nb");
        assert_eq!(scanner.push("d").text, "\n\nUsed");
        assert_eq!(scanner.push("\n\nUser:").stopped, Some(0));
        assert_eq!(scanner.push("more"), StopStep { text: String::new(), stopped: Some(0) });
        assert_eq!(scanner.finish(), "");
    }

    #[test]
    fn refuses_strings_out_of_bounds() {
        for (stops, words) in [
            (vec![String::new()], "empty"),
            (vec!["a".into(); 65], "at most 64"),
            (vec!["a".repeat(1025)], "1025 bytes"),
        ] {
            let message = StopScanner::new(&stops).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_search(
            stops in prop::collection::vec("[abé]{1,4}", 1..4),
            pieces in prop::collection::vec("[abé]{0,5}", 0..12),
        ) {
            let whole = pieces.concat();
            // The end of the first complete match, then the earliest beginning for that end.
            let found = (1..=whole.len()).find_map(|end| {
                let head = whole.as_bytes()[..end].to_vec();
                stops
                    .iter()
                    .filter(|stop| head.ends_with(stop.as_bytes()))
                    .map(|stop| end - stop.len())
                    .min()
            });
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (text, stopped) = run(&stops, &pieces);
            prop_assert_eq!(stopped.is_some(), found.is_some());
            prop_assert_eq!(&text, &whole[..found.unwrap_or(whole.len())]);
        }
    }
}
