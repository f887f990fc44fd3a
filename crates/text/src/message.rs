//! Chat messages as clients send them.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "Value")]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions under their newer name; the family's templates refuse it, see [`normalise`](crate::normalise()).
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The role as templates know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl TryFrom<Value> for Role {
    type Error = String;

    fn try_from(role: Value) -> Result<Role, String> {
        let all = [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool];
        all.into_iter().find(|known| role == known.as_str()).ok_or_else(|| {
            let role: String = role.to_string().chars().take(80).collect();
            format!("`role` is {role}: system, developer, user, assistant or tool is allowed")
        })
    }
}

/// What a message says.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// `null` or absent.
    #[default]
    Null,
    /// One text.
    Text(String),
    /// Parts, which templates join without a separator.
    Parts(Vec<Part>),
}

impl Content {
    /// All text, joined; nothing for parts that are not text.
    pub fn text(&self) -> String {
        match self {
            Content::Null => String::new(),
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => text.as_str(),
                    Part::Unsupported { .. } => "",
                })
                .collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        let parts = match Value::deserialize(deserializer)? {
            Value::Null => return Ok(Content::Null),
            Value::String(text) => return Ok(Content::Text(text)),
            Value::Array(parts) => parts,
            other => {
                let what = match other {
                    Value::Bool(_) => "true or false",
                    Value::Number(_) => "a number",
                    _ => "an object",
                };
                return Err(D::Error::custom(format!(
                    "`content` is {what}: a text, a list of parts or null is allowed"
                )));
            }
        };
        let part = |(index, part)| {
            Part::deserialize(part)
                .map_err(|e: serde_json::Error| D::Error::custom(format!("part {index}: {e}")))
        };
        parts.into_iter().enumerate().map(part).collect::<Result<_, _>>().map(Content::Parts)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Content {
        Content::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Content {
        Content::Text(text)
    }
}

/// One part of a content list.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// `{"type": "text", "text": ...}` or a bare string.
    Text(String),
    /// An image, video, audio or anything else: accepted here, refused by
    /// [`ChatTemplate::render`](crate::ChatTemplate::render) with the kind in the message.
    Unsupported {
        /// The part's `type`, or the first key if it has none.
        kind: String,
    },
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Part::Text(text) => json!({"type": "text", "text": text}).serialize(serializer),
            Part::Unsupported { kind } => json!({ "type": kind }).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Part, D::Error> {
        let map = match Value::deserialize(deserializer)? {
            Value::String(text) => return Ok(Part::Text(text)),
            Value::Object(map) => map,
            _ => return Err(D::Error::custom("a content part is neither a string nor an object")),
        };
        let kind = map.get("type").and_then(Value::as_str);
        match (kind, map.get("text")) {
            // `input_text` and `output_text` are the names of the responses API.
            (None | Some("text" | "input_text" | "output_text"), Some(Value::String(text))) => {
                Ok(Part::Text(text.clone()))
            }
            (Some("text" | "input_text" | "output_text"), _) => {
                Err(D::Error::custom("a text part has no string in `text`"))
            }
            (Some(kind), _) => Ok(Part::Unsupported { kind: kind.to_owned() }),
            (None, _) => match map.keys().next() {
                Some(key) => Ok(Part::Unsupported { kind: key.clone() }),
                None => Err(D::Error::custom("a content part is empty")),
            },
        }
    }
}

/// A call that an earlier reply made.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The call's id; templates of the family do not print it.
    pub id: Option<String>,
    /// Name of the function.
    pub name: String,
    /// Its arguments, in the order given.
    pub arguments: Map<String, Value>,
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let function = json!({"name": self.name, "arguments": self.arguments});
        match &self.id {
            Some(id) => json!({"id": id, "type": "function", "function": function}),
            None => json!({"type": "function", "function": function}),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolCall {
    /// Takes `{"id", "type", "function": {"name", "arguments"}}` or the inner object alone, and
    /// arguments as an object or as a string of JSON: clients send the string, templates need the
    /// object.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ToolCall, D::Error> {
        let mut outer = Map::<String, Value>::deserialize(deserializer)?;
        let id = match outer.remove("id") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(id),
            Some(_) => return Err(D::Error::custom("a tool call's `id` is not a string")),
        };
        let mut inner = match outer.remove("function") {
            None => outer,
            Some(Value::Object(function)) => function,
            Some(_) => return Err(D::Error::custom("a tool call's `function` is not an object")),
        };
        let Some(Value::String(name)) = inner.remove("name") else {
            return Err(D::Error::custom("a tool call has no string in `name`"));
        };
        let arguments = match inner.remove("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(Value::String(text)) if text.trim().is_empty() => Map::new(),
            Some(Value::String(text)) => serde_json::from_str(&text).map_err(|e| {
                D::Error::custom(format!(
                    "the arguments of the call to {name:?} are not a JSON object: {e}"
                ))
            })?,
            Some(_) => {
                return Err(D::Error::custom(format!(
                    "the arguments of the call to {name:?} are neither an object nor a string of one"
                )));
            }
        };
        Ok(ToolCall { id, name, arguments })
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "a message: an object with `role` and `content`")]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    #[serde(default)]
    pub content: Content,
    /// The thinking of an earlier reply, apart from its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls that an earlier reply made.
    #[serde(default, deserialize_with = "list_or_null", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool message answers; templates of the family go by order instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the speaker or the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

fn list_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ToolCall>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Message {
    /// A message with nothing but a role and a content.
    pub fn new(role: Role, content: impl Into<Content>) -> Message {
        Message {
            role,
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Vec<Message>, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn reads_what_clients_send() {
        let messages = parse(
            r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"text": "c"}]},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "1", "type": "function",
                     "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2]}"}},
                    {"name": "g", "arguments": {"x": null}},
                    {"function": {"name": "h", "arguments": ""}}]},
                {"role": "assistant", "tool_calls": null},
                {"role": "tool", "content": "r", "tool_call_id": "1"}]"#,
        )
        .unwrap();
        assert_eq!(messages[0].content.text(), "abc");
        let calls = &messages[1].tool_calls;
        assert_eq!(serde_json::to_string(&calls[0].arguments).unwrap(), r#"{"z":1,"a":[2]}"#);
        assert_eq!(calls[1].arguments["x"], Value::Null);
        assert!(calls[2].arguments.is_empty());
        assert!(messages[2].tool_calls.is_empty());
        assert_eq!(messages[3].tool_call_id.as_deref(), Some("1"));
        let again: Vec<Message> =
            serde_json::from_str(&serde_json::to_string(&messages).unwrap()).unwrap();
        assert_eq!(again[1..], messages[1..]);
    }

    #[test]
    fn says_what_is_wrong_with_a_message() {
        for (json, words) in [
            (r#"[{"role": "wizard", "content": ""}]"#, "`role` is \"wizard\": system, developer"),
            (r#"[{"role": 5, "content": ""}]"#, "`role` is 5: system, developer"),
            (
                r#"[{"role": "user", "content": 5}]"#,
                "`content` is a number: a text, a list of parts",
            ),
            (r#"[{"role": "user", "content": {"text": "a"}}]"#, "`content` is an object"),
            (r#"[{"role": "user", "content": ["a", 5]}]"#, "part 1: a content part is neither"),
            (r#"["hi"]"#, "expected a message: an object with `role` and `content`"),
            (
                r#"[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}]"#,
                "not a JSON object",
            ),
            (
                r#"[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}]"#,
                "call to \"f\"",
            ),
            (r#"[{"role": "assistant", "tool_calls": [{"arguments": {}}]}]"#, "name"),
            (
                r#"[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": 3}]}]"#,
                "neither",
            ),
        ] {
            let message = parse(json).unwrap_err().to_string();
            assert!(message.contains(words), "{json}: {message}");
        }
    }
}
