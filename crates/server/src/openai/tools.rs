//! Tools and the choice among them, as chat completions write them.

use crate::error::ApiError;
use crate::generate::task::ToolChoice;
use serde_json::{Map, Value, json};

/// Longest name of a tool, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Checks tools and brings them into the form that the template knows. Those of a type that a server would
/// run itself (`web_search` and the like) are left out: this one has none.
pub(crate) fn functions(tools: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let mut functions = Vec::with_capacity(tools.len());
    for (index, tool) in tools.into_iter().enumerate() {
        let place = format!("tools[{index}]");
        let Value::Object(mut tool) = tool else {
            return Err(ApiError::invalid(place, format!("tools[{index}] is not an object")));
        };
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        if kind != "function" {
            tracing::debug!("{place} of type {kind:?} is left out");
            continue;
        }
        let function = match tool.remove("function") {
            Some(Value::Object(function)) => function,
            // The flat form of the responses API.
            None => tool,
            Some(_) => {
                let message = format!("{place}.function is not an object");
                return Err(ApiError::invalid(format!("{place}.function"), message));
            }
        };
        functions.push(function_tool(function, &place)?);
    }
    Ok(functions)
}

/// A function's description in the form that the template knows.
pub(crate) fn function_tool(
    mut function: Map<String, Value>,
    place: &str,
) -> Result<Value, ApiError> {
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['<', '>', '\n']) {
        let message = format!(
            "the name of a function must have 1 to {NAME_BYTES_MAX} bytes, without <, > and line feeds, but is \
             {:?}",
            name.chars().take(80).collect::<String>()
        );
        return Err(ApiError::invalid(format!("{place}.function.name"), message));
    }
    match function.get("parameters") {
        None | Some(Value::Object(_)) => {}
        Some(Value::Null) => {
            function.remove("parameters");
        }
        Some(_) => {
            let place = format!("{place}.function.parameters");
            let message = format!("{place} is not an object: give a JSON Schema");
            return Err(ApiError::invalid(place, message));
        }
    }
    // `type` of the flat form is that of the wrapper.
    function.remove("type");
    Ok(json!({"type": "function", "function": function}))
}

/// The choice that a request makes.
pub(crate) fn choice(choice: Option<&Value>, tools: &[Value]) -> Result<ToolChoice, ApiError> {
    let invalid = |message: String| ApiError::invalid("tool_choice", message);
    let choice = match choice {
        None | Some(Value::Null) => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" | "any" => ToolChoice::Required,
            _ => {
                let word: String = word.chars().take(80).collect();
                return Err(invalid(format!(
                    "tool_choice must be auto, none, required or an object that names a function, but is \
                     {word:?}"
                )));
            }
        },
        Some(Value::Object(object)) => match object.get("type").and_then(Value::as_str) {
            Some("function") => {
                // Chat completions nest the name, responses do not.
                let nested = object.get("function").and_then(|function| function.get("name"));
                let name = nested.or_else(|| object.get("name")).and_then(Value::as_str);
                let name = name.ok_or_else(|| {
                    invalid("tool_choice of type function has no name".to_owned())
                })?;
                ToolChoice::Named(name.to_owned())
            }
            Some("allowed_tools") => {
                let inner = object.get("allowed_tools").and_then(Value::as_object);
                let mode = inner.unwrap_or(object).get("mode").and_then(Value::as_str);
                if mode == Some("required") { ToolChoice::Required } else { ToolChoice::Auto }
            }
            Some("auto") => ToolChoice::Auto,
            Some("none") => ToolChoice::None,
            Some("any" | "required") => ToolChoice::Required,
            // A tool that this server does not have: the model decides.
            Some(_) => ToolChoice::Auto,
            None => return Err(invalid("tool_choice has no type".to_owned())),
        },
        Some(_) => return Err(invalid("tool_choice is neither a string nor an object".to_owned())),
    };
    let names = || tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
    match &choice {
        ToolChoice::Named(name) if !names().any(|known| known == name) => {
            let known = names().take(20).collect::<Vec<_>>().join(", ");
            let name: String = name.chars().take(80).collect();
            Err(invalid(format!("tool_choice names {name:?}, but the tools are: {known}")))
        }
        ToolChoice::Required if tools.is_empty() => {
            Err(invalid("tool_choice is required, but there are no tools".to_owned()))
        }
        _ => Ok(choice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_checked_and_foreign_types_left_out() {
        let tools = functions(vec![
            json!({"type": "function", "function": {"name": "a", "parameters": null}}),
            json!({"type": "web_search"}),
            json!({"type": "function", "name": "b", "parameters": {"type": "object"}}),
        ])
        .unwrap();
        assert_eq!(
            tools,
            [
                json!({"type": "function", "function": {"name": "a"}}),
                json!({"type": "function", "function": {"name": "b", "parameters": {"type": "object"}}}),
            ]
        );
        for (tool, place) in [
            (json!(3), "tools[0]"),
            (json!({"type": "function"}), "tools[0].function.name"),
            (json!({"type": "function", "function": 3}), "tools[0].function"),
            (json!({"type": "function", "function": {"name": 3}}), "tools[0].function.name"),
            (json!({"type": "function", "function": {"name": "a>"}}), "tools[0].function.name"),
            (
                json!({"type": "function", "function": {"name": "a", "parameters": 3}}),
                "tools[0].function.parameters",
            ),
        ] {
            assert_eq!(functions(vec![tool]).unwrap_err().param.as_deref(), Some(place));
        }
    }

    #[test]
    fn choices() {
        let tools = functions(vec![json!({"function": {"name": "a"}})]).unwrap();
        for (written, meant) in [
            (json!(null), ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (json!({"type": "function", "function": {"name": "a"}}), ToolChoice::Named("a".into())),
            (json!({"type": "function", "name": "a"}), ToolChoice::Named("a".into())),
            (
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "required"}}),
                ToolChoice::Required,
            ),
            (json!({"type": "web_search"}), ToolChoice::Auto),
        ] {
            assert_eq!(choice(Some(&written), &tools).unwrap(), meant, "{written}");
        }
        for bad in [json!("never"), json!(3), json!({}), json!({"type": "function"})] {
            assert!(choice(Some(&bad), &tools).is_err(), "{bad}");
        }
        let error = choice(Some(&json!({"type": "function", "name": "b"})), &tools).unwrap_err();
        assert!(error.message.contains("the tools are: a"), "{error}");
        assert!(choice(Some(&json!("required")), &[]).is_err());
    }
}
