//! Calls that the grammar of tool calls lets through are read back as calls.

use crate::fixtures::{Fixture, demo, published};
use calla_engine::structure::Grammar;
use calla_grammar::{GrammarError, ToolChoice, tool_calls, tool_calls_or};
use calla_text::{ReplyAssembler, ReplyForm, ToolCall};
use serde_json::{Value, json};

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn strict(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "strict": true, "parameters": parameters}})
}

fn tools() -> Vec<Value> {
    vec![
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string", "description": "Where"},
                "unit": {"type": "string", "enum": ["C", "F \"x\""]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "at": {"$ref": "#/$defs/place"},
            }, "required": ["city", "at"], "additionalProperties": false, "$defs": {
                "place": {"type": "object", "properties": {"lat": {"type": "number", "minimum": -90, "maximum": 90}}, "required": ["lat"], "additionalProperties": false},
            }}),
        ),
        tool("now", Value::Null),
        tool(
            "flags",
            json!({"type": "object", "properties": {
            "on": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "list": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
            "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
            "mode": {"allOf": [{"enum": ["r", "w", null]}]},
        }, "required": ["on"]}),
        ),
        tool(
            "free",
            json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99}}),
        ),
    ]
}

fn read(fixture: &Fixture, ids: &[u32], tools: &[Value]) -> (String, Vec<ToolCall>) {
    let form = ReplyForm::Chat { thinking: false, tools };
    let mut assembler = ReplyAssembler::new::<&str>(&fixture.tokenizer, form, &[]).unwrap();
    ids.iter().for_each(|&id| drop(assembler.push(id)));
    let reply = assembler.finish().reply;
    (reply.content, reply.tool_calls)
}

/// What closes a value, a call or JSON, and what values may not hold.
const CALL_ENDS: [&str; 10] = [
    "\n</parameter>\n",
    "\n</parameter>\n",
    "</parameter>",
    "</function>\n</tool_call>",
    "\n<parameter=at>\n",
    "<parameter=note>\n",
    "\"",
    "}",
    "]",
    "1",
];

fn samples_are_calls(fixture: &Fixture, runs: u64) {
    let tools = tools();
    let grammar = tool_calls(&tools, &ToolChoice::Required, true).unwrap();
    let mut names = std::collections::BTreeSet::new();
    let mut whole = 0;
    for seed in 0..runs {
        let Some(ids) = fixture.sample(&grammar, seed, 60, &CALL_ENDS) else { continue };
        whole += 1;
        let text = fixture.tokenizer.decode(&ids, false);
        let (content, calls) = read(fixture, &ids, &tools);
        assert_eq!(calls.len(), text.matches("\n<function=").count(), "{text}");
        for call in &calls {
            let tool = tools.iter().find(|t| t["function"]["name"] == call.name).expect(&text);
            let schema = match &tool["function"]["parameters"] {
                Value::Null => json!({"type": "object", "additionalProperties": false}),
                schema => schema.clone(),
            };
            let validator = jsonschema::validator_for(&schema).unwrap();
            let arguments = Value::Object(call.arguments.clone());
            assert!(validator.is_valid(&arguments), "{text}\n{arguments}");
            names.insert(call.name.clone());
        }
        // A free parameter may repeat, which makes content of its second value.
        if !text.contains("<function=free>") {
            assert_eq!(content, "", "{text}");
        }
    }
    assert!(whole * 2 > runs, "{whole} of {runs} came to an end");
    assert!(names.len() >= 3, "{names:?}");
}

#[test]
fn what_masks_let_through_are_calls() {
    samples_are_calls(demo(), 80);
}

#[test]
fn what_masks_let_through_are_calls_at_full_vocabulary() {
    if let Some(fixture) = published() {
        samples_are_calls(fixture, 10);
    }
}

fn fits(fixture: &Fixture, grammar: &Grammar, reply: &str) -> bool {
    fixture.matches_ids(grammar, &fixture.tokenizer.encode_raw(reply).unwrap())
}

const WEATHER: &str = "<tool_call>\n<function=get_weather>\n<parameter=city>\nSão <Paulo>\n\n</parameter>\n<parameter=unit>\nF \"x\"\n</parameter>\n<parameter=at>\n{\"lat\": -23.5}\n</parameter>\n</function>\n</tool_call>";
const NOW: &str = "<tool_call>\n<function=now>\n</function>\n</tool_call>";

#[test]
fn the_templates_own_calls_fit() {
    for fixture in [Some(demo()), published()].into_iter().flatten() {
        let one = tool_calls(&tools(), &ToolChoice::Required, false).unwrap();
        let more = tool_calls(&tools(), &ToolChoice::Required, true).unwrap();
        let named = tool_calls(&tools(), &ToolChoice::Named("now".into()), false).unwrap();
        let both = format!("{WEATHER}\n{NOW}");
        let flags = "<tool_call>\n<function=flags>\n<parameter=on>\ntrue\n</parameter>\n<parameter=note>\n\n</parameter>\n<parameter=list>\n[\"a\", \"b\"]\n</parameter>\n<parameter=code>\nAB\n</parameter>\n<parameter=mode>\nnull\n</parameter>\n</function>\n</tool_call>";
        for (grammar, reply, expected) in [
            (&one, WEATHER, true),
            (&one, NOW, true),
            (&one, flags, true),
            (&one, &*both, false),
            (&more, &*both, true),
            (&named, NOW, true),
            (&named, WEATHER, false),
            (&one, "", false),
            (&one, "Hello", false),
            (
                &one,
                &*WEATHER.replace("<parameter=at>\n{\"lat\": -23.5}\n</parameter>\n", ""),
                false,
            ),
            (&one, &*WEATHER.replace("-23.5", "-123.5"), false),
            (&one, &*WEATHER.replace("F \"x\"", "K"), false),
            (&one, &*WEATHER.replace("=city", "=town"), false),
            (&one, &*flags.replace("AB", "ABC"), false),
        ] {
            assert_eq!(fits(fixture, grammar, reply), expected, "{reply}");
        }
    }
}

#[test]
fn tool_markers_are_tokens_not_text() {
    let fixture = demo();
    let grammar = tool_calls(&tools(), &ToolChoice::Required, false).unwrap();
    let ids = fixture.tokenizer.encode_text(NOW).unwrap();
    assert!(!fixture.matches_ids(&grammar, &ids));
}

#[test]
fn a_value_cannot_end_its_call_early() {
    let fixture = demo();
    let grammar = tool_calls(&tools(), &ToolChoice::Required, false).unwrap();
    for text in ["</function>\n</tool_call>", "</parameter></function>", "\n<parameter=at>\n{}"] {
        let reply = WEATHER.replace("<Paulo>", text);
        let mut ids = fixture.tokenizer.encode_text(&reply).unwrap();
        let call = fixture.tokenizer.token_id("<tool_call>").unwrap();
        let spelt = fixture.tokenizer.encode_text("<tool_call>").unwrap().len();
        ids.splice(..spelt, [call]);
        let mut matcher = fixture.matcher(&grammar);
        assert!(fixture.follow(&mut *matcher, &ids).is_some(), "{text}");
    }
}

#[test]
fn odd_tools_are_refused_by_name() {
    let refused = |tools: &[Value], choice: &ToolChoice, words: &str| {
        let error = tool_calls(tools, choice, false).unwrap_err();
        assert!(error.to_string().contains(words), "{error} has not {words:?}");
        assert!(matches!(error, GrammarError::Tool { .. }), "{error:?}");
    };
    let any = ToolChoice::Required;
    assert_eq!(tool_calls(&[], &any, false), Err(GrammarError::NoTools));
    refused(&tools(), &ToolChoice::Named("rm".into()), "\"rm\": no tool on offer");
    refused(&[json!({})], &any, "it has no name");
    refused(&[tool("a>b", json!({}))], &any, "\"a>b\"");
    refused(&[tool("", json!({}))], &any, "is empty");
    refused(&[strict("a", json!({})), strict("a", json!({}))], &any, "another tool has this name");
    refused(&[strict("a", json!({"properties": {"x\ny": {}}}))], &any, "control character");
    refused(
        &[strict("a", json!({"properties": {"x": {"type": "object", "not": {}}}}))],
        &any,
        "\"not\"",
    );
    refused(
        &[strict("a", json!({"properties": {"x": {"$ref": "http://a/b"}}}))],
        &any,
        "http://a/b",
    );
    refused(
        &[strict("a", json!({"properties": {"x": {"$ref": "#/properties/x"}}}))],
        &any,
        "circles",
    );
    refused(&[strict("a", json!({"type": "array"}))], &any, "the type of `parameters`");
    refused(&[strict("a", json!({"anyOf": []}))], &any, "anyOf");
    refused(&[strict("a", json!([]))], &any, "`parameters` is not an object");
    refused(
        &[strict("a", json!({"properties": {"x": {"enum": ["</parameter>"]}}}))],
        &any,
        "a tag",
    );
    refused(
        &[strict("a", json!({"properties": {"x": false}, "required": ["x"]}))],
        &any,
        "no value",
    );
}

#[test]
fn what_a_parameter_cannot_enforce_is_refused() {
    for (schema, keyword) in [
        (json!({"type": "integer", "not": {"const": 3}}), "not"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"if": {}, "then": {}}), "if"),
        (json!({"type": "string", "not": {}}), "not"),
        (json!({"enum": ["a"], "not": {"const": "a"}}), "not"),
        (json!({"anyOf": [{"type": "string"}, {"type": "string", "not": {}}]}), "not"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "unevaluatedProperties": false}), "unevaluatedProperties"),
        (json!({"enum": ["a"], "pattern": "b"}), "pattern"),
    ] {
        let inner = strict("a", json!({"properties": {"x": schema}}));
        let extra = strict("a", json!({"additionalProperties": schema}));
        for tool in [inner, extra] {
            let error = tool_calls(&[tool], &ToolChoice::Required, false).unwrap_err();
            assert!(error.to_string().contains(&format!("{keyword:?}")), "{schema}: {error}");
        }
    }
    for beside in [json!({"not": {}}), json!({"required": ["y"]}), json!({"then": {}})] {
        let mut parameters = json!({"$ref": "#/$defs/p", "$defs": {"p": {"type": "object"}}});
        let one = |parameters| {
            tool_calls(&[strict("a", parameters)], &ToolChoice::Required, false).map(|_| ())
        };
        assert_eq!(one(parameters.clone()), Ok(()));
        parameters.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
        assert!(one(parameters).is_err(), "{beside}");
    }
    let idle = strict("a", json!({"properties": {"x": {"type": "array", "uniqueItems": false}}}));
    assert!(tool_calls(&[idle], &ToolChoice::Required, false).is_ok());
}

#[test]
fn odd_names_are_escaped() {
    let fixture = demo();
    let tools = [tool(
        "a\"b\\ é/1",
        json!({"properties": {"$x y": {"type": "integer"}}, "required": ["$x y"]}),
    )];
    let grammar = tool_calls(&tools, &ToolChoice::Required, false).unwrap();
    let reply = "<tool_call>\n<function=a\"b\\ é/1>\n<parameter=$x y>\n5\n</parameter>\n</function>\n</tool_call>";
    assert!(fits(fixture, &grammar, reply));
    let ids = fixture.tokenizer.encode_raw(reply).unwrap();
    let (_, calls) = read(fixture, &ids, &tools);
    assert_eq!(calls[0].name, "a\"b\\ é/1");
    assert_eq!(calls[0].arguments["$x y"], 5);
}

#[test]
fn a_text_value_may_be_nearly_anything() {
    let fixture = demo();
    let tools = [tool("write", json!({"properties": {"text": {"type": "string"}}}))];
    let grammar = tool_calls(&tools, &ToolChoice::Required, false).unwrap();
    let long = "    if a < b { return \"<p>\\n\"; } // \u{e9}\n".repeat(2_000);
    let call = |value: &str| {
        format!(
            "<tool_call>\n<function=write>\n<parameter=text>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )
    };
    for value in [
        "",
        "\n",
        "\n\n\n",
        "<",
        "<<\n<\n",
        "</",
        "</parameter",
        "</parameter\n>",
        "</param>\n</div>\n<parameter>",
        "a <parameter=text> b",
        "a <tool_call>",
        "\n<function=write>\n",
        "<tool_call\n<parameter\n",
        " \u{1f980} \u{0} \r\n\t",
        &long,
    ] {
        let ids = fixture.tokenizer.encode_raw(&call(value)).unwrap();
        let spelt = fixture.tokenizer.encode_text("<tool_call>").unwrap();
        // A marker inside of the value can only be spelt.
        let marker = fixture.tokenizer.token_id("<tool_call>").unwrap();
        let ids: Vec<u32> = ids
            .iter()
            .enumerate()
            .flat_map(|(at, id)| if at > 0 && *id == marker { spelt.clone() } else { vec![*id] })
            .collect();
        assert!(fixture.matches_ids(&grammar, &ids), "{value:.80?}");
        let (content, calls) = read(fixture, &ids, &tools);
        assert_eq!((content.as_str(), calls.len()), ("", 1), "{value:.80?}");
        assert_eq!(calls[0].arguments["text"], value);
    }
    for value in [
        "</parameter>",
        "a </parameter> b",
        "</function>",
        "a\n</function>\n",
        "</tool_call>",
        "<parameter=text>",
        "\n<parameter=",
        "<tool_call>",
    ] {
        let head = fixture.tokenizer.encode_raw(call("").split_once("\n\n</").unwrap().0).unwrap();
        let mut matcher = fixture.matcher(&grammar);
        assert_eq!(fixture.follow(&mut *matcher, &head), None);
        let ids = fixture.tokenizer.encode_text(&format!("\n{value}")).unwrap();
        assert!(fixture.follow(&mut *matcher, &ids).is_some(), "{value:?}");
    }
}

/// `response_format` beside tools: a call or an answer of that form, and nothing else.
#[test]
fn a_call_or_an_answer_of_a_form() {
    let schema = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
        "additionalProperties": false, "$defs": {"n": {"type": "integer"}}});
    let both = format!("{WEATHER}\n{NOW}");
    let answers = [
        (Grammar::JsonSchema(schema.to_string()), "{\"n\": 5}", "{\"n\": \"5\"}"),
        (Grammar::JsonObject, "{\"a\": [1]}", "[1]"),
        (Grammar::Regex("^(yes|n/o)$".into()), "n/o", "maybe"),
        (Grammar::Regex("[a-z ]*".into()), "so it is", "SO"),
    ];
    for fixture in [Some(demo()), published()].into_iter().flatten() {
        for (answer, good, bad) in &answers {
            let one = tool_calls_or(&tools(), false, answer).unwrap();
            let more = tool_calls_or(&tools(), true, answer).unwrap();
            for (grammar, reply, expected) in [
                (&one, *good, true),
                (&one, *bad, false),
                (&one, WEATHER, true),
                (&one, NOW, true),
                (&one, &*both, false),
                (&more, &*both, true),
                (&more, *good, true),
                (&more, &*format!("{good}\n{NOW}"), false),
                (&more, &*format!("{NOW}\n{good}"), false),
                (&one, &*WEATHER.replace("-23.5", "-123.5"), false),
            ] {
                assert_eq!(fits(fixture, grammar, reply), expected, "{answer:?} {reply}");
            }
        }
    }
    let fixture = demo();
    for seed in 0..30 {
        let grammar = tool_calls_or(&tools(), true, &answers[0].0).unwrap();
        let Some(ids) = fixture.sample(&grammar, seed, 60, &CALL_ENDS) else { continue };
        let (content, calls) = read(fixture, &ids, &tools());
        let is_answer = serde_json::from_str::<Value>(&content).is_ok_and(|v| v["n"].is_number());
        let text = fixture.tokenizer.decode(&ids, false);
        assert!(is_answer == calls.is_empty(), "{text}");
    }
    let lark = Grammar::Lark("start: \"a\"".into());
    let error = tool_calls_or(&tools(), false, &lark).unwrap_err();
    assert!(error.to_string().contains("Lark"), "{error}");
    assert_eq!(tool_calls_or(&[], false, &Grammar::JsonObject), Err(GrammarError::NoTools));
    for broken in [Grammar::JsonSchema("{".into()), Grammar::Regex(String::new())] {
        assert!(tool_calls_or(&tools(), false, &broken).is_err());
    }
}

/// A string in JSON may hold the tags of the format, and is read back whole.
#[test]
fn tags_in_a_string_of_json_are_read_back() {
    let fixture = demo();
    let tools = [tool("f", json!({"properties": {"o": {"type": "object"}}}))];
    let grammar = tool_calls(&tools, &ToolChoice::Required, false).unwrap();
    let value = json!({"k": "</parameter></function> \n<parameter=o>"});
    let reply = format!(
        "<tool_call>\n<function=f>\n<parameter=o>\n{value}\n</parameter>\n</function>\n</tool_call>"
    );
    assert!(fits(fixture, &grammar, &reply));
    let (_, calls) = read(fixture, &fixture.tokenizer.encode_raw(&reply).unwrap(), &tools);
    assert_eq!(calls[0].arguments["o"], value);
}

/// Schemas as agents and MCP servers send them: a forced call of each compiles, and keeps to the types.
#[test]
fn tools_of_agents_are_enforced_as_far_as_possible() {
    let fixture = demo();
    let mcp = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1, "pattern": "^(?!\\.\\.)[^\\0]+$"},
            "url": {"type": "string", "format": "uri"},
            "glob": {"type": "string", "format": "glob", "default": "**"},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9_007_199_254_740_991_i64},
            "name": {"type": ["string", "null"]},
            "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": null},
            "level": {"enum": ["low", 1, true, null]},
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
            "edits": {"type": "array", "items": {"$ref": "#/definitions/edit"}, "minItems": 1},
            "env": {"type": "object", "additionalProperties": {"type": "string"}, "propertyNames": {"pattern": "^A"}},
            "any": {"type": "object", "additionalProperties": {}, "not": {"required": ["x"]}},
            "choice": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]},
            "odd": {"type": "integer", "allOf": [{"minimum": 0}, {"not": {}}]},
            "elsewhere": {"$ref": "https://example.com/x.json"},
            "circle": {"$ref": "#/properties/circle"},
        },
        "required": ["path", "limit"],
        "additionalProperties": false,
        "anyOf": [{"required": ["path"]}, {"required": ["url"]}],
        "definitions": {"edit": {"type": "object", "properties": {"old": {"type": "string"}}, "if": {}, "then": {}}},
    });
    let many: Value = (0..48)
        .map(|i| {
            (
                format!("option_{i}"),
                json!({"type": (["string", "integer", "boolean"][i % 3]), "default": null}),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let tools = [
        tool("mcp", mcp.clone()),
        tool("many", json!({"type": "object", "properties": many})),
        tool("empty", json!({})),
        json!({"type": "function", "function": {"name": "none"}}),
        tool(
            "joined",
            json!({"type": "object", "oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
        ),
        tool(
            "reference",
            json!({"$ref": "#/$defs/p", "required": ["x"], "$defs": {"p": {"properties": {"x": {"type": "integer"}}}}}),
        ),
    ];
    let grammar = tool_calls(&tools, &ToolChoice::Required, true).unwrap();
    let call = |name: &str, arguments: &[(&str, &str)]| {
        let mut text = format!("<tool_call>\n<function={name}>\n");
        for (key, value) in arguments {
            text += &format!("<parameter={key}>\n{value}\n</parameter>\n");
        }
        text + "</function>\n</tool_call>"
    };
    let (path, limit) = (("path", "../a"), ("limit", "5"));
    for (reply, expected) in [
        (call("mcp", &[path, limit]), true),
        (call("mcp", &[limit]), false),
        (call("mcp", &[path, ("limit", "0")]), false),
        (call("mcp", &[("path", ""), limit]), false),
        (call("mcp", &[path, ("glob", "*.rs"), limit, ("name", "null"), ("ratio", "0.5")]), true),
        (call("mcp", &[path, limit, ("level", "true"), ("tags", "[\"a\", \"a\"]")]), true),
        (call("mcp", &[path, limit, ("level", "high")]), false),
        (call("mcp", &[path, limit, ("edits", "[{\"old\": \"\"}]")]), true),
        (call("mcp", &[path, limit, ("edits", "[]")]), false),
        (call("mcp", &[path, limit, ("env", "{\"B\": \"1\"}"), ("any", "{\"x\": 1}")]), true),
        (call("mcp", &[path, limit, ("env", "{\"B\": 1}")]), false),
        (call("mcp", &[path, limit, ("choice", "abc"), ("odd", "3"), ("elsewhere", "x")]), true),
        (call("mcp", &[path, limit, ("odd", "x")]), false),
        (call("mcp", &[path, limit, ("circle", "round")]), true),
        (call("mcp", &[path, limit, ("more", "1")]), false),
        (call("many", &[]), true),
        (call("many", &[("option_1", "7"), ("option_2", "true"), ("option_47", "false")]), true),
        (call("many", &[("option_1", "x")]), false),
        (call("empty", &[]), true),
        (call("none", &[]), true),
        (call("joined", &[("b", "x")]), true),
        (call("reference", &[("x", "1")]), true),
        (call("reference", &[("x", "one")]), false),
    ] {
        assert_eq!(fits(fixture, &grammar, &reply), expected, "{reply}");
    }
    assert!(tool_calls(&[strict("mcp", mcp)], &ToolChoice::Required, true).is_err());
}
