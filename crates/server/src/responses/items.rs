//! Items of a request's `input`, translated to messages.
//!
//! An assistant's turn is spread over several items (`reasoning`, `message`, `function_call`), which become
//! one message again: a client that sends back what it was given continues the very prompt that the reply
//! came from.

use super::tools::{INPUT_PARAMETER, flat_name};
use crate::error::ApiError;
use calla_text::{Content, Message, Role, ToolCall};
use serde_json::{Map, Value, json};

/// What our own `encrypted_content` begins with. Behind it stands the thinking as it is: it is no secret, and
/// a client that keeps nothing else of it can still send it back.
const THINKING_MARK: &str = "calla-thinking-1:";
/// Characters of a bad value that an error repeats.
const QUOTED_CHARS_MAX: usize = 80;

/// The conversation that items make.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    messages: Vec<Message>,
    /// Whether the last message is an assistant's turn that goes on.
    is_turn_open: bool,
    /// Tools that came as items.
    tools: Vec<Value>,
}

/// Thinking in a form that a client carries along without reading it.
pub(super) fn seal(thinking: &str) -> String {
    format!("{THINKING_MARK}{thinking}")
}

impl Conversation {
    /// A conversation that begins with instructions, if there are any.
    pub(super) fn new(instructions: Option<&str>) -> Self {
        let instructions = instructions.filter(|text| !text.is_empty());
        let messages = instructions.map(|text| Message::new(Role::System, text));
        Self { messages: messages.into_iter().collect(), ..Self::default() }
    }

    /// Adds an item. `place` is its path in the request, for errors.
    ///
    /// Kinds that are not known and carry nothing for the model are left out.
    pub(super) fn add(&mut self, item: &Value, place: &str) -> Result<(), ApiError> {
        let Value::Object(item) = item else {
            let message = format!("{place} is {}: an item is an object with a type", kind_of(item));
            return Err(ApiError::invalid(place, message));
        };
        let kind = match item.get("type") {
            None | Some(Value::Null) if item.contains_key("role") => "message",
            Some(Value::String(kind)) => kind,
            None | Some(Value::Null) => {
                let message = format!("{place} has neither a type nor a role");
                return Err(ApiError::invalid(place, message));
            }
            Some(other) => {
                let message = format!("{place}.type is {}: a string is allowed", kind_of(other));
                return Err(ApiError::invalid(format!("{place}.type"), message));
            }
        };
        match kind {
            "message" => self.message(item, place),
            "agent_message" => {
                let text = content(item.get("content"), &format!("{place}.content"))?;
                self.say(Role::User, text);
                Ok(())
            }
            "reasoning" => {
                let text = thinking(item);
                let turn =
                    self.turn(|turn| turn.content != Content::Null || !turn.tool_calls.is_empty());
                turn.reasoning_content.get_or_insert_default().push_str(&text);
                Ok(())
            }
            "function_call" => {
                let name = flat_name(string(item, "namespace"), name(item, place)?);
                match arguments(item.get("arguments"), &name, place) {
                    Ok(arguments) => self.call(item, name, arguments),
                    // Tokens ran out inside of it: it was not run, and the conversation can do without it.
                    Err(_) if string(item, "status") == Some("incomplete") => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            }
            "custom_tool_call" => {
                let name = flat_name(string(item, "namespace"), name(item, place)?);
                let input = string(item, "input").unwrap_or_default();
                self.call(item, name, Map::from_iter([(INPUT_PARAMETER.into(), input.into())]));
                Ok(())
            }
            "additional_tools" => {
                let tools = item.get("tools").and_then(Value::as_array);
                self.tools.extend(tools.into_iter().flatten().cloned());
                Ok(())
            }
            // Parts that stand alone, as some clients write them.
            "input_text" | "text" | "input_image" | "input_file" | "input_audio" => {
                let mut text = String::new();
                push_part(&Value::Object(item.clone()), place, &mut text)?;
                self.say(Role::User, text);
                Ok(())
            }
            _ => self.foreign(kind, item, place),
        }
    }

    /// The messages, and tools that came as items.
    pub(super) fn finish(mut self) -> (Vec<Message>, Vec<Value>) {
        order_results(&mut self.messages);
        (self.messages, self.tools)
    }

    fn message(&mut self, item: &Map<String, Value>, place: &str) -> Result<(), ApiError> {
        let role = match string(item, "role") {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("system") => Role::System,
            Some("developer") => Role::Developer,
            other => {
                let role = quoted(other.unwrap_or_default());
                let message = format!(
                    "{place}.role must be user, assistant, system or developer but is {role}"
                );
                return Err(ApiError::invalid(format!("{place}.role"), message));
            }
        };
        let text = content(item.get("content"), &format!("{place}.content"))?;
        if role != Role::Assistant {
            self.say(role, text);
            return Ok(());
        }
        let turn = self.turn(|turn| turn.content != Content::Null && turn.tool_calls.is_empty());
        turn.content = Content::Text(turn.content.text() + &text);
        Ok(())
    }

    fn say(&mut self, role: Role, text: String) {
        self.is_turn_open = false;
        self.messages.push(Message::new(role, text));
    }

    /// The assistant's turn that goes on, or a new one if there is none or `is_over` says so of it.
    fn turn(&mut self, is_over: impl Fn(&Message) -> bool) -> &mut Message {
        let goes_on = self.is_turn_open && self.messages.last().is_some_and(|turn| !is_over(turn));
        if !goes_on {
            self.messages.push(Message::new(Role::Assistant, Content::Null));
            self.is_turn_open = true;
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn call(&mut self, item: &Map<String, Value>, name: String, arguments: Map<String, Value>) {
        let id = string(item, "call_id").or_else(|| string(item, "id")).map(str::to_owned);
        self.turn(|_| false).tool_calls.push(ToolCall { id, name, arguments });
    }

    fn result(&mut self, call_id: Option<&str>, text: String) {
        self.is_turn_open = false;
        let tool_call_id = call_id.map(str::to_owned);
        self.messages.push(Message { tool_call_id, ..Message::new(Role::Tool, text) });
    }

    /// Items of tools that this server does not offer: a call that a client ran, and its result, stay in the
    /// conversation; what another server ran by itself is left out.
    fn foreign(
        &mut self,
        kind: &str,
        item: &Map<String, Value>,
        place: &str,
    ) -> Result<(), ApiError> {
        let call_id = string(item, "call_id");
        if kind == "mcp_call" {
            let name = name(item, place)?.to_owned();
            let arguments = arguments(item.get("arguments"), &name, place)?;
            self.call(item, name, arguments);
            let result = string(item, "output").or_else(|| string(item, "error"));
            self.result(string(item, "id"), result.unwrap_or_default().to_owned());
        } else if let Some(name) = kind.strip_suffix("_call")
            && call_id.is_some()
        {
            let given = ["action", "operation", "arguments"].iter().find_map(|key| item.get(*key));
            let arguments = match given {
                Some(Value::Object(arguments)) => arguments.clone(),
                Some(other) => Map::from_iter([("arguments".into(), other.clone())]),
                None => Map::new(),
            };
            self.call(item, name.to_owned(), arguments);
        } else if let Some(output) = item.get("output")
            && kind.ends_with("_output")
        {
            let text = content(Some(output), &format!("{place}.output"))?;
            self.result(call_id.or_else(|| string(item, "id")), text);
        } else {
            tracing::debug!("{place} of type {kind:?} is left out");
        }
        Ok(())
    }
}

/// Puts the results of several calls in the calls' order, by which the template tells whose they are.
fn order_results(messages: &mut [Message]) {
    let mut start = 0;
    while start < messages.len() {
        let (head, tail) = messages.split_at_mut(start + 1);
        let calls = &head[start].tool_calls;
        let results = tail.iter().take_while(|message| message.role == Role::Tool).count();
        if calls.len() > 1 && results > 1 {
            tail[..results].sort_by_key(|result| {
                let place = calls.iter().position(|call| call.id == result.tool_call_id);
                place.unwrap_or(calls.len())
            });
        }
        start += results + 1;
    }
}

/// The thinking that an item carries: ours in `encrypted_content`, else the text that can be read.
fn thinking(item: &Map<String, Value>) -> String {
    let sealed = string(item, "encrypted_content");
    if let Some(text) = sealed.and_then(|text| text.strip_prefix(THINKING_MARK)) {
        return text.to_owned();
    }
    let texts = |key: &str| {
        let parts = item.get(key).and_then(Value::as_array).into_iter().flatten();
        let texts = parts.filter_map(|part| part.get("text").and_then(Value::as_str));
        texts.collect::<Vec<_>>().join("\n\n")
    };
    let text = texts("content");
    if text.is_empty() { texts("summary") } else { text }
}

/// The text of a content or an output: a string, a list of parts, or any other value as its JSON.
fn content(value: Option<&Value>, place: &str) -> Result<String, ApiError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (index, part) in parts.iter().enumerate() {
                push_part(part, &format!("{place}[{index}]"), &mut text)?;
            }
            Ok(text)
        }
        Some(part @ Value::Object(object)) if object.contains_key("type") => {
            let mut text = String::new();
            push_part(part, place, &mut text)?;
            Ok(text)
        }
        Some(other) => Ok(other.to_string()),
    }
}

/// Adds the text of a part.
fn push_part(part: &Value, place: &str, out: &mut String) -> Result<(), ApiError> {
    let text = match part {
        Value::String(text) => Some(text.as_str()),
        Value::Object(part) => match string(part, "type") {
            Some("refusal") => string(part, "refusal"),
            _ => string(part, "text"),
        },
        _ => None,
    };
    if let Some(text) = text {
        out.push_str(text);
        return Ok(());
    }
    let kind = part.get("type").and_then(Value::as_str);
    let message = match kind {
        Some("input_text" | "output_text" | "text" | "refusal") => {
            format!("{place} of type {} has no text", quoted(kind.unwrap_or_default()))
        }
        Some(kind) => format!(
            "{place} is of type {}: only text is supported, the model is loaded without its image encoder. \
             Leave the part out or describe it in words",
            quoted(kind)
        ),
        None => format!("{place} is {}: a part is an object with a type", kind_of(part)),
    };
    let error = ApiError::invalid(place, message);
    Err(if kind.is_some() { error.with_code("unsupported_content") } else { error })
}

/// A call's arguments: a JSON object, mostly as a string.
fn arguments(
    value: Option<&Value>,
    name: &str,
    place: &str,
) -> Result<Map<String, Value>, ApiError> {
    let bad = |why: String| {
        let message = format!("{place}.arguments of the call to {}: {why}", quoted(name));
        ApiError::invalid(format!("{place}.arguments"), message)
    };
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(arguments)) => Ok(arguments.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => {
            serde_json::from_str(text).map_err(|error| bad(format!("not a JSON object: {error}")))
        }
        Some(other) => Err(bad(format!("{} instead of a JSON object", kind_of(other)))),
    }
}

/// The name of a call.
fn name<'a>(item: &'a Map<String, Value>, place: &str) -> Result<&'a str, ApiError> {
    string(item, "name").filter(|name| !name.is_empty()).ok_or_else(|| {
        ApiError::invalid(format!("{place}.name"), format!("{place} is a call without a name"))
    })
}

fn string<'a>(item: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    item.get(key).and_then(Value::as_str)
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(QUOTED_CHARS_MAX).collect::<String>())
}

/// What kind of JSON a value is, in words.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// An item as it is kept and listed: with an id, a type and content in parts.
pub(super) fn complete(mut item: Value, id: impl FnOnce(&str) -> String) -> Value {
    let Value::Object(map) = &mut item else { return item };
    if map.contains_key("role") {
        map.entry("type").or_insert_with(|| "message".into());
    }
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind == "message"
        && let Some(Value::String(text)) = map.get("content")
    {
        let is_reply = map.get("role").is_some_and(|role| role == "assistant");
        let part = if is_reply {
            json!({"type": "output_text", "text": text, "annotations": []})
        } else {
            json!({"type": "input_text", "text": text})
        };
        map.insert("content".into(), json!([part]));
    }
    if map.get("id").is_none_or(Value::is_null) {
        let prefix = match kind.as_str() {
            "message" => "msg",
            "reasoning" => "rs",
            "function_call" => "fc",
            "function_call_output" => "fco",
            "custom_tool_call" => "ctc",
            "custom_tool_call_output" => "ctco",
            _ => "item",
        };
        map.insert("id".into(), id(prefix).into());
    }
    item
}

#[cfg(test)]
#[path = "items_tests.rs"]
mod tests;
