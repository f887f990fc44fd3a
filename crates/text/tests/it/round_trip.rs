//! Calls that a reply made come back from the client and are rendered as the very text that the model wrote.

use std::path::Path;

use calla_text::{
    ChatTemplate, Event, Message, RenderOptions, Reply, ReplyParser, Role, Tokenizer,
};
use calla_text::{ToolCall, normalise};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Map, Value, json};

use crate::fixtures::{self, messages};

/// Strings with all that is odd, but for tags in an order that would end a value.
fn strings() -> impl Strategy<Value = String> {
    let atoms = [
        "a",
        "é",
        "🙂",
        " ",
        "  ",
        "\t",
        "\n",
        "\n\n",
        "\r\n",
        "\u{2028}",
        "\u{0}",
        "\"",
        "\\",
        "\\n",
        "<",
        "<b>",
        "</parameter>",
        "null",
        "5",
        "{",
        "[1",
        "<|im_end|>",
        "\u{a0}",
    ];
    prop::collection::vec(prop::sample::select(atoms.to_vec()), 0..6)
        .prop_map(|atoms| atoms.concat())
}

fn numbers() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1000i64..1000).prop_map(Value::from),
        (-1000i64..1000).prop_map(|n| Value::from(n as f64)),
        any::<f64>()
            .prop_filter("JSON has no such number", |x| x.is_finite())
            .prop_map(Value::from),
        prop::sample::select(vec![0.1, 1e16, 1e-5, -0.0, 5e-324, 1.7976931348623157e308])
            .prop_map(Value::from),
    ]
}

/// In JSON a tag is text, whatever follows it.
fn values() -> impl Strategy<Value = Value> {
    let tags =
        ["</parameter></function>", "</function>\n</tool_call>", "</parameter> <parameter=s>"];
    let leaf = prop_oneof![
        numbers(),
        prop::sample::select(tags.to_vec()).prop_map(Value::from),
        strings().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((strings(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Arguments of the function `f`, each of its parameter's type.
fn arguments() -> impl Strategy<Value = Map<String, Value>> {
    let containers = || values().prop_filter("a list or object", |v| v.is_array() || v.is_object());
    let argument = prop_oneof![
        strings().prop_map(|text| ("s", Value::from(text))),
        any::<i64>().prop_map(|n| ("i", n.into())),
        any::<u64>().prop_map(|n| ("i", n.into())),
        numbers().prop_map(|n| ("n", n)),
        any::<bool>().prop_map(|b| ("b", b.into())),
        Just(("n", Value::Null)),
        containers().prop_map(|v| ("o", v)),
        containers().prop_map(|v| ("a", v)),
    ];
    prop::collection::vec(argument, 0..6)
        .prop_map(|list| list.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "n": {"type": ["number", "null"]},
            "b": {"type": "boolean"},
            "o": {"type": ["object", "array"]},
            "a": {"anyOf": [{"type": "array"}, {"type": "object"}, {"type": "null"}]},
        }}}}),
    ]
}

/// A client's copy of a reply: arguments as the string that streamed, or as the object that it stands for.
fn returned(reply: &Reply, streamed: &[String], as_text: bool) -> Message {
    let calls = reply.tool_calls.iter().zip(streamed).map(|(call, text)| {
        let arguments = if as_text { Value::from(text.as_str()) } else { serde_json::from_str(text).unwrap() };
        json!({"id": "call_1", "type": "function", "function": {"name": call.name, "arguments": arguments}})
    });
    let calls: Vec<Value> = calls.collect();
    let message = json!({"role": "assistant", "content": reply.content, "reasoning_content": reply.reasoning,
                         "tool_calls": calls});
    // Over the wire and back.
    serde_json::from_str(&message.to_string()).unwrap()
}

fn check(dir: &Path, cases: u32) {
    let tokenizer = Tokenizer::load(dir).unwrap();
    let template = ChatTemplate::load(dir).unwrap();
    let tools = tools();
    let options = RenderOptions {
        tools: tools.clone(),
        add_generation_prompt: false,
        ..RenderOptions::default()
    };
    let render = |reply: &Message| {
        let list = [Message::new(Role::User, "u"), reply.clone()];
        let rendered = template.render(&tokenizer, &normalise(&list), &options).unwrap();
        let (_, text) = rendered.text.rsplit_once("<|im_start|>assistant\n<think>\n").unwrap();
        (text.strip_suffix("<|im_end|>\n").unwrap().to_owned(), rendered.ids)
    };
    let replies = (prop::collection::vec(arguments(), 0..3), "[a-c]{0,3}", "[a-c]{0,3}");
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let test = |(calls, reasoning, content): (Vec<Map<String, Value>>, String, String)| {
        let call = |arguments| ToolCall { id: None, name: "f".into(), arguments };
        let written = Message {
            reasoning_content: Some(reasoning),
            tool_calls: calls.into_iter().map(call).collect(),
            ..Message::new(Role::Assistant, content)
        };
        let (text, ids) = render(&written);
        let mut parser = ReplyParser::new(&tools, true);
        let mut events = parser.push(&text);
        events.extend(parser.finish());
        let mut reply = Reply::default();
        let mut streamed: Vec<String> = Vec::new();
        for event in &events {
            reply.add(event);
            match event {
                Event::ToolCallStart { .. } => streamed.push(String::new()),
                Event::ToolCallArguments { index, json } => streamed[*index] += json,
                _ => {}
            }
        }
        for as_text in [true, false] {
            let (again, same) = render(&returned(&reply, &streamed, as_text));
            prop_assert_eq!(&again, &text);
            prop_assert_eq!(&same, &ids);
        }
        Ok::<(), TestCaseError>(())
    };
    runner.run(&replies, test).unwrap();
}

#[test]
fn calls_come_back_as_they_were_written_with_the_demo_template() {
    if let Some(dir) = fixtures::demo() {
        check(&dir, 300);
    }
}

#[test]
fn calls_come_back_as_they_were_written_with_the_published_template() {
    if let Some(dir) = fixtures::published() {
        check(&dir, 200);
    }
}

/// What a client writes differently is the same call: arguments as a string or an object, white space in the JSON.
#[test]
fn the_form_of_arguments_makes_no_difference() {
    let Some(dir) = fixtures::demo() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let template = ChatTemplate::load(&dir).unwrap();
    let arguments = r#"{"z": 1.0, "a": [1, 1e3, -0.0, 18446744073709551615], "m": {"y": "é\u00e9\n", "b": {}}}"#;
    let object = format!("{{\"name\": \"f\", \"arguments\": {arguments}}}");
    let tight: Value = serde_json::from_str(arguments).unwrap();
    let mut rendered = Vec::new();
    for call in [
        object.clone(),
        json!({"name": "f", "arguments": arguments}).to_string(),
        json!({"function": {"name": "f", "arguments": format!(" {tight}\n")}}).to_string(),
        json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": tight}})
            .to_string(),
    ] {
        let call: Value = serde_json::from_str(&call).unwrap();
        let list = messages(json!([
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
        ]));
        rendered.push(template.render(&tokenizer, &list, &RenderOptions::default()).unwrap());
    }
    assert!(rendered[0].text.contains(
        "<parameter=z>\n1.0\n</parameter>\n<parameter=a>\n[1, 1000.0, -0.0, 18446744073709551615]\n</parameter>\n\
         <parameter=m>\n{\"y\": \"éé\\n\", \"b\": {}}\n"
    ));
    assert!(rendered.iter().all(|one| *one == rendered[0]));
}
