//! How a parameter's value is written in a call: as bare text, as one of some words, or as JSON.
//!
//! The parser of replies keeps the text of a string, and reads JSON for the other types that a schema
//! allows. So a string is not quoted, and a schema that allows strings among others is a choice of forms.

use crate::GrammarError;
use crate::json_schema::{check_supported, resolve};
use crate::tool_calls::tool_error;
use serde_json::{Map, Value, json};

/// Schemas looked at for one parameter.
const NODES_MAX: usize = 256;
/// Nesting followed through references and unions.
const DEPTH_MAX: usize = 32;
/// Largest f64 that is an i64 too: the compiler keeps bounds as f64.
const INTEGER_MAX: i64 = i64::MAX - 1023;
/// Keywords that join schemas.
const JOINING: [&str; 4] = ["$ref", "anyOf", "oneOf", "allOf"];
/// Words that say nothing of the value.
const ANNOTATIONS: [&str; 12] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$comment",
    "$defs",
    "definitions",
    "deprecated",
    "readOnly",
    "writeOnly",
    "nullable",
];

/// Forms that a value may have.
#[derive(Debug, Default)]
pub(crate) struct Forms {
    /// Bare texts.
    pub(crate) texts: Vec<TextForm>,
    /// Bare texts that are listed.
    pub(crate) literals: Vec<String>,
    /// Schemas of values written as JSON; none of them allows a string at its top.
    pub(crate) json: Vec<Value>,
}

/// A bare text.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TextForm {
    min_length: u64,
    max_length: Option<u64>,
    pattern: Option<String>,
}

impl Forms {
    pub(crate) fn new(schema: &Value, root: &Value) -> Result<Forms, GrammarError> {
        let mut forms = Forms::default();
        forms.add(schema, root, DEPTH_MAX, &mut NODES_MAX.clone())?;
        Ok(forms)
    }

    /// Whether any text will do. One form of that kind takes in all others: a lexer cannot tell them apart.
    pub(crate) fn is_any_text(&self) -> bool {
        self.texts.contains(&TextForm::default())
    }

    fn add(
        &mut self,
        schema: &Value,
        root: &Value,
        depth: usize,
        nodes: &mut usize,
    ) -> Result<(), GrammarError> {
        if depth == 0 || *nodes == 0 {
            return Err(tool_error("its references or unions go too deep, or in circles".into()));
        }
        *nodes -= 1;
        let schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(true) => {
                self.texts.push(TextForm::default());
                return Ok(());
            }
            Value::Bool(false) => return Ok(()),
            _ => return Err(tool_error("its schema is neither an object nor a boolean".into())),
        };
        check_supported(schema, "#")?;
        if schema.get("nullable") == Some(&Value::Bool(true)) {
            self.json.push(json!({"type": "null"}));
        }
        let joined: Vec<&str> =
            JOINING.into_iter().filter(|key| schema.contains_key(*key)).collect();
        let Some(&joining) = joined.first() else { return self.add_plain(schema) };
        let members: Vec<&Value> = match (joining, &schema[joining]) {
            ("$ref", Value::String(reference)) => vec![resolve(root, reference)?],
            (_, Value::Array(members)) => members.iter().collect(),
            _ => return Err(tool_error(format!("the value of {joining:?} is of the wrong kind"))),
        };
        let alone = joined.len() == 1
            && (joining != "allOf" || members.len() == 1)
            && schema.keys().all(|k| k == joining || ANNOTATIONS.contains(&k.as_str()));
        let mut inner = Forms::default();
        for member in members {
            inner.add(member, root, depth - 1, nodes)?;
        }
        if alone {
            self.texts.append(&mut inner.texts);
            self.literals.append(&mut inner.literals);
            self.json.append(&mut inner.json);
            return Ok(());
        }
        let typed = schema.get("type").is_some_and(|kind| !names_string(kind));
        if typed || (inner.texts.is_empty() && inner.literals.is_empty()) {
            self.json.push(Value::Object(schema.clone()));
            return Ok(());
        }
        Err(tool_error(format!(
            "{joining:?} next to other constraints is not supported where a string is allowed"
        )))
    }

    /// A schema without references and unions.
    fn add_plain(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError> {
        let kind = schema.get("type");
        let listed = match (schema.get("enum"), schema.get("const")) {
            (_, Some(value)) => Some(std::slice::from_ref(value)),
            (Some(Value::Array(values)), None) => Some(values.as_slice()),
            (Some(_), None) => return Err(tool_error("\"enum\" is not a list".into())),
            (None, None) => None,
        };
        if let Some(values) = listed {
            if let Some(keyword) = ["pattern", "minLength", "maxLength"]
                .into_iter()
                .find(|keyword| schema.contains_key(*keyword))
            {
                return Err(tool_error(format!(
                    "{keyword:?} next to \"enum\" or \"const\" is not supported: list only what it allows"
                )));
            }
            let string_allowed = kind.is_none_or(names_string);
            let (texts, others): (Vec<&Value>, Vec<&Value>) =
                values.iter().partition(|value| value.is_string());
            if string_allowed {
                self.literals
                    .extend(texts.into_iter().filter_map(|v| v.as_str().map(str::to_owned)));
            }
            let other_allowed = kind.is_none_or(|kind| kind != "string");
            if !others.is_empty() && other_allowed {
                let mut schema = schema.clone();
                schema.remove("const");
                schema.insert("enum".into(), others.into_iter().cloned().collect());
                self.json.push(schema.into());
            }
            return Ok(());
        }
        let kinds: Vec<&str> = match kind {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            Some(_) => return Err(tool_error("\"type\" is neither a string nor a list".into())),
            None if schema.contains_key("properties") => vec!["object"],
            None if schema.contains_key("items") => vec!["array"],
            None => vec!["string"],
        };
        for kind in kinds {
            if kind == "string" {
                self.texts.push(TextForm::new(schema)?);
            } else if kind == "integer" && !bounds_numbers(schema) {
                // Longer ones are no integers to who reads them.
                self.json.push(
                    json!({"type": "integer", "minimum": -INTEGER_MAX, "maximum": INTEGER_MAX}),
                );
            } else {
                let mut schema = schema.clone();
                schema.insert("type".into(), kind.into());
                self.json.push(schema.into());
            }
        }
        Ok(())
    }
}

fn bounds_numbers(schema: &Map<String, Value>) -> bool {
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
        .iter()
        .any(|key| schema.contains_key(*key))
}

fn names_string(kind: &Value) -> bool {
    match kind {
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "string"),
        kind => kind == "string",
    }
}

impl TextForm {
    fn new(schema: &Map<String, Value>) -> Result<TextForm, GrammarError> {
        let length = |key: &str| match schema.get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(length) if length <= 100_000 => Ok(Some(length)),
                _ => Err(tool_error(format!("{key:?} is not an integer from 0 to 100000"))),
            },
        };
        let pattern = match schema.get("pattern") {
            None => None,
            Some(Value::String(pattern)) => Some(pattern.clone()),
            Some(_) => return Err(tool_error("\"pattern\" is not a string".into())),
        };
        let form = TextForm {
            min_length: length("minLength")?.unwrap_or(0),
            max_length: length("maxLength")?,
            pattern,
        };
        match form.max_length {
            Some(most) if most < form.min_length => Err(tool_error(format!(
                "\"minLength\" {} is above \"maxLength\" {most}",
                form.min_length
            ))),
            _ => Ok(form),
        }
    }
}

/// The terminal of a bare text without its closing tag.
pub(crate) fn text_terminal(form: &TextForm) -> Result<String, GrammarError> {
    let mut parts = vec!["NO_TAGS".to_owned()];
    if form.min_length > 0 || form.max_length.is_some() {
        let most = form.max_length.map(|most| most.to_string()).unwrap_or_default();
        parts.push(format!("/(?s:.{{{},{most}}})/", form.min_length));
    }
    if let Some(pattern) = &form.pattern {
        parts.push(search_terminal(pattern)?);
    }
    Ok(parts.join(" & "))
}

/// A terminal for texts in which the pattern is found, as JSON Schema has it.
fn search_terminal(pattern: &str) -> Result<String, GrammarError> {
    let (body, from_start) = match pattern.strip_prefix('^') {
        Some(body) => (body, true),
        None => (pattern, false),
    };
    let (body, to_end) = match body.strip_suffix('$') {
        Some(rest) if rest.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 0 => {
            (rest, true)
        }
        _ => (body, false),
    };
    if (from_start || to_end) && has_top_level_choice(body) {
        return Err(tool_error(format!(
            "\"pattern\" {pattern:?} has `|` outside of brackets and anchors: write ^(...)$"
        )));
    }
    if body.is_empty() {
        return Ok("/(?s:.*)/".into());
    }
    let body = llguidance::regex_to_lark(body, "dw");
    let any = |anchored| if anchored { "" } else { "(?s:.*)" };
    Ok(format!("/{}({body}){}/", any(from_start), any(to_end)))
}

fn has_top_level_choice(pattern: &str) -> bool {
    let (mut depth, mut in_class, mut escaped) = (0usize, false, false);
    for c in pattern.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if !in_class && depth == 0 => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_calls::quoted;

    #[test]
    fn patterns_are_searched_for() {
        for (pattern, terminal) in [
            ("^a$", "/(a)/"),
            ("a", "/(?s:.*)(a)(?s:.*)/"),
            ("^a", "/(a)(?s:.*)/"),
            ("a\\$", "/(?s:.*)(a\\$)(?s:.*)/"),
            ("^(a|b)$", "/((a|b))/"),
            ("a|b", "/(?s:.*)(a|b)(?s:.*)/"),
        ] {
            assert_eq!(search_terminal(pattern).unwrap(), terminal);
        }
        assert!(search_terminal("^a|b").is_err());
        assert_eq!(quoted("a\"\u{7f}"), "\"a\\\"\\u007f\"");
    }
}
