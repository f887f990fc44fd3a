//! Times at the full vocabulary; the bounds are loose, the figures are printed.

use crate::fixtures::{Fixture, published};
use calla_engine::structure::Grammar;
use calla_grammar::{ToolChoice, tool_calls};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn agent_schema() -> Value {
    let mut properties = serde_json::Map::new();
    for i in 0..16 {
        let kind = ["string", "integer", "number", "boolean"][i % 4];
        properties.insert(format!("field_{i}"), json!({"type": kind, "description": "A field"}));
    }
    properties.insert("status".into(), json!({"enum": ["open", "closed", "waiting"]}));
    properties.insert("steps".into(), json!({"type": "array", "items": {"type": "object", "properties": {
        "title": {"type": "string"}, "done": {"type": "boolean"}}, "required": ["title", "done"], "additionalProperties": false}}));
    properties.insert("owner".into(), json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 80}, "mail": {"type": "string", "format": "email"}}, "required": ["name"], "additionalProperties": false}));
    properties.insert("note".into(), json!({"type": ["string", "null"]}));
    let required: Vec<String> = properties.keys().cloned().collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn agent_reply() -> String {
    let mut value = serde_json::Map::new();
    for i in 0..16 {
        let field =
            [json!("some words of text, as replies have them"), json!(42), json!(3.5), json!(true)]
                [i % 4]
                .clone();
        value.insert(format!("field_{i}"), field);
    }
    value.insert("status".into(), json!("open"));
    value.insert(
        "steps".into(),
        json!([{"title": "First, look", "done": true}, {"title": "Then \"act\"", "done": false}]),
    );
    value.insert("owner".into(), json!({"name": "Zoë", "mail": "zoe@example.org"}));
    value.insert("note".into(), json!("The end is near."));
    serde_json::to_string_pretty(&Value::Object(value)).unwrap()
}

fn twenty_tools() -> Vec<Value> {
    let tool = |i: usize| {
        json!({"type": "function", "function": {"name": format!("tool_{i}"), "parameters": {"type": "object", "properties": {
        "path": {"type": "string"}, "content": {"type": "string"}, "line": {"type": "integer"}, "mode": {"enum": ["read", "write"]},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}}}},
        "required": ["path"]}}})
    };
    (0..20).map(tool).collect()
}

fn figures(fixture: &Fixture, name: &str, grammar: &Grammar, reply: &str) {
    let ids = fixture.tokenizer.encode_raw(reply).unwrap();
    // The least of some runs at each place, each run with a lexer that has seen nothing: what else the machine does is
    // not of interest.
    let mut compiled = Duration::MAX;
    let mut masks = vec![Duration::MAX; ids.len()];
    let mut accepts = masks.clone();
    let least = |time: &mut Duration, start: Instant| *time = (*time).min(start.elapsed());
    for run in 0..20 {
        let start = Instant::now();
        let mut matcher = fixture.matcher(grammar);
        least(&mut compiled, start);
        for (at, &id) in ids.iter().enumerate() {
            let start = Instant::now();
            let mask = matcher.mask().unwrap();
            least(&mut masks[at], start);
            assert!(mask.contains(id), "{name} at run {run}");
            let start = Instant::now();
            matcher.accept(id).unwrap();
            least(&mut accepts[at], start);
        }
        assert!(matcher.mask().unwrap().contains(fixture.eos[0]));
    }
    let slowest = (0..ids.len()).max_by_key(|&at| masks[at]).unwrap();
    let before = fixture.tokenizer.decode(&ids[..slowest], false);
    let of = |mut times: Vec<Duration>| {
        times.sort_unstable();
        (times[times.len() / 2], times[times.len() * 99 / 100], times[times.len() - 1])
    };
    let (mask, accept) = (of(masks), of(accepts));
    eprintln!(
        "{name}: {} tokens; compile {compiled:?}; (median, p99, max) mask {mask:?}, accept {accept:?}; slowest after {before:?}",
        ids.len()
    );
    assert!(mask.0 < Duration::from_millis(5) && compiled < Duration::from_secs(1));
}

#[test]
fn figures_at_full_vocabulary() {
    let Some(fixture) = published() else { return };
    let schema = Grammar::JsonSchema(agent_schema().to_string());
    figures(fixture, "agent schema", &schema, &agent_reply());
    figures(fixture, "json object", &Grammar::JsonObject, &agent_reply());
    let tools = tool_calls(&twenty_tools(), &ToolChoice::Required, true).unwrap();
    let call = "<tool_call>\n<function=tool_7>\n<parameter=path>\nsrc/main.rs\n</parameter>\n<parameter=content>\nfn main() {\n    println!(\"Hello, world\");\n    for i in 0..10 { work(i); }\n}\n\n</parameter>\n<parameter=line>\n12\n</parameter>\n<parameter=options>\n{\"deep\": true, \"tags\": [\"a\", \"b\"]}\n</parameter>\n</function>\n</tool_call>";
    figures(fixture, "20 tools", &tools, call);
}
