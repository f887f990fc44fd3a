//! Shows a streaming reply: thinking dimmed, then the answer, then calls.

use crate::output::{CALL, QUIET, printable, stdout_is_terminal};
use anstream::AutoStream;
use calla_text::Event;
use std::io::{self, Write};

/// Prints a reply's events as they come.
///
/// On a terminal all goes to standard output. Elsewhere that has the answer and the calls alone, and
/// thinking goes to standard error.
pub(crate) struct ReplyPrinter {
    out: AutoStream<io::Stdout>,
    err: AutoStream<io::Stderr>,
    is_terminal: bool,
    section: Section,
    /// The last thing printed was a line feed, or nothing.
    at_line_start: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Nothing,
    Thinking,
    Answer,
    Call,
}

impl ReplyPrinter {
    pub(crate) fn new() -> Self {
        Self {
            out: anstream::stdout(),
            err: anstream::stderr(),
            is_terminal: stdout_is_terminal(),
            section: Section::Nothing,
            at_line_start: true,
        }
    }

    /// Shows one event.
    ///
    /// # Errors
    /// If standard output is closed. Standard error may be.
    pub(crate) fn event(&mut self, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Reasoning(text) => {
                self.enter(Section::Thinking)?;
                let text = printable(text);
                self.thinking(&format!("{QUIET}{text}{QUIET:#}"), text.ends_with('\n'))?;
            }
            Event::Content(text) => {
                self.enter(Section::Answer)?;
                self.answer(text)?;
            }
            Event::ToolCallStart { name, .. } => {
                self.enter(Section::Call)?;
                write!(self.out, "{CALL}{}", printable(name))?;
                self.at_line_start = false;
            }
            Event::ToolCallArguments { json, .. } => {
                write!(self.out, "{}", printable(json))?;
            }
            Event::ToolCallEnd { .. } => {
                writeln!(self.out, "{CALL:#}")?;
                self.at_line_start = true;
            }
        }
        self.out.flush()?;
        Ok(())
    }

    /// Ends the last line, whatever came.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        match self.section {
            Section::Thinking => self.end_thinking()?,
            Section::Call => write!(self.out, "{CALL:#}")?,
            _ => {}
        }
        if !self.at_line_start {
            writeln!(self.out)?;
        }
        self.out.flush()?;
        Ok(())
    }

    fn enter(&mut self, section: Section) -> anyhow::Result<()> {
        let from = std::mem::replace(&mut self.section, section);
        match (from, section) {
            (Section::Thinking, to) if to != Section::Thinking => {
                self.end_thinking()?;
                if self.is_terminal {
                    writeln!(self.out)?;
                }
            }
            (Section::Answer, Section::Call) if !self.at_line_start => {
                writeln!(self.out)?;
                self.at_line_start = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn thinking(&mut self, styled: &str, ends_line: bool) -> anyhow::Result<()> {
        if self.is_terminal {
            write!(self.out, "{styled}")?;
        } else {
            // Nobody may read it.
            let _ = write!(self.err, "{styled}");
            let _ = self.err.flush();
        }
        self.at_line_start = ends_line;
        Ok(())
    }

    fn end_thinking(&mut self) -> anyhow::Result<()> {
        if !self.at_line_start {
            self.thinking("\n", true)?;
        }
        Ok(())
    }

    fn answer(&mut self, text: &str) -> anyhow::Result<()> {
        if self.is_terminal {
            write!(self.out, "{}", printable(text))?;
        } else {
            // A file gets the model's bytes as they are.
            self.out.as_inner().lock().write_all(text.as_bytes())?;
        }
        self.at_line_start = text.ends_with('\n');
        Ok(())
    }
}
