//! A line on the terminal that shows how far a long prompt is, until the reply begins.

use crate::output::QUIET;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// A prompt that takes no longer than this needs no line.
const QUIET_FOR: Duration = Duration::from_secs(1);

/// The line. Dropping it erases it.
pub(crate) struct PrefillLine {
    start: Instant,
    /// When the first tokens were there, and how many: those before may have been reused.
    first: Option<(Instant, usize)>,
    /// Whether a person looks at standard error.
    is_shown: bool,
    /// Columns to erase.
    columns: usize,
}

impl PrefillLine {
    pub(crate) fn new() -> Self {
        let is_shown = io::stderr().is_terminal();
        Self { start: Instant::now(), first: None, is_shown, columns: 0 }
    }

    /// Shows that `done` of `total` prompt tokens are there.
    pub(crate) fn update(&mut self, done: usize, total: usize) {
        let now = Instant::now();
        let (since, from) = *self.first.get_or_insert((now, done));
        if !self.is_shown || now - self.start < QUIET_FOR {
            return;
        }
        let text = words(done, total, done.saturating_sub(from), now - since);
        // Spaces cover what a longer text left behind, on terminals without escape sequences too.
        let width = self.columns.max(text.len());
        self.write(&format!("\r{QUIET}{text:width$}{QUIET:#}"));
        self.columns = text.len();
    }

    /// Takes the line away.
    pub(crate) fn erase(&mut self) {
        if self.columns > 0 {
            self.write(&format!("\r{:1$}\r", "", self.columns));
            self.columns = 0;
        }
    }

    /// That nobody reads it is no error.
    fn write(&self, text: &str) {
        let mut err = anstream::stderr();
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }
}

impl Drop for PrefillLine {
    fn drop(&mut self) {
        self.erase();
    }
}

fn words(done: usize, total: usize, computed: usize, time: Duration) -> String {
    let mut text = format!("reading the prompt: {done} of {total} tokens");
    if computed > 0 && !time.is_zero() {
        text += &format!(", {:.0} tok/s", computed as f64 / time.as_secs_f64());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_far_and_how_fast() {
        let text = words(512, 4096, 256, Duration::from_secs(2));
        assert_eq!(text, "reading the prompt: 512 of 4096 tokens, 128 tok/s");
        let first = words(256, 4096, 0, Duration::ZERO);
        assert_eq!(first, "reading the prompt: 256 of 4096 tokens");
    }

    #[test]
    fn nothing_is_shown_at_once_or_without_a_terminal() {
        let now = Instant::now();
        let mut early = PrefillLine { start: now, first: None, is_shown: true, columns: 0 };
        early.update(1, 2);
        assert_eq!(early.columns, 0);
        let start = now.checked_sub(2 * QUIET_FOR).expect("the clock is past 2 s");
        let mut piped = PrefillLine { start, first: None, is_shown: false, columns: 0 };
        piped.update(1, 2);
        assert_eq!(piped.columns, 0);
    }
}
