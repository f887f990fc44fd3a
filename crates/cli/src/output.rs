//! The two output streams: results on standard output, quiet notes and errors on standard error.

use anstyle::{AnsiColor, Style};
use anyhow::Context;
use std::io::{self, IsTerminal, Write};

/// Thinking, notes, figures.
pub(crate) const QUIET: Style = Style::new().dimmed();
/// Calls of tools.
pub(crate) const CALL: Style = AnsiColor::Cyan.on_default();
/// Headings of reports.
pub(crate) const HEADING: Style = Style::new().bold();
/// The word "error".
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// A line on standard error, dimmed. That nobody reads it is no error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(anstream::stderr(), "{QUIET}{}{QUIET:#}", printable(text));
}

/// An error as one line on standard error.
pub(crate) fn note_error(error: &anyhow::Error) {
    let text = one_line(&chain(error));
    let _ = writeln!(anstream::stderr(), "{ERROR}error:{ERROR:#} {}", printable(&text));
}

/// Prints a JSON value and a line feed to standard output.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    raw(&text)
}

/// Prints text to standard output, byte for byte.
pub(crate) fn raw(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Prints text with styles to standard output, which takes them or not.
pub(crate) fn styled(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Whether standard error takes colours.
pub(crate) fn stderr_has_colour() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

/// Whether a person looks at standard output.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// An error with its causes; a cause that the message before it already tells is left out.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Text without control characters, which could drive a terminal: files and models are strangers.
/// Line feeds and tabs stay.
pub(crate) fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(harmless) {
        return text.into();
    }
    text.chars().map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_on_one_line() {
        let cause = io::Error::other("disk\non fire");
        let error = Err::<(), _>(cause).context("cannot read x").unwrap_err();
        assert_eq!(one_line(&chain(&error)), "cannot read x: disk on fire");
        let again = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(chain(&again), "outer: inner");
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(printable("a\tb\n"), "a\tb\n");
        assert_eq!(printable("\u{1b}[2Jx\u{9b}"), "\u{fffd}[2Jx\u{fffd}");
    }
}
