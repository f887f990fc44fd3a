//! Masks let through exactly the replies that fit, whatever tokens spell them.

use crate::fixtures::{Fixture, demo, published};
use calla_engine::structure::Grammar;
use calla_grammar::GrammarError;
use serde_json::{Value, json};

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c\"\n"]}, "minItems": 1, "maxItems": 3},
        }, "required": ["name", "tags"], "additionalProperties": false}),
        json!({"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 4}),
        json!({"anyOf": [{"type": "number", "minimum": -1, "maximum": 1}, {"const": "none"}]}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        }, "required": ["value"], "additionalProperties": false}}}),
        json!({"type": "string", "pattern": "^[a-z]{2,4}$"}),
        json!({"allOf": [{"$ref": "#/definitions/a~1b"}, {"properties": {"y": {"type": "boolean"}}, "required": ["y"]}],
            "definitions": {"a/b": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3, "maximum": 9}}}}}),
        json!({"type": "object", "properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"], "additionalProperties": false}),
    ]
}

/// What closes JSON.
const JSON_ENDS: [&str; 6] = ["\"", "}", "]", ":", ",", "1"];

fn samples_validate(fixture: &Fixture, runs: u64) {
    let mut whole = 0;
    for schema in schemas() {
        let grammar = Grammar::JsonSchema(schema.to_string());
        let validator = jsonschema::validator_for(&schema).unwrap();
        for seed in 0..runs {
            let Some(ids) = fixture.sample(&grammar, seed, 40, &JSON_ENDS) else { continue };
            let text = fixture.tokenizer.decode(&ids, false);
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert!(validator.is_valid(&value), "{schema}\n{text}");
            whole += 1;
        }
    }
    assert!(whole > runs * 4, "only {whole} replies came to an end");
}

#[test]
fn what_masks_let_through_validates() {
    samples_validate(demo(), 20);
}

#[test]
fn what_masks_let_through_validates_at_full_vocabulary() {
    if let Some(fixture) = published() {
        samples_validate(fixture, 3);
    }
}

#[test]
fn a_mask_is_what_can_be_accepted() {
    let fixture = demo();
    let text = r#"{"name": "Ab\n é", "tags": ["a"]}"#;
    let ids = fixture.tokenizer.encode_text(text).unwrap();
    let grammar = Grammar::JsonSchema(schemas()[0].to_string());
    for length in 0..=ids.len() {
        let mut matcher = fixture.matcher(&grammar);
        assert_eq!(fixture.follow(&mut *matcher, &ids[..length]), None);
        let mask = matcher.mask().unwrap();
        for token in (0..fixture.vocab as u32).step_by(7).chain(fixture.allowed(&mask)) {
            let mut other = fixture.matcher(&grammar);
            assert_eq!(fixture.follow(&mut *other, &ids[..length]), None);
            let fits = mask.contains(token) && !fixture.eos.contains(&token);
            assert_eq!(other.accept(token).is_ok(), fits, "{token} after {length}");
            if length > 2 && token % 3 > 0 {
                break;
            }
        }
    }
}

fn every_tokenisation_fits(fixture: &Fixture) {
    let values = [
        (0, json!({"name": "ë <|im_end|>", "age": 30, "tags": ["a", "c\"\n"]})),
        (1, json!([true, null, false])),
        (2, json!(-0.25)),
        (3, json!({"value": -7, "children": [{"value": 0, "children": []}]})),
        (5, json!({"x": 4, "y": true})),
        (6, json!({"d": "2024-02-29"})),
    ];
    for (at, value) in values {
        let grammar = Grammar::JsonSchema(schemas()[at].to_string());
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            assert!(fixture.matches(&grammar, &text), "{text}");
            // Byte by byte, as far as each byte is a token.
            let bytes: Vec<u32> = text
                .bytes()
                .flat_map(|b| match b {
                    b' ' => fixture.tokenizer.token_id("Ġ"),
                    b'\n' => fixture.tokenizer.token_id("Ċ"),
                    0xc3 => fixture.tokenizer.token_id("Ã"),
                    0xab => fixture.tokenizer.token_id("«"),
                    b => fixture.tokenizer.token_id(&(b as char).to_string()),
                })
                .collect();
            assert_eq!(bytes.len(), text.len());
            assert!(fixture.matches_ids(&grammar, &bytes), "{text}");
        }
    }
}

#[test]
fn every_tokenisation_of_a_fitting_text_fits() {
    every_tokenisation_fits(demo());
    if let Some(fixture) = published() {
        every_tokenisation_fits(fixture);
    }
}

#[test]
fn json_objects_are_objects() {
    let fixture = demo();
    for (text, fits) in [
        ("{}", true),
        (r#"{"a": [1, {"b": null}], "c": "d"}"#, true),
        ("[]", false),
        ("1", false),
        ("null", false),
        (r#""a""#, false),
        ("{", false),
        ("{'a': 1}", false),
        ("{\"a\":  1}", false),
        ("{\n    \"a\": 1\n}", true),
    ] {
        assert_eq!(fixture.matches(&Grammar::JsonObject, text), fits, "{text:?}");
    }
}

#[test]
fn white_space_comes_to_an_end() {
    let fixture = demo();
    let mut matcher = fixture.matcher(&Grammar::JsonObject);
    let space = fixture.tokenizer.token_id("Ġ").unwrap();
    let line = fixture.tokenizer.token_id("Ċ").unwrap();
    let open = fixture.tokenizer.token_id("{").unwrap();
    matcher.accept(open).unwrap();
    matcher.accept(line).unwrap();
    let spaces = (0..1000).take_while(|_| matcher.accept(space).is_ok()).count();
    assert_eq!(spaces, 40);
    assert!(!matcher.mask().unwrap().contains(line));
}

#[test]
fn control_tokens_are_not_text() {
    let fixtures = [Some(demo()), published()];
    for fixture in fixtures.into_iter().flatten() {
        for grammar in [
            Grammar::JsonObject,
            Grammar::Regex("(?s:.*)".into()),
            Grammar::Lark("start: /(?s:.*)/".into()),
        ] {
            let mut matcher = fixture.matcher(&grammar);
            let open = fixture.tokenizer.encode_text("{\"").unwrap();
            assert_eq!(fixture.follow(&mut *matcher, &open), None);
            let mask = matcher.mask().unwrap();
            assert!(fixture.allowed(&mask).len() > fixture.vocab / 2);
            let ends = grammar != Grammar::JsonObject;
            for token in fixture.tokenizer.added_tokens() {
                let eos = fixture.eos.contains(&token.id);
                assert_eq!(mask.contains(token.id), eos && ends, "{grammar:?} {}", token.content);
                assert!(matcher.accept(token.id).is_err());
            }
            // Spelt with ordinary tokens, the same words are text.
            let spelt = fixture.tokenizer.encode_text("<|im_end|></think><tool_call>").unwrap();
            assert_eq!(fixture.follow(&mut *matcher, &spelt), None);
        }
    }
}

#[test]
fn turn_markers_cannot_be_asked_for() {
    let fixture = demo();
    let refusal = |lark: &str| fixture.compiler.compile(&Grammar::Lark(lark.into())).err();
    for name in ["<|im_start|>", "<|im_end|>", "<|endoftext|>"] {
        let barred = Some(GrammarError::BarredToken(name.into()));
        assert_eq!(refusal(&format!("start: {name} \"a\"")), barred);
        assert_eq!(refusal(&format!("start: \"a\" {name}")), barred);
        assert_eq!(refusal(&format!("start: \"{name}\" // {name}")), None);
    }
    assert_eq!(refusal("start: <[4088]>"), Some(GrammarError::Unsatisfiable));
    let mut matcher = fixture.matcher(&Grammar::Lark("start: </think> \"a\"".into()));
    let think = fixture.tokenizer.token_id("</think>").unwrap();
    assert_eq!(fixture.allowed(&matcher.mask().unwrap()), [think]);
    matcher.accept(think).unwrap();
    let a = fixture.tokenizer.token_id("a").unwrap();
    matcher.accept(a).unwrap();
    assert_eq!(fixture.allowed(&matcher.mask().unwrap()).len(), fixture.eos.len());
    assert!(matcher.accept(a).is_err());
}

#[test]
fn what_nothing_matches_is_refused_in_plain_words() {
    let fixture = demo();
    let mutual = r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##;
    for grammar in [
        Grammar::Regex("[a&&b]".into()),
        Grammar::JsonSchema(r##"{"$ref": "#"}"##.into()),
        Grammar::JsonSchema(mutual.into()),
        Grammar::Lark("start: start \"a\"".into()),
        Grammar::Lark("start: a\na: b\nb: a".into()),
    ] {
        let error = fixture.compiler.compile(&grammar).err();
        assert_eq!(error, Some(GrammarError::Unsatisfiable), "{grammar:?}");
    }
    let empty = fixture.compiler.compile(&Grammar::Lark("start: \"a\"?".into()));
    assert!(empty.unwrap().mask().unwrap().contains(fixture.eos[0]));
}

#[test]
fn the_bound_on_json_levels_is_named() {
    let fixture = demo();
    let schema = |mark: &str, levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        let text = format!("{mark}{{\"type\": \"null\", \"default\": {open}{close}}}");
        fixture.compiler.compile(&Grammar::JsonSchema(text)).err()
    };
    assert_eq!(schema("", 127), None);
    assert_eq!(schema("\u{feff}", 127), None);
    let error = schema("", 128).unwrap().to_string();
    assert!(error.contains("deeper than 127 levels at line 1"), "{error}");
}

#[test]
fn ids_beyond_those_in_use_are_never_allowed() {
    let fixture = demo();
    let eos = [fixture.tokenizer.token_id("!").unwrap()];
    let compiler = calla_grammar::Compiler::new(&fixture.tokenizer, 1000, &eos).unwrap();
    let mut matcher = compiler.compile(&Grammar::Regex("(?s:.*)".into())).unwrap();
    let mask = matcher.mask().unwrap();
    assert_eq!(mask.len(), 1000);
    assert!(mask.contains(eos[0]) && !mask.contains(1000) && matcher.accept(1000).is_err());
    assert!(calla_grammar::Compiler::new(&fixture.tokenizer, 1000, &[1000]).is_err());
    assert!(calla_grammar::Compiler::new(&fixture.tokenizer, 1000, &[]).is_err());
    // A checkpoint has more rows than its tokenizer has tokens.
    let wide = calla_grammar::Compiler::new(&fixture.tokenizer, 5000, &fixture.eos).unwrap();
    let mask = wide.compile(&Grammar::Regex("(?s:.*)".into())).unwrap().mask().unwrap();
    assert!((4096..5000).all(|id| !mask.contains(id)));
}

#[test]
fn regular_expressions_match_the_whole_reply() {
    let fixture = demo();
    for (regex, text, fits) in [
        ("^[0-9]{4}$", "2024", true),
        ("[0-9]{4}", "20245", false),
        ("a/b\\$", "a/b$", true),
        ("^a|b$", "b", true),
        ("(é|\\n)+", "é\n", true),
        ("\\x22\"", "\"\"", true),
    ] {
        assert_eq!(fixture.matches(&Grammar::Regex(regex.into()), text), fits, "{regex} {text}");
    }
}

#[test]
fn a_matcher_goes_to_another_thread() {
    let compiler = demo().compiler.clone();
    let mut matcher =
        std::thread::spawn(move || compiler.compile(&Grammar::JsonObject)).join().unwrap().unwrap();
    let mask = std::thread::spawn(move || matcher.mask()).join().unwrap().unwrap();
    assert!(mask.contains(demo().tokenizer.token_id("{").unwrap()));
}
