//! What commands read: text and JSON from files or standard input, messages and tools.

use anyhow::{Context, bail};
use calla_text::Message;
use serde_json::Value;
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// Input beyond this is refused: no prompt of any model of the family is that long.
const INPUT_BYTES_MAX: u64 = 256 << 20;

/// Messages, and the tools that came with them.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<Value>,
}

/// Text of a file, or of standard input if there is none or it is `-`.
pub(crate) fn text(file: Option<&Path>) -> anyhow::Result<String> {
    match file {
        Some(path) if path != Path::new("-") => {
            let file =
                fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            utf8(file, &path.display().to_string())
        }
        _ => {
            if io::stdin().is_terminal() {
                crate::output::note("reading from the terminal; end with Ctrl-D on an empty line");
            }
            utf8(io::stdin().lock(), "standard input")
        }
    }
}

fn utf8(reader: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    reader
        .take(INPUT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        bail!("{name} is longer than {INPUT_BYTES_MAX} bytes");
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{name} is not UTF-8 text: the byte at offset {at} does not belong")
    })
}

/// JSON of a file or of standard input.
pub(crate) fn json(file: Option<&Path>) -> anyhow::Result<Value> {
    let text = text(file)?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", name(file)))
}

/// `{"messages": [...], "tools": [...]}` or a list of messages.
pub(crate) fn conversation(file: Option<&Path>) -> anyhow::Result<Conversation> {
    let (messages, tools) = match json(file)? {
        Value::Object(mut map) => match map.remove("messages") {
            Some(messages) => (messages, map.remove("tools")),
            None => bail!("{}: the object has no \"messages\"", name(file)),
        },
        list @ Value::Array(_) => (list, None),
        _ => bail!(
            "{}: expected a list of messages, or an object with \"messages\" and \"tools\"",
            name(file)
        ),
    };
    let Value::Array(messages) = messages else {
        bail!("{}: \"messages\" is not a list", name(file));
    };
    if messages.is_empty() {
        bail!("{}: the list of messages is empty", name(file));
    }
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| {
            serde_json::from_value(message)
                .with_context(|| format!("{}: message {index}", name(file)))
        })
        .collect::<anyhow::Result<_>>()?;
    let tools = tools.map_or(Ok(Vec::new()), |tools| tool_list(tools, file))?;
    Ok(Conversation { messages, tools })
}

/// Tools from a file: a list, or an object with `tools`.
pub(crate) fn tools(file: &Path) -> anyhow::Result<Vec<Value>> {
    let tools = match json(Some(file))? {
        Value::Object(mut map) => match map.remove("tools") {
            Some(tools) => tools,
            None => bail!("{}: the object has no \"tools\"", file.display()),
        },
        list => list,
    };
    tool_list(tools, Some(file))
}

/// Checks that each tool has a name; a bare function gets its wrapper.
fn tool_list(tools: Value, file: Option<&Path>) -> anyhow::Result<Vec<Value>> {
    let list = match tools {
        Value::Null => Vec::new(),
        Value::Array(list) => list,
        _ => bail!("{}: the tools are not a list", name(file)),
    };
    list.into_iter()
        .enumerate()
        .map(|(index, tool)| {
            if tool["function"]["name"].is_string() {
                Ok(tool)
            } else if tool["name"].is_string() {
                Ok(serde_json::json!({"type": "function", "function": tool}))
            } else {
                bail!(
                    "{}: tool {index} has no name; expected \
                     {{\"type\": \"function\", \"function\": {{\"name\": ..., \"parameters\": ...}}}}",
                    name(file)
                )
            }
        })
        .collect()
}

fn name(file: Option<&Path>) -> String {
    match file {
        Some(path) if path != Path::new("-") => path.display().to_string(),
        _ => "standard input".to_owned(),
    }
}
