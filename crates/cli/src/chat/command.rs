//! The commands of a chat: lines that begin with a slash.

/// What a line of input asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing was said.
    Empty,
    /// A message to the model.
    Message(String),
    /// The result of a tool, to the model.
    ToolResult(String),
    Help,
    Reset,
    /// Set the system message; `None` shows it.
    System(Option<String>),
    Think(bool),
    Save {
        path: String,
        overwrite: bool,
    },
    Stats,
    Exit,
    /// A command that cannot be followed, and why.
    Wrong(String),
}

/// Names of all commands, for completion.
pub(super) const NAMES: [&str; 8] =
    ["/exit", "/help", "/reset", "/save", "/stats", "/system", "/think", "/tool"];

/// What /help prints.
pub(super) const HELP: &str = "\
/help            this list
/reset           forget the conversation; the system message stays
/system [TEXT]   set the system message, or show it; /system - removes it
/think on|off    let the model think before it answers, or not
/save FILE       write the conversation as JSON; /save! FILE overwrites
/tool RESULT     answer the model's tool call
/stats           what the conversation takes
/exit            leave, as Ctrl-D does

A line that ends with \\ goes on. \"\"\" begins a message of several lines, and ends it.
Ctrl-C stops an answer. //... sends a message that begins with a slash.";

/// Understands a line.
pub(super) fn parse(line: &str) -> Input {
    let text = line.trim();
    if text.is_empty() {
        return Input::Empty;
    }
    if let Some(rest) = text.strip_prefix("//") {
        return Input::Message(format!("/{rest}"));
    }
    if !text.starts_with('/') {
        return Input::Message(unwrap_multi_line(text));
    }
    let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let argument = unwrap_multi_line(argument.trim());
    let some = |argument: String| Some(argument).filter(|text| !text.is_empty());
    match name {
        "/help" | "/?" => Input::Help,
        "/reset" => Input::Reset,
        "/system" => Input::System(some(argument)),
        "/stats" => Input::Stats,
        "/exit" | "/quit" | "/bye" => Input::Exit,
        "/think" => match argument.as_str() {
            "on" | "" => Input::Think(true),
            "off" => Input::Think(false),
            other => Input::Wrong(format!("/think {other}: say on or off")),
        },
        "/save" | "/save!" => match some(argument) {
            Some(path) => Input::Save { path, overwrite: name == "/save!" },
            None => Input::Wrong(format!("{name} needs the name of a file")),
        },
        "/tool" => match some(argument) {
            Some(result) => Input::ToolResult(result),
            None => Input::Wrong("/tool needs the result of the call".to_owned()),
        },
        other => Input::Wrong(format!("there is no command {other}; /help lists them")),
    }
}

/// Whether more lines belong to this input.
pub(super) fn goes_on(text: &str) -> bool {
    if text.trim_start().starts_with(QUOTES) {
        let rest = text.trim();
        return rest.len() < 2 * QUOTES.len() || !rest.ends_with(QUOTES);
    }
    // An even number of backslashes is text.
    (text.len() - text.trim_end_matches('\\').len()) % 2 == 1
}

const QUOTES: &str = "\"\"\"";

/// Takes away what marked several lines as one message.
fn unwrap_multi_line(text: &str) -> String {
    let inner = text.strip_prefix(QUOTES).and_then(|rest| rest.strip_suffix(QUOTES));
    match inner {
        Some(inner) => inner.trim_matches('\n').to_owned(),
        None => text.replace("\\\n", "\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_messages_or_commands() {
        for (line, input) in [
            ("  ", Input::Empty),
            ("hello\n", Input::Message("hello".into())),
            ("//etc/passwd", Input::Message("/etc/passwd".into())),
            ("\"\"\"\na\n\nb\n\"\"\"", Input::Message("a\n\nb".into())),
            ("a\\\nb", Input::Message("a\nb".into())),
            ("a\nb", Input::Message("a\nb".into())),
            ("/think off", Input::Think(false)),
            ("/system  Be brief. ", Input::System(Some("Be brief.".into()))),
            ("/system", Input::System(None)),
            ("/save a b.json", Input::Save { path: "a b.json".into(), overwrite: false }),
            ("/save! x", Input::Save { path: "x".into(), overwrite: true }),
            ("/tool {\"t\": 3}", Input::ToolResult("{\"t\": 3}".into())),
            ("/quit", Input::Exit),
        ] {
            assert_eq!(parse(line), input, "{line:?}");
        }
        for line in ["/save", "/think maybe", "/tool", "/nonsense"] {
            assert!(matches!(parse(line), Input::Wrong(_)), "{line}");
        }
        for name in NAMES {
            assert!(HELP.contains(name), "{name}");
            let known = !matches!(parse(name), Input::Wrong(text) if text.contains("no command"));
            assert!(known, "{name}");
        }
    }

    #[test]
    fn a_backslash_or_open_quotes_ask_for_more() {
        for text in ["a\\", "a\\\nb\\", "\"\"\"", "\"\"\"a", "\"\"\"\na\nb", "a\\\\\\"] {
            assert!(goes_on(text), "{text:?}");
        }
        for text in ["", "a", "a\\\\", "a\\\nb", "\"\"\"a\"\"\"", "\"\"\"\n\"\"\"", "a \"\"\""] {
            assert!(!goes_on(text), "{text:?}");
        }
    }
}
