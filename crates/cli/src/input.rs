//! What commands read: text and JSON from files or standard input, messages and tools.

use crate::args::ThinkArgs;
use crate::output;
use anyhow::{Context, bail};
use calla_text::{Message, RenderOptions, check_messages};
use serde_json::{Map, Value};
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// Input beyond this is refused: no prompt of any model of the family is that long. The tokenizer's own bound
/// on one text is lower.
const INPUT_BYTES_MAX: u64 = 64 << 20;

/// Keys of a message that have a meaning here.
const MESSAGE_KEYS: [&str; 6] =
    ["role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"];

/// Messages, and the tools and settings that came with them.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<Value>,
    pub(crate) settings: TemplateSettings,
}

/// What a request tells the chat template; what it leaves out is for flags or the template to say.
#[derive(Clone, Debug, Default)]
pub(crate) struct TemplateSettings {
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) preserve_thinking: Option<bool>,
    pub(crate) add_generation_prompt: Option<bool>,
    /// The rest of `chat_template_kwargs`.
    pub(crate) variables: Map<String, Value>,
}

impl Conversation {
    /// What the template is told, flags first.
    pub(crate) fn render_options(&self, think: &ThinkArgs) -> RenderOptions {
        self.settings.render_options(self.tools.clone(), think)
    }
}

impl TemplateSettings {
    /// Takes the settings out of a request, its own keys before `chat_template_kwargs`.
    fn take(request: &mut Map<String, Value>) -> anyhow::Result<Self> {
        let mut variables = match request.remove("chat_template_kwargs") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(map)) => map,
            Some(_) => bail!("\"chat_template_kwargs\" is not an object"),
        };
        let mut switch = |name: &str| {
            let nested = variables.remove(name);
            match request.remove(name).filter(|value| !value.is_null()).or(nested) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::Bool(on)) => Ok(Some(on)),
                Some(_) => Err(anyhow::anyhow!("{name:?} is neither true nor false")),
            }
        };
        Ok(Self {
            enable_thinking: switch("enable_thinking")?,
            preserve_thinking: switch("preserve_thinking")?,
            add_generation_prompt: switch("add_generation_prompt")?,
            variables,
        })
    }

    /// What the template is told, flags first.
    pub(crate) fn render_options(&self, tools: Vec<Value>, think: &ThinkArgs) -> RenderOptions {
        RenderOptions {
            tools,
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            enable_thinking: think.enable_thinking().or(self.enable_thinking),
            preserve_thinking: think.preserve().or(self.preserve_thinking),
            variables: self.variables.clone(),
        }
    }
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
                output::note("reading from the terminal; end with Ctrl-D on an empty line");
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

/// `{"messages": [...], "tools": [...], "enable_thinking": ...}` or a list of messages. Says on standard
/// error which keys have no meaning here.
pub(crate) fn conversation(file: Option<&Path>) -> anyhow::Result<Conversation> {
    let (conversation, unused) = parse_conversation(json(file)?).with_context(|| name(file))?;
    if !unused.is_empty() {
        output::note(&format!("{}: not used: {}", name(file), unused.join(", ")));
    }
    Ok(conversation)
}

/// A conversation, and the keys in it that have no meaning here.
fn parse_conversation(value: Value) -> anyhow::Result<(Conversation, Vec<String>)> {
    let mut request = match value {
        Value::Object(map) => map,
        list @ Value::Array(_) => Map::from_iter([("messages".to_owned(), list)]),
        _ => bail!("expected a list of messages, or an object with \"messages\" and \"tools\""),
    };
    let messages = match request.remove("messages") {
        Some(Value::Array(messages)) => messages,
        Some(_) => bail!("\"messages\" is not a list"),
        None => bail!("the object has no \"messages\""),
    };
    if messages.is_empty() {
        bail!("the list of messages is empty");
    }
    let tools = request.remove("tools").map_or(Ok(Vec::new()), tool_list)?;
    let settings = TemplateSettings::take(&mut request)?;
    let mut unused: Vec<String> = request.keys().map(|key| format!("{key:?}")).collect();
    // Each key is told once, however many messages have it.
    let mut told = std::collections::HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        for key in message.as_object().into_iter().flat_map(Map::keys) {
            if !MESSAGE_KEYS.contains(&key.as_str()) && told.insert(key) {
                unused.push(format!("{key:?} of message {index}"));
            }
        }
    }
    let messages = messages
        .iter()
        .enumerate()
        .map(|(index, value)| message(value).with_context(|| format!("message {index}")))
        .collect::<anyhow::Result<Vec<Message>>>()?;
    // Before any rearrangement, so that indices in errors are those of the request.
    check_messages(&messages)?;
    Ok((Conversation { messages, tools, settings }, unused))
}

fn message(value: &Value) -> anyhow::Result<Message> {
    if value["role"] == "user" && value["content"].is_null() {
        let keys: Vec<&str> =
            value.as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect();
        bail!("a message of the user without \"content\"; its keys are {}", keys.join(", "));
    }
    Ok(serde::Deserialize::deserialize(value)?)
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
    tool_list(tools).with_context(|| file.display().to_string())
}

/// Checks that each tool has a name; a bare function gets its wrapper.
fn tool_list(tools: Value) -> anyhow::Result<Vec<Value>> {
    let list = match tools {
        Value::Null => Vec::new(),
        Value::Array(list) => list,
        _ => bail!("the tools are not a list"),
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
                    "tool {index} has no name; expected \
                     {{\"type\": \"function\", \"function\": {{\"name\": ..., \"parameters\": ...}}}}"
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: Value) -> anyhow::Result<(Conversation, Vec<String>)> {
        parse_conversation(value)
    }

    #[test]
    fn settings_of_a_request_count_and_flags_win_over_them() {
        let messages = json!([{"role": "user", "content": "a"}]);
        let no_flags = ThinkArgs {
            think: false,
            no_think: false,
            thinking_budget: None,
            preserve_thinking: false,
        };
        let (plain, unused) = parse(messages.clone()).unwrap();
        let options = plain.render_options(&no_flags);
        assert_eq!((options.enable_thinking, options.preserve_thinking), (None, None));
        assert!(options.add_generation_prompt && unused.is_empty());

        let (request, unused) = parse(json!({
            "messages": messages,
            "enable_thinking": false,
            "add_generation_prompt": false,
            "chat_template_kwargs":
                {"enable_thinking": true, "preserve_thinking": true, "colour": "red"},
            "tools": [{"name": "clock"}],
        }))
        .unwrap();
        assert_eq!(unused, Vec::<String>::new());
        let options = request.render_options(&no_flags);
        assert_eq!(options.enable_thinking, Some(false));
        assert_eq!(options.preserve_thinking, Some(true));
        assert!(!options.add_generation_prompt);
        assert_eq!(options.variables["colour"], "red");
        assert_eq!(options.tools[0]["function"]["name"], "clock");
        let think = ThinkArgs { think: true, ..no_flags };
        assert_eq!(request.render_options(&think).enable_thinking, Some(true));
    }

    #[test]
    fn keys_without_a_meaning_are_named() {
        let (_, unused) = parse(json!({
            "model": "x",
            "messages": [
                {"role": "user", "content": "a", "mood": 1},
                {"role": "assistant", "content": "b", "mood": 2},
            ],
        }))
        .unwrap();
        assert_eq!(unused, ["\"model\"", "\"mood\" of message 0"]);
        for (value, words) in [
            (json!([{"role": "user", "contents": "x"}]), "keys are role, contents"),
            (json!([{"role": "user", "content": null}]), "without \"content\""),
            (json!({"messages": [], "enable_thinking": true}), "is empty"),
            (json!({"messages": [{"role": "tool"}], "enable_thinking": 1}), "neither true nor"),
            (json!({"messages": [{"role": "tool"}], "chat_template_kwargs": 1}), "not an object"),
        ] {
            let message = format!("{:#}", parse(value).unwrap_err());
            assert!(message.contains(words), "{message}");
        }
    }
}
