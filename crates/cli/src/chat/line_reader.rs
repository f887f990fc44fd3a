//! Where a chat's lines come from: an editor on a terminal, or plain lines of standard input.

use super::command;
use crate::output;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use std::cell::Cell;
use std::env;
use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

/// Messages kept in the history file.
const HISTORY_MAX: usize = 1000;
const PROMPT: &str = "> ";

/// A source of lines.
pub(super) enum LineReader {
    Editor(Box<LineEditor>),
    Plain,
}

/// An editor with its history.
pub(super) struct LineEditor {
    editor: Editor<ChatHelper, FileHistory>,
    history: Option<PathBuf>,
    /// Ctrl-C was the last thing typed, at an empty prompt.
    interrupted: bool,
}

impl LineReader {
    /// An editor if a person sits at both ends.
    pub(super) fn new() -> anyhow::Result<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Plain);
        }
        let config = Config::builder()
            .max_history_size(HISTORY_MAX)?
            .history_ignore_dups(true)?
            .auto_add_history(false)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(ChatHelper::default()));
        let history = history_file();
        if let Some(path) = &history {
            // There is none the first time.
            if let Err(error) = editor.load_history(path) {
                tracing::debug!("history {}: {error}", path.display());
            }
        }
        Ok(Self::Editor(Box::new(LineEditor { editor, history, interrupted: false })))
    }

    /// Whether a person types.
    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    /// The next input, which may have several lines; `None` at the end.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Self::Editor(editor) => editor.next(),
            Self::Plain => {
                let mut bytes = Vec::new();
                if io::stdin().lock().read_until(b'\n', &mut bytes)? == 0 {
                    return Ok(None);
                }
                let line = String::from_utf8(bytes).map_err(|error| {
                    let at = error.utf8_error().valid_up_to();
                    anyhow::anyhow!(
                        "standard input is not UTF-8 text: byte {at} of a line does not belong"
                    )
                })?;
                Ok(Some(line))
            }
        }
    }
}

impl LineEditor {
    fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.editor.readline(PROMPT) {
                Ok(line) => {
                    self.interrupted = false;
                    self.remember(&line);
                    return Ok(Some(line));
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted) => {
                    let at_empty_prompt =
                        self.editor.helper().is_none_or(|helper| helper.is_empty.replace(true));
                    if at_empty_prompt && self.interrupted {
                        return Ok(None);
                    }
                    self.interrupted = at_empty_prompt;
                    if at_empty_prompt {
                        output::note("Ctrl-C again, or Ctrl-D, leaves");
                    }
                }
                // The terminal was resized or we were stopped and continued: ask again.
                Err(ReadlineError::Signal(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Adds to the history, at once also on disk: a chat may end in any way.
    fn remember(&mut self, line: &str) {
        if line.trim().is_empty() || !matches!(self.editor.add_history_entry(line), Ok(true)) {
            return;
        }
        let Some(path) = &self.history else { return };
        let saved = match path.parent().map(fs::create_dir_all) {
            Some(Err(error)) => Err(ReadlineError::Io(error)),
            _ => self.editor.append_history(path),
        };
        if let Err(error) = saved {
            output::note(&format!("history is not saved: {}: {error}", path.display()));
            self.history = None;
        }
    }
}

/// `$XDG_STATE_HOME/calla/history`, or where the system keeps such things.
fn history_file() -> Option<PathBuf> {
    let absolute = |value| Some(PathBuf::from(value)).filter(|path: &PathBuf| path.is_absolute());
    let state = env::var_os("XDG_STATE_HOME").and_then(absolute).or_else(|| {
        let home = env::home_dir()?;
        let usual =
            if cfg!(target_os = "macos") { "Library/Application Support" } else { ".local/state" };
        Some(home.join(usual))
    })?;
    Some(state.join("calla/history"))
}

/// What the editor asks while a line is typed.
#[derive(Default)]
struct ChatHelper {
    /// Whether nothing is typed. Starts wrong, but the editor asks for a hint before the first key.
    is_empty: Cell<bool>,
}

impl Helper for ChatHelper {}
impl Highlighter for ChatHelper {}

impl Hinter for ChatHelper {
    type Hint = String;

    /// No hint: the editor calls this whenever the line changes, and Ctrl-C does not tell what was there.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Completer for ChatHelper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..position];
        let matches =
            command::NAMES.iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, matches.map(|name| (*name).to_owned()).collect()))
    }
}

impl Validator for ChatHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if command::goes_on(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}
