//! Arguments are typed by tool schemas as agents and MCP servers send them.

use calla_text::{Reply, ReplyParser};
use serde_json::{Map, Value, json};

/// Arguments of a call that gives each of the parameters as this text.
fn call(parameters: Value, texts: &[(&str, &str)]) -> Map<String, Value> {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let mut text = "<tool_call>\n<function=f>\n".to_owned();
    for (key, value) in texts {
        text += &format!("<parameter={key}>\n{value}\n</parameter>\n");
    }
    text += "</function>\n</tool_call>";
    let mut parser = ReplyParser::new(&[tool], false);
    let mut reply = Reply::default();
    parser.push(&text).iter().for_each(|event| reply.add(event));
    parser.finish().iter().for_each(|event| reply.add(event));
    assert!(!reply.is_call_open && reply.content.is_empty() && reply.tool_calls.len() == 1);
    reply.tool_calls.remove(0).arguments
}

fn typed(parameters: Value, cases: &[(&str, &str, Value)]) {
    let texts: Vec<(&str, &str)> = cases.iter().map(|(key, text, _)| (*key, *text)).collect();
    let expected: Map<String, Value> =
        cases.iter().map(|(key, _, value)| ((*key).to_owned(), value.clone())).collect();
    assert_eq!(call(parameters, &texts), expected);
}

#[test]
fn without_a_schema_all_is_text() {
    for parameters in [
        Value::Null,
        json!({}),
        json!({"type": "object"}),
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "properties": {"a": {}, "b": true}, "additionalProperties": {}}),
    ] {
        typed(parameters, &[("a", "5", json!("5")), ("b", "{\"x\": 1}", json!("{\"x\": 1}"))]);
    }
}

#[test]
fn schemas_of_python_and_typescript_tools() {
    // What pydantic and zod write.
    let parameters = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1, "pattern": "^/", "description": "Absolute path"},
            "url": {"type": "string", "format": "uri"},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991i64, "default": 10},
            "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": null, "title": "Ratio"},
            "name": {"type": ["string", "null"]},
            "level": {"enum": ["low", 1, 2.5, true, null]},
            "mode": {"$ref": "#/$defs/Mode"},
            "edits": {"type": "array", "items": {"$ref": "#/$defs/Edit"}, "minItems": 1},
            "env": {"type": "object", "additionalProperties": {"type": "string"}, "propertyNames": {"type": "string"}},
            "any": {"additionalProperties": {}, "type": "object"},
            "nested": {"allOf": [{"$ref": "#/$defs/Edit"}]},
        },
        "required": ["path"],
        "additionalProperties": false,
        "$defs": {
            "Mode": {"type": "string", "enum": ["r", "w"]},
            "Edit": {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]},
        },
    });
    typed(
        parameters,
        &[
            ("path", "/a b\n", json!("/a b\n")),
            ("url", "http://a/?b=<c>", json!("http://a/?b=<c>")),
            ("limit", "10", json!(10)),
            ("ratio", "null", json!(null)),
            ("name", "5", json!("5")),
            ("level", "2.5", json!(2.5)),
            ("mode", "w", json!("w")),
            ("edits", "[{\"old\": \"a\\nb\"}]", json!([{"old": "a\nb"}])),
            ("env", "{\"A\": \"1\"}", json!({"A": "1"})),
            ("any", "{\"x\": [1, null]}", json!({"x": [1, null]})),
            ("nested", "{\"old\": \"\"}", json!({"old": ""})),
        ],
    );
}

/// Which of the types is meant shows in the text alone.
#[test]
fn enumerations_and_unions_of_types() {
    let parameters = json!({"type": "object", "properties": {
        "level": {"enum": ["low", 1, true, null]},
        "id": {"type": ["integer", "string"]},
        "when": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}, {"type": "null"}]},
        "query": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "value": {"type": ["string", "number", "boolean", "object", "array", "null"]},
    }});
    for (key, text, value) in [
        ("level", "low", json!("low")),
        ("level", "1", json!(1)),
        ("level", "true", json!(true)),
        ("level", "null", json!(null)),
        ("id", "17", json!(17)),
        ("id", "17a", json!("17a")),
        ("when", "2026-01-01T00:00:00Z", json!("2026-01-01T00:00:00Z")),
        ("when", "1700000000", json!(1_700_000_000)),
        ("query", "[\"a\", \"b\"]", json!(["a", "b"])),
        ("query", "[a] and [b]", json!("[a] and [b]")),
        ("query", "{\"a\": 1}", json!("{\"a\": 1}")),
        ("value", "{\"a\": 1}", json!({"a": 1})),
        ("value", "-0.5", json!(-0.5)),
        ("value", "None", json!(null)),
    ] {
        typed(parameters.clone(), &[(key, text, value)]);
    }
}

#[test]
fn forty_eight_optional_parameters() {
    let types = [json!("string"), json!("integer"), json!(["boolean", "null"])];
    let keys: Vec<String> = (0..48).map(|i| format!("option_{i}")).collect();
    let properties: Map<String, Value> = keys
        .iter()
        .zip(types.iter().cycle())
        .map(|(key, kind)| (key.clone(), json!({"type": kind, "default": null})))
        .collect();
    let cases: Vec<(&str, &str, Value)> = keys
        .iter()
        .enumerate()
        .map(|(i, key)| match i % 3 {
            0 => (key.as_str(), "7", json!("7")),
            1 => (key.as_str(), "7", json!(7)),
            _ => (key.as_str(), "False", json!(false)),
        })
        .collect();
    let parameters = json!({"type": "object", "properties": properties});
    typed(parameters.clone(), &cases);
    typed(parameters.clone(), &cases[40..44]);
    typed(parameters, &[]);
}
