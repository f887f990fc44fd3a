//! `GET /openapi.json` and a page that shows it.

use crate::app::App;
use crate::{anthropic, health, metrics, openai, responses, tokens};
use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::sync::LazyLock;
use utoipa::OpenApi;

pub(crate) const DOCS_PATH: &str = "/docs";
pub(crate) const OPENAPI_PATH: &str = "/openapi.json";

/// The description of all paths.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "calla",
        description = "One model behind OpenAI's and Anthropic's APIs. Fields that are not listed are accepted \
                       and have no effect."
    ),
    paths(health::health, metrics::scrape, tokens::tokenize, tokens::detokenize,)
)]
struct Api;

static OPENAPI: LazyLock<Value> = LazyLock::new(|| {
    let mut api = Api::openapi();
    api.merge(openai::Api::openapi());
    api.merge(responses::Api::openapi());
    api.merge(anthropic::Api::openapi());
    serde_json::to_value(&api).unwrap_or_default()
});

static OPENAPI_TEXT: LazyLock<String> = LazyLock::new(|| OPENAPI.to_string());
static DOCS: LazyLock<String> = LazyLock::new(|| page(&OPENAPI));

/// The routes of this page.
pub(crate) fn routes() -> Router<App> {
    Router::new().route(OPENAPI_PATH, get(openapi)).route(DOCS_PATH, get(docs))
}

async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], OPENAPI_TEXT.as_str())
}

async fn docs() -> impl IntoResponse {
    // The page has no script and its style comes from the chat page's sheet.
    let policy = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'";
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, policy)];
    (headers, DOCS.as_str())
}

/// The description as a page for people.
fn page(api: &Value) -> String {
    let mut html = String::from(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>calla: API</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"icon\" href=\"/favicon.svg\"><link rel=\"stylesheet\" href=\"/page/docs.css\">\
         </head><body><main><h1>calla: API</h1>",
    );
    let described = api["info"]["description"].as_str().unwrap_or_default();
    html.push_str(&format!("<p>{}</p>", escaped(described)));
    html.push_str(
        "<p>The same for programs: <a href=\"/openapi.json\">/openapi.json</a>. \
                     The chat page: <a href=\"/\">/</a>.</p>",
    );
    for (path, operations) in object(&api["paths"]) {
        for (method, operation) in object(operations) {
            let heading = format!("{} {path}", method.to_uppercase());
            html.push_str(&format!("<section><h2><code>{}</code></h2>", escaped(&heading)));
            for field in ["summary", "description"] {
                if let Some(text) = operation[field].as_str() {
                    html.push_str(&format!("<p>{}</p>", escaped(text)));
                }
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            fields(&mut html, "Request", schema(api, body));
            let answer = &operation["responses"]["200"]["content"]["application/json"]["schema"];
            fields(&mut html, "Answer", schema(api, answer));
            html.push_str("</section>");
        }
    }
    html + "</main></body></html>"
}

/// The schema, or the one that it refers to.
fn schema<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        Some(pointer) => api.pointer(pointer).unwrap_or(&Value::Null),
        None => schema,
    }
}

/// A table of a schema's fields, if it has any.
fn fields(html: &mut String, title: &str, schema: &Value) {
    let properties = object(&schema["properties"]);
    if properties.is_empty() {
        return;
    }
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    html.push_str(
        &format!(
            "<table><caption>{title}</caption><thead><tr><th scope=\"col\">field</th><th scope=\"col\">type</th>\
         <th scope=\"col\">meaning</th></tr></thead><tbody>"
        ),
    );
    for (name, property) in properties {
        let is_required = title == "Request" && required.contains(&name.as_str());
        let meaning = property["description"].as_str().unwrap_or_default();
        let need = if is_required { "<strong>Required.</strong> " } else { "" };
        html.push_str(&format!(
            "<tr><td><code>{}</code></td><td>{}</td><td>{need}{}</td></tr>",
            escaped(name),
            escaped(&type_of(property)),
            escaped(meaning)
        ));
    }
    html.push_str("</tbody></table>");
}

/// Words for a schema's type and bounds.
fn type_of(schema: &Value) -> String {
    let name = |value: &Value| value.as_str().map(str::to_owned);
    let mut words = match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds = kinds.iter().filter_map(name).filter(|kind| kind != "null");
            kinds.collect::<Vec<_>>().join(" or ")
        }
        _ => "object".to_owned(),
    };
    let bounds = (&schema["minimum"], &schema["maximum"]);
    match bounds {
        (Value::Number(least), Value::Number(most)) => {
            let _written = write!(words, ", {least} to {most}");
        }
        (Value::Number(least), _) => {
            let _written = write!(words, ", {least} or more");
        }
        _ => {}
    }
    words
}

fn object(value: &Value) -> &Map<String, Value> {
    static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    value.as_object().unwrap_or(&EMPTY)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_described_to_programs_and_to_people() {
        let paths = object(&OPENAPI["paths"]);
        for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/health", "/metrics"]
        {
            assert!(paths.contains_key(path), "{path} of {:?}", paths.keys());
            assert!(DOCS.contains(path));
        }
        assert!(DOCS.contains("<code>temperature</code>"));
        assert_eq!(escaped("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }

    #[test]
    fn no_reference_leads_nowhere() {
        fn check(value: &Value) {
            match value {
                Value::Object(map) => {
                    if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                        assert!(!schema(&OPENAPI, value).is_null(), "{reference}");
                    }
                    map.values().for_each(check);
                }
                Value::Array(list) => list.iter().for_each(check),
                _ => {}
            }
        }
        check(&OPENAPI);
    }
}
