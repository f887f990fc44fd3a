//! Takes out of a tool's parameters what cannot be enforced, for tools that do not ask for `strict`.
//!
//! Agents and MCP servers send schemas that were written to be read, not enforced. A call that keeps to what
//! can be enforced is worth more than an error for a keyword that a model heeds well enough by reading it.

use crate::json_schema::{LIST, MAP, ONE, UNSUPPORTED, checked, resolve};
use llguidance::derivre::RegexBuilder;
use serde_json::{Map, Value};

/// Formats that the compiler knows.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// What may stand beside the reference that `parameters` itself is.
const BESIDE_REFERENCE: [&str; 5] = ["$ref", "$defs", "definitions", "$id", "id"];
/// Keywords that choose among forms of all parameters together.
pub(crate) const JOINING: [&str; 9] = [
    "anyOf",
    "oneOf",
    "allOf",
    "enum",
    "const",
    "patternProperties",
    "$ref",
    "minProperties",
    "maxProperties",
];

/// `parameters` without what cannot be enforced. Its nesting is bounded by the caller.
pub(crate) fn relaxed_parameters(parameters: &Value) -> Value {
    let Value::Object(mut relaxed) = relaxed(parameters, parameters) else {
        return parameters.clone();
    };
    if relaxed.contains_key("$ref") {
        relaxed.retain(|keyword, _| BESIDE_REFERENCE.contains(&keyword.as_str()));
        return relaxed.into();
    }
    let before = relaxed.len();
    relaxed.retain(|keyword, _| !JOINING.contains(&keyword.as_str()));
    // They may have named parameters that are listed nowhere else.
    if relaxed.len() < before && !relaxed.contains_key("properties") {
        relaxed.entry("additionalProperties").or_insert(Value::Bool(true));
    }
    relaxed.into()
}

/// A schema that asks for the value's type alone: for one that cannot be enforced even when it is relaxed.
pub(crate) fn type_only(schema: &Value) -> Value {
    let kind = schema.get("type").filter(|kind| kind.is_string() || kind.is_array());
    kind.map_or(Value::Bool(true), |kind| serde_json::json!({ "type": kind }))
}

fn relaxed(schema: &Value, root: &Value) -> Value {
    let Value::Object(schema) = schema else { return schema.clone() };
    let listed = schema.contains_key("enum") || schema.contains_key("const");
    let mut out = Map::new();
    for (keyword, value) in schema {
        let word = keyword.as_str();
        let each = |values: &[Value]| values.iter().map(|value| relaxed(value, root)).collect();
        let value = match value {
            _ if UNSUPPORTED.contains(&word) => continue,
            _ if listed && ["pattern", "minLength", "maxLength"].contains(&word) => continue,
            Value::String(name) if word == "format" && !FORMATS.contains(&name.as_str()) => {
                continue;
            }
            Value::String(pattern) if word == "pattern" && !is_regular(pattern) => continue,
            Value::String(reference) if word == "$ref" && resolve(root, reference).is_err() => {
                continue;
            }
            // The compiler takes `oneOf` only if no two members can both hold, which few writers see to.
            Value::Array(members) if word == "oneOf" => {
                if !schema.contains_key("anyOf") {
                    out.insert("anyOf".into(), each(members));
                }
                continue;
            }
            Value::Array(members) if LIST.contains(&word) || word == "items" => each(members),
            Value::Object(members)
                if MAP.contains(&word) || ["$defs", "definitions"].contains(&word) =>
            {
                members.iter().map(|(key, member)| (key.clone(), relaxed(member, root))).collect()
            }
            value if ONE.contains(&word) => relaxed(value, root),
            value if checked(word, value, "#").is_err() => continue,
            value => value.clone(),
        };
        out.insert(keyword.clone(), value);
    }
    out.into()
}

/// Whether a pattern is an expression without look-around and back references.
fn is_regular(pattern: &str) -> bool {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let pattern = pattern.strip_suffix('$').unwrap_or(pattern);
    RegexBuilder::new().mk_regex(&format!("({pattern})")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_can_be_enforced_is_kept() {
        for (schema, expected) in [
            (
                json!({"type": "integer", "not": {"const": 3}, "minimum": 1}),
                json!({"type": "integer", "minimum": 1}),
            ),
            (
                json!({"type": "string", "format": "uri"}),
                json!({"type": "string", "format": "uri"}),
            ),
            (json!({"type": "string", "format": "path"}), json!({"type": "string"})),
            (json!({"type": "string", "pattern": "^(?!a).*$"}), json!({"type": "string"})),
            (
                json!({"type": "string", "pattern": "^a+$"}),
                json!({"type": "string", "pattern": "^a+$"}),
            ),
            (json!({"enum": ["a"], "minLength": 1}), json!({"enum": ["a"]})),
            (json!({"oneOf": [{"uniqueItems": true}]}), json!({"anyOf": [{}]})),
            (json!({"maxLength": 1_000_000}), json!({})),
            (json!({"$ref": "http://a/b"}), json!({})),
            (
                json!({"properties": {"not": {"if": {}}}, "additionalProperties": {"then": {}}}),
                json!({"properties": {"not": {}}, "additionalProperties": {}}),
            ),
        ] {
            assert_eq!(relaxed(&schema, &schema), expected, "{schema}");
        }
    }
}
