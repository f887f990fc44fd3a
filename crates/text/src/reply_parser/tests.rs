//! Replies, whole and cut, and the events that they give.

use super::*;
use crate::Reply;
use crate::reply_parser_fuzz::{check, parse, tools};
use proptest::prelude::*;
use serde_json::json;

/// The reply as one line: thinking in braces, content as it is, calls in brackets; `~` instead of the closing one in
/// an open call.
fn sketch(reply: &str, thinking: bool) -> String {
    check(reply, thinking, 1);
    let mut out = String::new();
    for event in parse([reply], thinking) {
        match event {
            Event::Reasoning(text) => out += &format!("{{{text}}}"),
            Event::Content(text) => out += &text,
            Event::ToolCallStart { name, .. } => out += &format!("[{name} "),
            Event::ToolCallArguments { json, .. } => out += &json,
            Event::ToolCallEnd { closed, .. } => out += if closed { "]" } else { "~" },
        }
    }
    out
}

const CALL: &str =
    "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>";

#[test]
fn thinking_and_content() {
    for (reply, thinking, expected) in [
        ("why\n</think>\n\nanswer", true, "{why}answer"),
        ("why</think>answer", true, "{why}answer"),
        ("why\n\n</think>\n\n\nanswer\n", true, "{why\n}\nanswer\n"),
        ("\n</think>\n\nanswer", true, "answer"),
        ("</think>\n\n", true, ""),
        ("endless", true, "{endless}"),
        ("endless\n", true, "{endless\n}"),
        ("<think>\nwhy\n</think>\n\nanswer", true, "{why}answer"),
        ("<think>\nwhy\n</think>\n\nanswer", false, "{why}answer"),
        ("\n<think>why</think>answer", false, "{why}answer"),
        ("answer <think> is a tag", false, "answer <think> is a tag"),
        ("answer </think> too", false, "answer </think> too"),
        ("a <b> c < d </thin", false, "a <b> c < d </thin"),
        ("a <tool_call> b", true, "{a <tool_call> b}"),
        ("\n\n", false, "\n\n"),
        ("", true, ""),
    ] {
        assert_eq!(sketch(reply, thinking), expected, "{reply:?}");
    }
}

#[test]
fn whole_calls() {
    let f = r#"[f {"s":"x"}]"#;
    for (reply, thinking, expected) in [
        (CALL.to_owned(), false, f.to_owned()),
        (format!("Look.\n\n{CALL}"), false, format!("Look.{f}")),
        (format!("Look.\n\n\n{CALL}\n"), false, format!("Look.\n{f}")),
        (format!("{CALL}\n{CALL}"), false, format!("{f}{f}")),
        (format!("{CALL} after"), false, format!("{f} after")),
        (format!("why\n</think>\n\n{CALL}"), true, format!("{{why}}{f}")),
        (
            "<tool_call>\n<function=g>\n</function>\n</tool_call>".into(),
            false,
            "[g {}]".to_owned(),
        ),
        (
            "<tool_call>\n<function=nobody>\n<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>".into(),
            false,
            r#"[nobody {"i":"5"}]"#.into(),
        ),
    ] {
        assert_eq!(sketch(&reply, thinking), expected, "{reply:?}");
    }
}

#[test]
fn arguments_have_the_types_of_the_schema() {
    let reply = "<tool_call>\n<function=f>\n\
        <parameter=i>\n5\n</parameter>\n\
        <parameter=n>\nnull\n</parameter>\n\
        <parameter=b>\nTrue\n</parameter>\n\
        <parameter=o>\n{\"z\": 1, \"a\": [\"é\"]}\n</parameter>\n\
        <parameter=a>\n[1, 2]\n</parameter>\n\
        <parameter=s>\n\n  two \"lines\"\n\t\n\n</parameter>\n\
        <parameter=unlisted>\n5\n</parameter>\n\
        </function>\n</tool_call>";
    assert_eq!(
        sketch(reply, false),
        r#"[f {"i":5,"n":null,"b":true,"o":{"z":1,"a":["é"]},"a":[1,2],"s":"\n  two \"lines\"\n\t\n","unlisted":"5"}]"#
    );
}

#[test]
fn slips_are_forgiven() {
    let f = r#"[f {"s":"x"}]"#;
    for (reply, thinking, expected) in [
        // Without its opener, or any closer.
        (
            "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
            false,
            f.to_owned(),
        ),
        ("<function=f>\n<parameter=s>\nx\n</parameter>\n</function>", false, f.to_owned()),
        (
            "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>",
            false,
            f.to_owned(),
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>",
            false,
            f.to_owned(),
        ),
        ("<tool_call>\n<function=f>\n<parameter=s>\nx\n</tool_call>", false, f.to_owned()),
        (
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>",
            false,
            f.to_owned(),
        ),
        ("<tool_call>\n<function=f>\n<parameter=s>\nx", false, r#"[f {"s":"x"}~"#.into()),
        (
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>",
            false,
            r#"[f {"s":"x","i":5}]"#.into(),
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<tool_call>\n<function=g>\n",
            false,
            format!("{f}[g {{}}~"),
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n<tool_call>\n<function=g>\n",
            false,
            format!("{f}[g {{}}~"),
        ),
        (
            "<tool_call>\n<function=g>\n</function>\n<function=g>\n</function>\n</tool_call>",
            false,
            "[g {}][g {}]".into(),
        ),
        // Inside thinking.
        (
            "why\n\n<tool_call>\n<function=g>\n</function>\n</tool_call>\n</think>\n\nso",
            true,
            "{why}[g {}]so".into(),
        ),
        ("why\n<function=g>\n</function>", true, "{why}[g {}]".into()),
        ("why <function=g> is", true, "{why <function=g> is}".into()),
        ("why\n<tool_call>\n</think>\n\nso", true, "{why\n<tool_call>}so".into()),
        // No call at all.
        ("say <function=other> now", false, "say <function=other> now".into()),
        (
            "<tool_call>{\"name\": \"f\"}</tool_call>",
            false,
            "<tool_call>{\"name\": \"f\"}</tool_call>".into(),
        ),
        ("<tool_call>\n", false, "<tool_call>\n".into()),
        ("<tool_call>\n<function=>\n", false, "<tool_call>\n<function=>\n".into()),
    ] {
        assert_eq!(sketch(reply, thinking), expected, "{reply:?}");
    }
}

#[test]
fn text_in_a_call_is_content_and_so_is_a_second_value() {
    let reply = "<tool_call>\n<function=f>\nwell \n<parameter=s>\nx\n</parameter>\n\
        <parameter=i>\n1\n</parameter>\n<parameter=s>\ny\n</parameter>\n</function>\n</tool_call>";
    let events = parse([reply], false);
    let mut result = Reply::default();
    events.iter().for_each(|event| result.add(event));
    // The second `s` follows a closed parameter, so it cannot be part of that one's value only if
    // the key is new: here it is kept as text of the value before it.
    assert_eq!(result.tool_calls.len(), 1);
    assert!(result.content.starts_with("well"), "{events:?}");
    let all = format!("{events:?}");
    assert!(all.contains('y'), "{all}");
}

#[test]
fn a_value_may_speak_of_tags() {
    for value in [
        "</parameter>",
        "a </parameter> b",
        "a\n</parameter>\nb",
        "</function>",
        "x </tool_call> y",
        "\n</function>\nmore",
        "<tool_call>",
        "say <function=f> and <parameter=s>",
        "</think><think>",
        "</parameter></parameter>",
        "<parameter=s>\n",
        "trailing <",
        "</parameter",
        "\n\n",
    ] {
        let reply = format!(
            "<tool_call>\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n</tool_call>"
        );
        let expected = format!("[f {{\"s\":{}}}]", Value::from(value));
        assert_eq!(sketch(&reply, false), expected, "{value:?}");
    }
}

#[test]
fn a_call_that_the_reply_ends_in_is_marked() {
    let mut reply = String::new();
    for (end, expected) in [
        // It may still be text about calls.
        ("<tool_call>", "<tool_call>"),
        ("\n<functi", "<tool_call>\n<functi"),
        ("on=f", "<tool_call>\n<function=f"),
        (">", "[f {}~"),
        ("\n<param", "[f {}~"),
        ("eter=s", "[f {}~"),
        (">", r#"[f {"s":""}~"#),
        ("\nx", r#"[f {"s":"x"}~"#),
        ("\n", r#"[f {"s":"x"}~"#),
        // It may still be part of the value.
        ("</param", r#"[f {"s":"x\n</param"}~"#),
        ("eter>", r#"[f {"s":"x"}~"#),
        ("\n</func", r#"[f {"s":"x"}~"#),
        ("tion>", r#"[f {"s":"x"}]"#),
        ("\n</tool_c", r#"[f {"s":"x"}]"#),
        ("all>", r#"[f {"s":"x"}]"#),
    ] {
        reply += end;
        assert_eq!(sketch(&reply, false), expected, "{reply:?}");
    }
    assert_eq!(reply, CALL);
    for (reply, expected) in [
        ("<tool_call>\n<function=f>\n<parameter=o>\n{\"k\": [1", r#"[f {"o":"{\"k\": [1"}~"#),
        ("<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>", r#"[f {"s":"x"}]"#),
        ("<tool_call>\n<function=g>\nwell, <par", "[g well, <par{}~"),
    ] {
        assert_eq!(sketch(reply, false), expected, "{reply:?}");
    }
}

#[test]
fn a_string_of_json_may_speak_of_tags() {
    for value in [
        json!({"k": "</parameter></function></tool_call>"}),
        json!({"k": "</parameter> </function>"}),
        json!({"k": "a</parameter>\n</function>\n</tool_call>\n<tool_call>"}),
        json!({"k": "</function></tool_call>", "l": "</parameter><parameter=i>5"}),
        json!({"k": "\"</parameter></function>\\", "</parameter><parameter=x>": [1]}),
        json!([["</tool_call><tool_call><function=g>"]]),
    ] {
        for key in ["o", "a"] {
            for value in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let reply = format!(
                    "<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n<parameter=i>\n5\n</parameter>\n</function>\n</tool_call>"
                );
                let compact: Value = serde_json::from_str(&value).unwrap();
                let expected = format!("[f {{\"{key}\":{compact},\"i\":5}}]");
                // A list is what `a` may be; an object there is a text.
                if key == "o" || compact.is_array() {
                    assert_eq!(sketch(&reply, false), expected, "{value}");
                }
            }
        }
    }
}

/// A value that is no JSON in the end is cut as if nobody had looked for strings in it.
#[test]
fn broken_json_does_not_swallow_the_reply() {
    let close = "</parameter></function></tool_call>";
    let open = "<tool_call><function=f><parameter=o>";
    for (value, read) in [
        (r#"{"k": "v"#, r#""{\"k\": \"v""#),
        (r#"{"k": "say "hi" v}"#, r#""{\"k\": \"say \"hi\" v}""#),
        ("[\"a\nb\"]", "\"[\\\"a\\nb\\\"]\""),
        (r#"{"k": 1"#, r#""{\"k\": 1""#),
    ] {
        let call = format!("[f {{\"o\":{read}}}]");
        let g = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
        for (reply, expected) in [
            (format!("{open}{value}{close}"), call.clone()),
            (format!("{open}{value}{close} and \"so\" on"), format!("{call} and \"so\" on")),
            (format!("{open}{value}{close}\n{g}"), format!("{call}[g {{}}]")),
            (format!("{open}{value}\n{close}\n{g}"), format!("{call}[g {{}}]")),
            (format!("{open}{value}{close}{open}{value}{close}"), format!("{call}{call}")),
            (
                format!("{open}{value}{close}{open}{{\"k\": \"v\"}}{close}"),
                format!("{call}[f {{\"o\":{{\"k\":\"v\"}}}}]"),
            ),
        ] {
            assert_eq!(sketch(&reply, false), expected, "{reply:?}");
        }
    }
}

/// A delta of a few kilobytes may hold several calls.
#[test]
fn two_calls_in_one_piece_are_two() {
    let mut parser = ReplyParser::new(&tools(), false);
    let calls = format!("Both.\n\n{CALL}\n{}", CALL.replace("\nx\n", "\ny\n"));
    let mut ends = Vec::new();
    for event in parser.push(&calls) {
        if let Event::ToolCallEnd { index, arguments, closed } = event {
            ends.push((index, arguments["s"].clone(), closed));
        }
    }
    assert_eq!(ends, [(0, json!("x"), true), (1, json!("y"), true)]);
    assert_eq!(parser.finish(), []);
}

/// Thinking or a call that never ends streams as it comes, and is all there at the end.
#[test]
fn a_megabyte_without_an_end_streams() {
    let line = "all work and no play\n";
    type Check = fn(&Event) -> bool;
    let content: Check = |event| matches!(event, Event::Content(_));
    let cases: [(&str, Check); 4] = [
        ("<think>", |event| matches!(event, Event::Reasoning(_))),
        ("<tool_call>", content),
        ("<tool_call>\n<function=f>\n", content),
        ("<tool_call>\n<function=f>\n<parameter=s>\n", |event| {
            matches!(event, Event::ToolCallArguments { .. })
        }),
    ];
    for (start, is_expected) in cases {
        let mut parser = ReplyParser::new(&tools(), false);
        parser.push(start);
        for number in 0..50_000 {
            let events = parser.push(line);
            let is_first = number == 0;
            assert!(is_first || (events.len() == 1 && is_expected(&events[0])), "{events:?}");
            assert!(format!("{events:?}").len() < 200, "{events:?}");
        }
        let last = parser.finish();
        let is_open = |event: &Event| matches!(event, Event::ToolCallEnd { closed: false, .. });
        assert_eq!(last.iter().any(is_open), start.contains("function"), "{last:?}");
    }
}

#[test]
fn gives_out_text_as_soon_as_it_cannot_be_a_tag() {
    let mut parser = ReplyParser::new(&tools(), false);
    let content = |text: &str| vec![Event::Content(text.to_owned())];
    assert_eq!(parser.push("Hello"), content("Hello"));
    assert_eq!(parser.push(" <"), content(" "));
    assert_eq!(parser.push("b>\n"), content("<b>"));
    assert_eq!(parser.push("\n\n"), content("\n"));
    assert_eq!(parser.push("x"), content("\n\nx"));
    assert_eq!(parser.push("<tool_call>"), []);
    assert_eq!(
        parser.push("<function=f><parameter=s>abc"),
        [
            Event::ToolCallStart { index: 0, name: "f".into() },
            Event::ToolCallArguments { index: 0, json: "{\"s\":\"abc".into() },
        ]
    );
    let more = Event::ToolCallArguments { index: 0, json: "\\\"".into() };
    assert_eq!(parser.push("\""), [more]);
    assert_eq!(parser.push("\n"), []);
}

/// Work on a reply of this size, given whole and letter by letter.
fn work(unit: &str, start: &str, bytes: usize) -> usize {
    let reply = start.to_owned() + &unit.repeat(bytes / unit.len());
    let mut most = 0;
    for step in [1, reply.len()] {
        let mut parser = ReplyParser::new(&tools(), true);
        let mut given = 0;
        for piece in reply.as_bytes().chunks(step) {
            given += parser.push(std::str::from_utf8(piece).unwrap()).len();
        }
        parser.parser.finish();
        most = most.max(parser.parser.work + given);
    }
    most
}

#[test]
fn a_megabyte_of_anything_is_linear() {
    let value = "<tool_call><function=f><parameter=s>";
    let json = "<tool_call><function=f><parameter=o>{\"k\": \"";
    for (start, unit) in [
        ("", "think "),
        ("", "<"),
        ("", "\n"),
        ("", "<tool_call>"),
        ("", "<tool_call>\n"),
        ("<tool_call>", " "),
        ("</think>", " "),
        ("</think>", "\n<think"),
        ("<tool_call><function=", "x"),
        ("<tool_call><function=f>", "<parameter="),
        ("<tool_call><function=f>", "stray </parameter>"),
        (value, "x\n"),
        (value, "</parameter>"),
        (value, "</parameter> \n"),
        (value, "\n</function>\n"),
        (value, "</tool_call>"),
        (&format!("{value}</parameter>"), " "),
        (json, "x\n"),
        (json, "\\\""),
        (json, "</parameter></function>"),
        (json, "</parameter></function></tool_call><tool_call><function=f><parameter=o>{\""),
        ("", "<tool_call><function=f><parameter=o>[\"</parameter></function>"),
        ("", "<tool_call><function=f><parameter=o>[\"</parameter></function>\n"),
        ("", "<tool_call><function=g>"),
    ] {
        let small = work(unit, start, 1 << 14);
        let large = work(unit, start, 1 << 20);
        // Sixty-four times the text, and no more than that much more work.
        assert!(large <= small * 66 + 4096, "{start:?} {unit:?}: {small} -> {large}");
        assert!(large <= 12 << 20, "{start:?} {unit:?}: {large}");
    }
}

/// Replies made of what matters to the parser.
fn replies() -> impl Strategy<Value = String> {
    let atoms = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=g>",
        "<function=nobody>",
        "</function>",
        "<parameter=s>",
        "<parameter=i>",
        "<parameter=o>",
        "<parameter=a>",
        "<parameter=x>",
        "</parameter>",
        "\n",
        "\n",
        "\n\n",
        " ",
        "Q",
        "Z1",
        "5",
        "{\"k\": [1]}",
        "{\"k\": \"",
        "[\"",
        "\"]",
        "\"}",
        "</parameter></function>",
        "\"",
        "\\",
        "é",
        "🙂",
        "<",
        ">",
        "</",
        "null",
        "<tool",
        "</param",
    ];
    prop::collection::vec(prop::sample::select(atoms.to_vec()), 0..40)
        .prop_map(|atoms| atoms.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn cuts_do_not_matter_and_nothing_is_lost(
        reply in replies(),
        thinking: bool,
        piece_chars in 1usize..9,
    ) {
        check(&reply, thinking, piece_chars);
    }

    #[test]
    fn a_written_call_is_read_back(
        reasoning in "[a-z \\n]{0,20}",
        content in "[a-z<>\\n]{0,20}",
        values in prop::collection::btree_map("[a-z]{2,6}", "[a-z<>/= \"\\n]{0,20}", 0..5),
    ) {
        let (reasoning, content) = (reasoning.trim(), content.trim());
        let mut reply = format!("{reasoning}\n</think>\n\n{content}");
        if !content.is_empty() {
            reply += "\n\n";
        }
        reply += "<tool_call>\n<function=h>\n";
        for (key, value) in &values {
            reply += &format!("<parameter={key}>\n{value}\n</parameter>\n");
        }
        reply += "</function>\n</tool_call>";
        let mut result = Reply::default();
        parse([reply.as_str()], true).iter().for_each(|event| result.add(event));
        prop_assert_eq!(result.reasoning, reasoning);
        prop_assert_eq!(result.content, content);
        prop_assert_eq!(result.tool_calls.len(), 1);
        prop_assert_eq!(&result.tool_calls[0].name, "h");
        let arguments: Vec<(String, String)> = result.tool_calls[0]
            .arguments
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect();
        prop_assert_eq!(arguments, values.into_iter().collect::<Vec<_>>());
    }
}
