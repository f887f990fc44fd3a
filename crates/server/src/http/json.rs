//! Request bodies as JSON: what is wrong with one, and where.

use super::text::visible;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};
use std::fmt::Write as _;

mod unique;

/// Longest piece of a client's text in a message, in characters.
const VALUE_LENGTH_MAX: usize = 80;
/// Longest message of a deserialiser, in characters.
const MESSAGE_LENGTH_MAX: usize = 600;
/// How deeply a body may nest; `serde_json`'s own bound.
const DEPTH_MAX: usize = 127;

/// A request's body as a `T`. Its rejection has the shape of the path's dialect.
#[derive(Clone, Copy, Debug)]
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let dialect = Dialect::of_path(request.uri().path());
        let headers = request.headers().clone();
        let body = Bytes::from_request(request, state).await.map_err(|rejection| {
            dialect.error_response(&ApiError::new(ErrorKind::Invalid, rejection.body_text()))
        })?;
        let value = parse(&headers, &body).map_err(|error| dialect.error_response(&error))?;
        Ok(Self(value))
    }
}

/// Reads a body, which must be one JSON object in UTF-8 without repeated keys.
///
/// # Errors
///
/// 415 when its content type is another, or missing from a page's request; 400 when it is empty, is no such
/// object, or its fields are not those of a `T`, with the path of the field.
pub fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, ApiError> {
    check_type(headers)?;
    // Some editors and shells begin files with a byte order mark.
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    if body.trim_ascii().is_empty() {
        return Err(malformed("the body is empty; it must be a JSON object"));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        malformed(format!(
            "the body is not UTF-8: byte {} begins no character",
            error.valid_up_to()
        ))
    })?;
    let begin = text.trim_ascii_start();
    if !begin.starts_with('{') {
        let begin = visible(begin, 20);
        return Err(malformed(format!("the body must be a JSON object; it begins with {begin}")));
    }
    unique::check(text).map_err(|(path, error)| refused(&path, &error))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| refused(&named(error.path()), error.inner()))
}

/// A page of any origin may send other types without asking first; JSON it may not.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let shown =
        |value: &HeaderValue| visible(&String::from_utf8_lossy(value.as_bytes()), VALUE_LENGTH_MAX);
    if let Some(encoding) = headers.get(CONTENT_ENCODING).filter(|value| *value != "identity") {
        let message = format!(
            "the content encoding {} is not supported; send the body as it is",
            shown(encoding)
        );
        return Err(ApiError::new(ErrorKind::MediaType, message));
    }
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return if headers.contains_key(ORIGIN) { Err(untyped("missing")) } else { Ok(()) };
    };
    if value.to_str().is_ok_and(is_json) { Ok(()) } else { Err(untyped(&shown(value))) }
}

fn untyped(found: &str) -> ApiError {
    let message = format!(
        "the content type is {found}; it must be application/json (Content-Type: application/json)"
    );
    ApiError::new(ErrorKind::MediaType, message)
}

/// Whether a content type is JSON's, in UTF-8 as far as it says.
fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(|part| part.trim().to_ascii_lowercase());
    let essence = parts.next().unwrap_or_default();
    let is_suffixed = essence.starts_with("application/") && essence.ends_with("+json");
    let is_utf8 = |part: &String| match part.split_once('=') {
        Some(("charset", value)) => {
            matches!(value.trim_matches('"'), "utf-8" | "utf8" | "us-ascii")
        }
        _ => true,
    };
    (essence == "application/json" || is_suffixed) && parts.all(|part| is_utf8(&part))
}

fn malformed(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Invalid, message).with_code("invalid_json")
}

/// The error for what `serde_json` said about the value at `path`.
fn refused(path: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    if !error.is_data() {
        if text.starts_with("recursion limit exceeded") {
            let place = format!("line {} column {}", error.line(), error.column());
            return malformed(format!("the body nests deeper than {DEPTH_MAX} levels at {place}"));
        }
        return malformed(format!(
            "the body is not valid JSON: {}",
            visible(&text, MESSAGE_LENGTH_MAX)
        ));
    }
    // The place is of use for what cannot be parsed; here the path says it better.
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let path = match text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(field) if path.is_empty() => field.to_owned(),
        Some(field) => format!("{path}.{field}"),
        None => path.to_owned(),
    };
    let message = shortened(text);
    if path.is_empty() {
        malformed(message)
    } else {
        ApiError::invalid(&path, format!("{path}: {message}"))
    }
}

/// A deserialiser's message with the client's value cut short and what was expected, which is our text, kept.
fn shortened(text: &str) -> String {
    let (found, expected) = match text.rfind(", expected ") {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let expected = match expected.strip_prefix(", expected ") {
        Some(kind) => format!(", expected {}", in_words(kind)),
        None => String::new(),
    };
    format!("{}{}", visible(found, VALUE_LENGTH_MAX), visible(&expected, MESSAGE_LENGTH_MAX))
}

/// What a deserialiser expects, in JSON's words rather than Rust's.
fn in_words(kind: &str) -> &str {
    match kind {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        "a boolean" => "true or false",
        _ if kind.starts_with("struct ") || kind.starts_with("internally tagged enum ") => {
            "an object"
        }
        other => other,
    }
}

/// A path as clients know it: `messages[3].content`; empty for the body itself.
fn named(path: &Path) -> String {
    let mut out = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => {
                // A `String` can always be written to.
                let _ = write!(out, "[{index}]");
            }
            Segment::Map { key } => unique::push_key(&mut out, key),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    out
}

#[cfg(test)]
mod tests;
