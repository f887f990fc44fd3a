//! Tools of several types, offered to the model as functions, and its calls led back to them.

use super::items::kind_of;
use crate::error::ApiError;
use crate::generate::task::ToolChoice;
use crate::openai::tools::{choice, function_tool};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The one parameter of a function that stands for a custom tool.
pub(super) const INPUT_PARAMETER: &str = "input";

/// What a function that the model may call is to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Whether it takes free text instead of arguments.
    pub(super) is_custom: bool,
}

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Offer {
    /// As the template knows them.
    pub(super) functions: Vec<Value>,
    origins: HashMap<String, Origin>,
}

/// The name by which the model knows a tool. It depends on nothing else, so that a call in an old turn reads
/// as it did when it was made.
pub(super) fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        None => name.to_owned(),
        Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

impl Offer {
    /// Reads `tools`. Types that a server would run itself (`web_search`, `mcp` and the like) are left out:
    /// this one runs none.
    pub(super) fn read(tools: &[Value]) -> Result<Self, ApiError> {
        let mut offer = Self::default();
        for (index, tool) in tools.iter().enumerate() {
            offer.add(tool, None, &format!("tools[{index}]"))?;
        }
        Ok(offer)
    }

    /// What the client calls a function. One that was not offered is taken as a function of that name.
    pub(super) fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or_else(|| Origin {
            namespace: None,
            name: name.to_owned(),
            is_custom: false,
        })
    }

    /// Reads `tool_choice`; `allowed_tools` takes the others out of the offer.
    pub(super) fn choose(&mut self, value: Option<&Value>) -> Result<ToolChoice, ApiError> {
        let Some(Value::Object(object)) = value else { return choice(value, &self.functions) };
        match object.get("type").and_then(Value::as_str) {
            Some("function" | "custom") => {
                let named = object.get("function").or_else(|| object.get("custom"));
                let named = named.and_then(Value::as_object).unwrap_or(object);
                match flat_name_of(named) {
                    Some(name) => {
                        choice(Some(&json!({"type": "function", "name": name})), &self.functions)
                    }
                    None => Err(ApiError::invalid("tool_choice.name", "tool_choice has no name")),
                }
            }
            Some("allowed_tools") => {
                let inner = object.get("allowed_tools").and_then(Value::as_object);
                let inner = inner.unwrap_or(object);
                let Some(allowed) = inner.get("tools").and_then(Value::as_array) else {
                    let message = "tool_choice.tools is missing: list the tools that are allowed";
                    return Err(ApiError::invalid("tool_choice.tools", message));
                };
                let names: Vec<String> = allowed
                    .iter()
                    .filter_map(Value::as_object)
                    .filter_map(|tool| {
                        flat_name_of(
                            tool.get("function").and_then(Value::as_object).unwrap_or(tool),
                        )
                    })
                    .collect();
                self.functions.retain(|function| {
                    let name = function["function"]["name"].as_str();
                    name.is_some_and(|name| names.iter().any(|allowed| allowed == name))
                });
                let mode = inner.get("mode").and_then(Value::as_str).unwrap_or("auto");
                choice(Some(&json!(mode)), &self.functions)
            }
            _ => choice(value, &self.functions),
        }
    }

    fn add(&mut self, tool: &Value, namespace: Option<&str>, place: &str) -> Result<(), ApiError> {
        let Value::Object(tool) = tool else {
            let message = format!("{place} is {}: a tool is an object with a type", kind_of(tool));
            return Err(ApiError::invalid(place, message));
        };
        match tool.get("type").and_then(Value::as_str).unwrap_or("function") {
            "function" => {
                // Chat completions nest the description, responses do not.
                let nested = tool.get("function").and_then(Value::as_object);
                let function = nested.unwrap_or(tool);
                let parameters = function.get("parameters").cloned();
                self.offer(function, namespace, parameters, false, place)
            }
            "custom" => {
                let parameters = json!({
                    "type": "object",
                    "properties": {INPUT_PARAMETER: {"type": "string"}},
                    "required": [INPUT_PARAMETER],
                });
                let mut tool =
                    tool.get("custom").and_then(Value::as_object).unwrap_or(tool).clone();
                let description = custom_description(&tool);
                tool.insert("description".into(), description.into());
                self.offer(&tool, namespace, Some(parameters), true, place)
            }
            "namespace" => {
                let name = tool.get("name").and_then(Value::as_str);
                let tools = tool.get("tools").and_then(Value::as_array);
                for (index, inner) in tools.into_iter().flatten().enumerate() {
                    self.add(inner, name, &format!("{place}.tools[{index}]"))?;
                }
                Ok(())
            }
            kind => {
                tracing::debug!("{place} of type {kind:?} is left out");
                Ok(())
            }
        }
    }

    fn offer(
        &mut self,
        tool: &Map<String, Value>,
        namespace: Option<&str>,
        parameters: Option<Value>,
        is_custom: bool,
        place: &str,
    ) -> Result<(), ApiError> {
        let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
        // An empty name stays empty, so that it is refused.
        let flat = if name.is_empty() { String::new() } else { flat_name(namespace, name) };
        let mut function = Map::from_iter([("name".to_owned(), Value::from(flat.clone()))]);
        if let Some(description) = tool.get("description").and_then(Value::as_str) {
            function.insert("description".into(), description.into());
        }
        if let Some(parameters) = parameters {
            function.insert("parameters".into(), parameters);
        }
        // The schema of a strict one is enforced to the letter.
        if tool.get("strict") == Some(&Value::Bool(true)) {
            function.insert("strict".into(), true.into());
        }
        self.functions.push(function_tool(function, place).map_err(|mut error| {
            // The description is not nested here.
            error.param = error.param.map(|param| param.replace(".function", ""));
            error
        })?);
        let namespace = namespace.map(str::to_owned);
        let origin = Origin { namespace, name: name.to_owned(), is_custom };
        self.origins.entry(flat).or_insert(origin);
        Ok(())
    }
}

fn flat_name_of(tool: &Map<String, Value>) -> Option<String> {
    let name = tool.get("name").and_then(Value::as_str)?;
    Some(flat_name(tool.get("namespace").and_then(Value::as_str), name))
}

/// A custom tool's description, with the grammar that its input should follow.
fn custom_description(tool: &Map<String, Value>) -> String {
    let description = tool.get("description").and_then(Value::as_str).unwrap_or_default();
    let format = tool.get("format").and_then(Value::as_object);
    let format = format.map(|format| {
        // Chat completions nest the grammar, responses do not.
        format.get("grammar").and_then(Value::as_object).unwrap_or(format)
    });
    let part = |key: &str| format.and_then(|format| format.get(key)).and_then(Value::as_str);
    match (part("definition"), part("syntax")) {
        (Some(definition), syntax) => format!(
            "{description}\n\n`{INPUT_PARAMETER}` is free text that follows this grammar ({}):\n{definition}",
            syntax.unwrap_or("lark")
        ),
        (None, _) => description.to_owned(),
    }
}

/// The tools as a response lists them: functions with all of their keys, the others as they came.
pub(super) fn listed(tools: &[Value]) -> Vec<Value> {
    tools
        .iter()
        .map(|tool| {
            let is_function = tool.get("type").is_none_or(|kind| kind == "function");
            let function = tool.get("function").unwrap_or(tool);
            let part = |key: &str| function.get(key).cloned().unwrap_or_default();
            if is_function {
                json!({
                    "type": "function",
                    "name": part("name"),
                    "description": part("description"),
                    "parameters": part("parameters"),
                    "strict": part("strict"),
                })
            } else {
                tool.clone()
            }
        })
        .collect()
}

/// What a custom tool is given, out of the arguments of the function that stands for it.
pub(super) fn custom_input(arguments: &str) -> String {
    // Where tokens ran out, the string and the object are still open.
    let parsed = serde_json::from_str(arguments)
        .or_else(|error| serde_json::from_str(&format!("{arguments}\"}}")).map_err(|_| error));
    match parsed {
        Ok(Value::Object(mut map)) => match map.remove(INPUT_PARAMETER) {
            Some(Value::String(input)) => input,
            // The model named the one parameter differently.
            None if map.len() == 1 => match map.into_iter().next() {
                Some((_, Value::String(input))) => input,
                _ => arguments.to_owned(),
            },
            _ => arguments.to_owned(),
        },
        _ => arguments.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(offer: &Offer) -> Vec<&str> {
        offer.functions.iter().filter_map(|f| f["function"]["name"].as_str()).collect()
    }

    fn mixed() -> Vec<Value> {
        vec![
            json!({"type": "function", "name": "shell", "description": "Runs.", "strict": false,
                   "parameters": {"type": "object"}}),
            json!({"type": "custom", "name": "apply_patch", "description": "Edits.",
                   "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}),
            json!({"type": "namespace", "name": "mcp__fs", "description": "Files.", "tools": [
                {"type": "function", "name": "read", "parameters": null}]}),
            json!({"type": "web_search"}),
            json!({"type": "image_generation"}),
            json!({"type": "something_new", "name": "x"}),
        ]
    }

    #[test]
    fn tools_of_all_types_become_functions_or_are_left_out() {
        let offer = Offer::read(&mixed()).unwrap();
        assert_eq!(names(&offer), ["shell", "apply_patch", "mcp__fs__read"]);
        assert_eq!(
            offer.functions[0],
            json!({"type": "function", "function": {
                "name": "shell", "description": "Runs.", "parameters": {"type": "object"}}})
        );
        let patch = &offer.functions[1]["function"];
        assert_eq!(patch["parameters"]["required"], json!(["input"]));
        assert!(patch["description"].as_str().unwrap().ends_with("(lark):\nstart: /a/"), "{patch}");
        assert!(offer.functions[2]["function"].get("parameters").is_none());
        assert_eq!(
            offer.origin("mcp__fs__read"),
            Origin { namespace: Some("mcp__fs".into()), name: "read".into(), is_custom: false }
        );
        assert!(offer.origin("apply_patch").is_custom);
        assert_eq!(offer.origin("unknown").name, "unknown");
    }

    #[test]
    fn bad_tools_are_refused_with_their_place() {
        for (tool, param) in [
            (json!(3), "tools[0]"),
            (json!({"type": "function"}), "tools[0].name"),
            (json!({"type": "custom", "name": ""}), "tools[0].name"),
            (json!({"type": "function", "name": "a<b"}), "tools[0].name"),
            (json!({"type": "function", "name": "a", "parameters": 3}), "tools[0].parameters"),
            (json!({"type": "namespace", "name": "n", "tools": [7]}), "tools[0].tools[0]"),
        ] {
            let error = Offer::read(std::slice::from_ref(&tool)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{tool}");
        }
    }

    #[test]
    fn choices_of_all_forms() {
        let chosen = |value: Value| {
            let mut offer = Offer::read(&mixed()).unwrap();
            let choice = offer.choose(Some(&value));
            choice.map(|choice| (choice, names(&offer).len()))
        };
        assert_eq!(chosen(json!("auto")).unwrap(), (ToolChoice::Auto, 3));
        assert_eq!(chosen(json!("none")).unwrap(), (ToolChoice::None, 3));
        assert_eq!(chosen(json!("required")).unwrap(), (ToolChoice::Required, 3));
        let named = |name: &str| (ToolChoice::Named(name.into()), 3);
        assert_eq!(chosen(json!({"type": "function", "name": "shell"})).unwrap(), named("shell"));
        assert_eq!(
            chosen(json!({"type": "custom", "name": "apply_patch"})).unwrap(),
            named("apply_patch")
        );
        assert_eq!(
            chosen(json!({"type": "function", "namespace": "mcp__fs", "name": "read"})).unwrap(),
            named("mcp__fs__read")
        );
        let allowed = |mode: &str| json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "shell"}]});
        assert_eq!(chosen(allowed("auto")).unwrap(), (ToolChoice::Auto, 1));
        assert_eq!(chosen(allowed("required")).unwrap(), (ToolChoice::Required, 1));
        // A tool that is not here cannot be forced: the model decides.
        assert_eq!(chosen(json!({"type": "web_search_preview"})).unwrap(), (ToolChoice::Auto, 3));
        for bad in [
            json!(3),
            json!("sometimes"),
            json!({"type": "function", "name": "absent"}),
            json!({"type": "function"}),
            json!({"type": "allowed_tools", "mode": "auto"}),
            json!({"type": "allowed_tools", "mode": "required", "tools": []}),
        ] {
            let error = chosen(bad.clone()).unwrap_err();
            assert!(error.param.unwrap_or_default().starts_with("tool_choice"), "{bad}");
        }
    }

    #[test]
    fn custom_input_is_found_in_the_arguments() {
        assert_eq!(custom_input(r#"{"input":"a\nb"}"#), "a\nb");
        assert_eq!(custom_input(r#"{"patch":"a"}"#), "a");
        assert_eq!(custom_input(r#"{"input":3}"#), r#"{"input":3}"#);
        assert_eq!(custom_input("{\"input\":\"cut"), "cut");
        assert_eq!(custom_input("{\"input\":"), "{\"input\":");
    }

    #[test]
    fn listed_functions_have_all_keys() {
        let list =
            listed(&[json!({"type": "function", "name": "a"}), json!({"type": "web_search"})]);
        assert_eq!(
            list,
            [
                json!({"type": "function", "name": "a", "description": null, "parameters": null,
                       "strict": null}),
                json!({"type": "web_search"}),
            ]
        );
    }
}
