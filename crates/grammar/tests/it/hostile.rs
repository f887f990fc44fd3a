//! Hostile grammars are errors, or matchers whose steps are bounded.

use crate::fixtures::{Fixture, demo, published};
use calla_engine::structure::Grammar;
use calla_grammar::{ToolChoice, tool_calls};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// No hang, also on a machine with other work: on an idle one, the slowest case takes under a second.
const TIME_MAX: Duration = Duration::from_secs(15);

/// Compiles and takes steps; says how it went, for the log.
fn survive(fixture: &Fixture, name: &str, grammar: &Grammar) -> Result<(), String> {
    let start = Instant::now();
    let compiled = fixture.compiler.compile(grammar);
    let took = start.elapsed();
    let outcome = match compiled {
        Err(error) => {
            let words = error.to_string();
            assert!(words.len() < 1000, "{name}: {words}");
            Err(words)
        }
        Ok(mut matcher) => {
            let mut worst = Duration::ZERO;
            for step in 0..30 {
                let start = Instant::now();
                let mask = matcher.mask();
                worst = worst.max(start.elapsed());
                let Ok(mask) = mask else { break };
                let texts = fixture.allowed(&mask).into_iter().filter(|t| !fixture.eos.contains(t));
                let texts: Vec<u32> = texts.collect();
                let Some(&token) = texts.get(step * 7919 % texts.len().max(1)) else { break };
                if matcher.accept(token).is_err() {
                    break;
                }
            }
            assert!(worst < TIME_MAX, "{name}: a step took {worst:?}");
            Ok(())
        }
    };
    eprintln!("{name}: {took:?} {outcome:?}");
    assert!(took < TIME_MAX, "{name}: {took:?}");
    outcome
}

fn schema_texts() -> Vec<(&'static str, String)> {
    let wide: Value = (0..100_000)
        .map(|i| (format!("p{i}"), json!({})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let less: Value = wide
        .as_object()
        .unwrap()
        .clone()
        .into_iter()
        .take(10_000)
        .collect::<serde_json::Map<_, _>>()
        .into();
    let some: Value = (0..2_000)
        .map(|i| (format!("p{i}"), json!({"type": "integer"})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let chain: Value = (0..1_900)
        .map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)})))
        .chain([("d1900".into(), json!({"type": "null"}))])
        .collect::<serde_json::Map<_, _>>()
        .into();
    let deep_chain: Value = (0..1_900)
        .map(|i| {
            (
                format!("d{i}"),
                json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", i + 1)}}),
            )
        })
        .chain([("d1900".into(), json!({"type": "null"}))])
        .collect::<serde_json::Map<_, _>>()
        .into();
    let squares: Value = (0..40).map(|i| (format!("d{i}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]}))).chain([("d40".into(), json!({"anyOf": [{"type": "null"}, {"type": "integer"}]}))]).collect::<serde_json::Map<_, _>>().into();
    let union = json!({"anyOf": (0..10).map(|i| json!({"type": "object", "properties": {format!("k{i}"): {"const": i}}})).collect::<Vec<_>>()});
    let big = json!({"type": "object", "properties": {"x": {"enum": (0..9_000).map(|i| format!("value {i}")).collect::<Vec<_>>()}}});
    vec![
        ("invalid", "{".into()),
        ("empty", String::new()),
        ("number", "5".into()),
        ("string", "\"a\"".into()),
        ("false", "false".into()),
        ("nul", "{\"const\": \"\0\"}".into()),
        ("lone surrogate", "{\"const\": \"\\ud800\"}".into()),
        ("deep arrays", "[".repeat(100_000)),
        ("deep schema", format!("{}{}", "{\"items\":".repeat(50_000), "}".repeat(50_000))),
        ("nested 120", format!("{}{{}}{}", "{\"items\":".repeat(120), "}".repeat(120))),
        ("nested 60", format!("{}{{}}{}", "{\"items\":".repeat(60), "}".repeat(60))),
        ("2 MB", format!("{{\"title\": \"{}\"}}", "a".repeat(2 << 20))),
        ("100k properties", json!({"properties": wide}).to_string()),
        ("10k properties", json!({"properties": less}).to_string()),
        ("2000 properties", json!({"type": "object", "properties": some, "additionalProperties": false}).to_string()),
        ("enum 100k", json!({"enum": (0..100_000).collect::<Vec<_>>()}).to_string()),
        ("enum 10k numbers", json!({"enum": (0..10_000).collect::<Vec<_>>()}).to_string()),
        ("enum 10k strings", json!({"enum": (0..10_000).map(|i| format!("a word {i}")).collect::<Vec<_>>()}).to_string()),
        ("enum typed", json!({"type": "string", "enum": (0..10_000).map(|i| format!("w{i}")).collect::<Vec<_>>()}).to_string()),
        ("circle", json!({"$ref": "#"}).to_string()),
        ("circle with sibling", json!({"$ref": "#", "type": "object"}).to_string()),
        ("endless", json!({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}).to_string()),
        ("two circles", json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}).to_string()),
        ("allOf circle", json!({"allOf": [{"$ref": "#"}]}).to_string()),
        ("anyOf circle", json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}).to_string()),
        ("remote", json!({"$ref": "http://169.254.169.254/latest"}).to_string()),
        ("file", json!({"$ref": "file:///etc/passwd"}).to_string()),
        ("nowhere", json!({"$ref": "#/$defs/none"}).to_string()),
        ("chain", json!({"$ref": "#/$defs/d0", "$defs": chain}).to_string()),
        ("deep chain", json!({"$ref": "#/$defs/d0", "$defs": deep_chain}).to_string()),
        ("squares", json!({"$ref": "#/$defs/d0", "$defs": squares}).to_string()),
        ("product of unions", json!({"allOf": vec![union.clone(); 12]}).to_string()),
        ("copies", json!({"allOf": [big, {"anyOf": vec![json!({"minProperties": 0}); 1000]}]}).to_string()),
        ("cycles", json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"items": {"items": {"$ref": "#/$defs/a"}}}, "b": {"items": {"items": {"items": {"$ref": "#/$defs/b"}}}}}}).to_string()),
        ("minItems", json!({"type": "array", "minItems": 1_000_000_000}).to_string()),
        ("items 10000", json!({"type": "array", "items": {"type": "integer"}, "minItems": 10_000, "maxItems": 10_000}).to_string()),
        ("nested items", json!({"type": "array", "minItems": 9_000, "items": {"type": "array", "minItems": 9_000, "items": {"type": "array", "minItems": 9_000}}}).to_string()),
        ("maxLength", json!({"type": "string", "minLength": 1_000_000_000_000_u64}).to_string()),
        ("length 100000", json!({"type": "string", "minLength": 99_999, "maxLength": 100_000}).to_string()),
        ("contradiction", json!({"type": "integer", "minimum": 5, "maximum": 4}).to_string()),
        ("contradicting lengths", json!({"type": "string", "minLength": 5, "maxLength": 4}).to_string()),
        ("contradicting types", json!({"allOf": [{"type": "string"}, {"type": "integer"}]}).to_string()),
        ("huge numbers", json!({"type": "number", "minimum": -1e308, "maximum": 1e308}).to_string()),
        ("huge integers", json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}).to_string()),
        ("tiny multiples", json!({"type": "number", "multipleOf": 1e-300}).to_string()),
        ("odd multiples", json!({"type": "integer", "multipleOf": 987_654_321}).to_string()),
        ("zero multiples", json!({"type": "integer", "multipleOf": 0}).to_string()),
        ("multiples", json!({"allOf": [{"multipleOf": 99_991}, {"multipleOf": 99_989}]}).to_string()),
        ("pattern bomb", json!({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}).to_string()),
        ("pattern and", json!({"allOf": (1..12).map(|i| json!({"type": "string", "pattern": format!("(a.{{{i}}}b|c.*){{3,}}")})).collect::<Vec<_>>()}).to_string()),
        ("pattern properties", json!({"type": "object", "patternProperties": {"(a*)*b": {}, "(b*)*c": {}}}).to_string()),
        ("wrong kinds", json!({"type": 5}).to_string()),
        ("wrong list", json!({"anyOf": 5}).to_string()),
        ("long message", json!({"type": "string", "minLength": "é".repeat(60)}).to_string()),
        ("x-guidance", json!({"x-guidance": {"whitespace_pattern": "( *)*"}, "type": "object"}).to_string()),
        ("minProperties", json!({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}).to_string()),
    ]
}

fn regexes() -> Vec<(&'static str, String)> {
    vec![
        ("repetitions", "(a{1000}){1000}".into()),
        ("repetitions of many", "((a{1,1000}){1,1000}){1,1000}".into()),
        ("stars", "(a*)*b".into()),
        ("deep", format!("{}a{}", "(".repeat(20_000), ")".repeat(20_000))),
        ("unbalanced", "(((".into()),
        ("long", "a".repeat(100_000)),
        ("alternatives", (0..9_000).map(|i| i.to_string()).collect::<Vec<_>>().join("|")),
        ("exponential", "(.*a.{20})".into()),
        ("exponential 2", "(a|b)*a(a|b){500}".into()),
        ("unicode", "\\p{L}{1,500}\\w{1,500}".into()),
        ("look-ahead", "(?=a)a".into()),
        ("back reference", "(a)\\1".into()),
        ("nothing", "[^\\x00-\\u{10FFFF}]".into()),
        ("empty", String::new()),
        ("anchors", "^$".into()),
        ("line", "a\nstart: b".into()),
        ("slash", "a/\nb: \"c\" /".into()),
    ]
}

fn larks() -> Vec<(&'static str, String)> {
    let rules = (0..9_000).map(|i| format!("r{i}: r{}\n", i + 1)).collect::<String>();
    let tokens = (0..9_000).map(|i| format!("T{i}: T{}\n", i + 1)).collect::<String>();
    vec![
        ("left recursion", "start: start \"a\" | \"a\"".into()),
        ("right recursion", "start: \"a\" start | \"a\"".into()),
        ("endless", "start: \"a\" start".into()),
        ("only itself", "start: start".into()),
        ("ambiguous", "start: a a a a a\na: \"x\" | a a | \"\" ".into()),
        ("empty loop", "start: (\"\")* \"a\"".into()),
        ("empty stars", "start: ((\"a\"*)*)*".into()),
        ("missing", "start: a".into()),
        ("no start", "a: \"a\"".into()),
        ("empty", String::new()),
        ("repeat", "start: \"a\"~1000000000".into()),
        ("repeat rules", "start: a~100000\na: b~100000\nb: \"x\" | \"y\"".into()),
        ("deep", format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        ("nested 900", format!("start: {}\"a\"{}", "(".repeat(900), ")".repeat(900))),
        ("not", format!("start: A\nA: {}\"a\"", "~".repeat(100_000))),
        ("chain of rules", format!("start: r0\n{rules}r9000: \"a\"")),
        ("chain of tokens", format!("start: T0\n{tokens}T9000: \"a\"")),
        ("circle of tokens", "start: A\nA: B\nB: A".into()),
        ("invalid bytes", "%llguidance {\"allow_invalid_utf8\": true}\nstart: /(?s:.*)/".into()),
        (
            "invalid bytes escaped",
            "%llguidance {\"\\u0061llow_invalid_utf8\": true}\nstart: /(?s-u:.*)/".into(),
        ),
        ("remote", "%import http.X\nstart: X".into()),
        ("nul", "start: \"\0\"".into()),
        (
            "bomb in it",
            format!(
                "start: %json {}",
                schema_texts().iter().find(|(n, _)| *n == "squares").unwrap().1
            ),
        ),
        ("json in it", "start: %json {\"type\": \"object\"}".into()),
        ("not of bombs", "start: A\nA: ~/(.*a.{18})/ & /(b|.*c.{18})*/".into()),
        (
            "substring",
            format!("start: A\nA: %regex {{\"substring_chars\": \"{}\"}}", "ab".repeat(50_000)),
        ),
        ("2 MB", "a".repeat(2 << 20)),
    ]
}

fn all(fixture: &Fixture) -> Vec<(String, Result<(), String>)> {
    let schemas = schema_texts().into_iter().map(|(n, t)| (n, Grammar::JsonSchema(t)));
    let regexes = regexes().into_iter().map(|(n, t)| (n, Grammar::Regex(t)));
    let larks = larks().into_iter().map(|(n, t)| (n, Grammar::Lark(t)));
    let cases = schemas.chain(regexes).chain(larks);
    cases.map(|(name, grammar)| (name.to_owned(), survive(fixture, name, &grammar))).collect()
}

#[test]
fn hostile_grammars_are_survived() {
    let outcomes = all(demo());
    let of = |name: &str| &outcomes.iter().find(|(n, _)| n == name).unwrap().1;
    for (name, words) in [
        ("invalid", "EOF"),
        ("100k properties", "over the bound of 1048576"),
        ("10k properties", "10000, over the bound of 2000"),
        ("enum 100k", "over the bound of 10000"),
        ("remote", "nothing is fetched"),
        ("file", "nothing is fetched"),
        ("nowhere", "leads nowhere"),
        ("minItems", "over the bound of 10000"),
        ("product of unions", "intersections"),
        ("squares", "intersections"),
        ("copies", "intersections"),
        ("false", "no value at all"),
        ("contradiction", "5"),
        ("huge numbers", "within 2^63"),
        ("huge integers", "within 2^63"),
        ("tiny multiples", "multipleOf"),
        ("odd multiples", "multipleOf"),
        ("zero multiples", "multipleOf"),
        ("multiples", "common multiple"),
        ("long message", "not a whole number"),
        ("bomb in it", "intersections"),
        ("invalid bytes", "UTF-8"),
        ("invalid bytes escaped", "UTF-8"),
        ("2 MB", "over the bound of 1048576"),
    ] {
        let error = of(name).as_ref().expect_err(name);
        assert!(error.contains(words), "{name}: {error}");
    }
    for name in [
        "2000 properties",
        "enum 10k strings",
        "chain",
        "nested 60",
        "right recursion",
        "left recursion",
    ] {
        assert_eq!(of(name), &Ok(()), "{name}");
    }
}

#[test]
fn hostile_grammars_are_survived_at_full_vocabulary() {
    if let Some(fixture) = published() {
        assert!(all(fixture).iter().any(|(_, outcome)| outcome.is_err()));
    }
}

#[test]
fn unsupported_keywords_are_named() {
    for keyword in [
        "not",
        "if",
        "uniqueItems",
        "contains",
        "propertyNames",
        "unevaluatedProperties",
        "$dynamicRef",
    ] {
        let schema = json!({"properties": {"a": {"type": "array", keyword: true}}});
        let error =
            demo().compiler.compile(&Grammar::JsonSchema(schema.to_string())).err().unwrap();
        let words = error.to_string();
        assert!(words.contains(keyword) && words.contains("#/a"), "{words}");
    }
}

#[test]
fn hostile_tools_are_survived() {
    let tool = |name: usize, prefix: usize| {
        let properties: Value = (0..1_000)
            .map(|i| (format!("p{prefix}_{i}"), json!({"type": "integer"})))
            .collect::<serde_json::Map<_, _>>()
            .into();
        json!({"name": format!("f{name}"), "parameters": {"properties": properties}})
    };
    let start = Instant::now();
    let different: Vec<Value> = (0..100).map(|i| tool(i, i)).collect();
    let error = tool_calls(&different, &ToolChoice::Required, true).unwrap_err();
    assert!(error.to_string().contains("over the bound of 10000"), "{error}");
    assert!(start.elapsed() < TIME_MAX);
    // Equal values and equal parameters are written once.
    let alike: Vec<Value> = (0..100).map(|i| tool(i, 0)).collect();
    assert!(tool_calls(&alike, &ToolChoice::Required, true).is_err());
    for tools in [&alike[..1], &alike[..10]] {
        let grammar = tool_calls(tools, &ToolChoice::Required, true).unwrap();
        let name = format!("{} tools of 1000 parameters", tools.len());
        assert_eq!(survive(demo(), &name, &grammar), Ok(()));
    }
    // A thousand schemas are a thousand lexers, which is over the compiler's bound.
    let properties: Value = (0..1_000)
        .map(|i| (format!("p{i}"), json!({"type": "integer", "minimum": -1_000_000_000_000_000_i64 - i, "maximum": 1_000_000_000_000_000_i64 + i})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let tools = [json!({"name": "f", "parameters": {"properties": properties}})];
    let grammar = tool_calls(&tools, &ToolChoice::Required, true).unwrap();
    let error = survive(demo(), "1000 schemas", &grammar).unwrap_err();
    assert!(error.contains("too big") && !error.contains("%json"), "{error}");
    let mut deep = json!({});
    for _ in 0..1_000 {
        deep = json!({"type": "array", "items": deep});
    }
    let tools = [json!({"name": "f", "parameters": {"properties": {"x": deep}}})];
    let error = tool_calls(&tools, &ToolChoice::Required, true).unwrap_err();
    assert!(error.to_string().contains("nests"), "{error}");
}
