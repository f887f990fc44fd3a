//! Tests of what is refused in a body, and of what the refusals say.

use super::parse;
use crate::error::{ApiError, ErrorKind};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize, PartialEq)]
struct Message {
    role: String,
    content: Option<String>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Body {
    messages: Vec<Message>,
    max_tokens: Option<u32>,
    temperature: Option<f64>,
}

fn headers(sent: &[(&'static str, &str)]) -> HeaderMap {
    let entries = sent.iter().map(|(name, value)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    });
    entries.collect()
}

fn read(body: impl AsRef<[u8]>) -> Result<Body, ApiError> {
    parse(&headers(&[("content-type", "application/json")]), body.as_ref())
}

#[test]
fn reads_what_is_right() {
    let body = read(
        r#" {"messages": [{"role": "user", "content": "a\u0000\ud83d\ude00"}], "other": [1, {}]} "#,
    );
    let message = Message { role: "user".into(), content: Some("a\0😀".into()) };
    assert_eq!(body, Ok(Body { messages: vec![message], max_tokens: None, temperature: None }));
    assert!(read("\u{feff}{\"messages\": []}").is_ok());
    assert_eq!(read(r#"{"messages": [], "temperature": -0.0}"#).unwrap().temperature, Some(-0.0));
}

#[test]
fn bodies_that_are_no_object_are_refused() {
    let cases = [
        ("", "empty"),
        (" \n", "empty"),
        ("[]", "must be a JSON object; it begins with []"),
        ("\"text\"", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("NaN", "must be a JSON object"),
        ("\0", "begins with \\0"),
        ("{", "line 1 column 1"),
        ("{\"messages\": [],\n  }", "line 2 column 3"),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("{'messages': []}", "line 1 column 2"),
        ("{\"temperature\": NaN}", "line 1"),
        ("{\"temperature\": 1e400}", "number out of range"),
        ("{\"temperature\": 01}", "line 1"),
        ("{\"a\": \"\\ud800\"}", "line 1"),
        ("{\"a\": \"\\udc00\"}", "lone"),
        ("{\"a\": \"\\ud800\\u0041\"}", "lone"),
        ("{\"a\": \"\u{1}\"}", "control character"),
        ("{\"a\": \"\0\"}", "control character"),
    ];
    for (body, expected) in cases {
        let error = read(body).unwrap_err();
        assert_eq!(
            (error.kind, error.code),
            (ErrorKind::Invalid, Some("invalid_json")),
            "{body:?}"
        );
        assert!(error.message.contains(expected), "{body:?}: {}", error.message);
        assert!(!error.message.contains(|c: char| c.is_control()), "{body:?}: {}", error.message);
    }
    let error = read(b"{\"messages\": \"\xFF\"}").unwrap_err();
    assert!(error.message.contains("not UTF-8: byte 14"), "{}", error.message);
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| {
        format!("{{\"messages\": [], \"a\": {}{}}}", "[".repeat(depth), "]".repeat(depth))
    };
    assert!(read(nested(126)).is_ok());
    for depth in [127, 10_000, 1_000_000] {
        let error = read(nested(depth)).unwrap_err();
        assert!(error.message.contains("deeper than 127 levels"), "{}", error.message);
    }
}

#[test]
fn repeated_keys_are_named() {
    let cases = [
        (r#"{"messages": [], "messages": []}"#, "messages"),
        (
            r#"{"messages": [], "tools": [{"a": 1}, {"b": {"c\n": 1, "c\n": 2}}]}"#,
            "tools[1].b.c\\n",
        ),
        (r#"{"messages": [], "a": 1, "\u0061": 2}"#, "a"),
    ];
    for (body, path) in cases {
        let error = read(body).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(path));
        assert_eq!(error.message, format!("{path}: the key is there twice"));
        let headers = headers(&[]);
        assert_eq!(parse::<Value>(&headers, body.as_bytes()).unwrap_err(), error);
    }
}

#[test]
fn wrong_types_are_named_with_what_was_expected() {
    let long = "x".repeat(1000);
    let cases = [
        (r#"{"messages": 5}"#.to_owned(), "messages", "integer `5`, expected a list"),
        (
            r#"{"messages": [{"role": "user"}, {"role": "user", "content": 5}]}"#.to_owned(),
            "messages[1].content",
            "integer `5`, expected a string",
        ),
        (
            r#"{"messages": [{"content": "a"}]}"#.to_owned(),
            "messages[0].role",
            "missing field `role`",
        ),
        ("{}".to_owned(), "messages", "missing field `messages`"),
        (
            r#"{"messages": [], "max_tokens": -1}"#.to_owned(),
            "max_tokens",
            "integer `-1`, expected a whole number, 0 or more",
        ),
        (
            r#"{"messages": [], "max_tokens": 1.5}"#.to_owned(),
            "max_tokens",
            "expected a whole number, 0 or more",
        ),
        (
            r#"{"messages": [], "max_tokens": 9223372036854775808}"#.to_owned(),
            "max_tokens",
            "integer `9223372036854775808`, expected a whole number, 0 or more",
        ),
        (
            format!(r#"{{"messages": [], "max_tokens": "a\u001b[31m\nb, expected {long}"}}"#),
            "max_tokens",
            "string \"a\\u{1b}[31m\\nb",
        ),
    ];
    for (body, path, expected) in cases {
        let error = read(&body).unwrap_err();
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::Invalid, Some(path)));
        assert!(error.message.starts_with(&format!("{path}: ")), "{}", error.message);
        assert!(error.message.contains(expected), "{}", error.message);
        assert!(error.message.len() < 200, "{}", error.message);
        assert!(!error.message.contains(|c: char| c.is_control()), "{}", error.message);
    }
}

#[test]
fn other_content_types_are_refused() {
    let read =
        |sent: &[(&'static str, &str)]| parse::<Value>(&headers(sent), b"{}").map_err(|e| e.kind);
    let good = [
        "application/json",
        "Application/JSON; charset=UTF-8",
        "application/json;charset=\"utf-8\"",
        "application/vnd.api+json",
        "application/json; profile=x",
    ];
    for kind in good {
        assert!(read(&[("content-type", kind), ("origin", "https://a")]).is_ok(), "{kind}");
    }
    let bad = [
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=a",
        "application/json; charset=utf-16",
        "text/x+json",
        "",
    ];
    for kind in bad {
        assert_eq!(read(&[("content-type", kind)]), Err(ErrorKind::MediaType), "{kind}");
    }
    assert!(read(&[]).is_ok());
    assert_eq!(read(&[("origin", "http://localhost")]), Err(ErrorKind::MediaType));
    let gzip = [("content-type", "application/json"), ("content-encoding", "gzip")];
    assert_eq!(read(&gzip), Err(ErrorKind::MediaType));
}
