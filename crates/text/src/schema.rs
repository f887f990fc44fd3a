//! Which JSON types a tool's parameter may have, and the value that a reply's text stands for.

use std::collections::HashMap;

use serde_json::Value;

/// Schema nodes looked at for one parameter: bounds references that go in circles and wide unions.
const NODES_MAX: usize = 256;
/// Nesting followed through references and unions.
const DEPTH_MAX: usize = 32;

/// The functions that a request offers, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    parameters: HashMap<String, Value>,
}

/// JSON types that a schema allows; none at all if it says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    string: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    null: bool,
    object: bool,
    array: bool,
}

impl Tools {
    /// Reads tool descriptions, `{"type": "function", "function": {"name", "parameters"}}` or the inner
    /// object alone. What is not of that form is passed over: its parameters stay strings.
    pub(crate) fn new(tools: &[Value]) -> Tools {
        let mut parameters = HashMap::new();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            if let Some(name) = function.get("name").and_then(Value::as_str) {
                let schema = function.get("parameters").or_else(|| function.get("input_schema"));
                parameters.insert(name.to_owned(), schema.cloned().unwrap_or(Value::Null));
            }
        }
        Tools { parameters }
    }

    /// Whether the request offers a function of this name.
    pub(crate) fn knows(&self, function: &str) -> bool {
        self.parameters.contains_key(function)
    }

    /// Whether the function has a parameter of this name; `None` if its parameters are not listed.
    pub(crate) fn has_parameter(&self, function: &str, key: &str) -> Option<bool> {
        let properties = self.parameters.get(function)?.get("properties")?.as_object()?;
        Some(properties.contains_key(key))
    }

    /// The types that a parameter may have.
    pub(crate) fn kinds(&self, function: &str, key: &str) -> Kinds {
        let mut kinds = Kinds::default();
        if let Some(root) = self.parameters.get(function) {
            let property = root.get("properties").and_then(|properties| properties.get(key));
            if let Some(schema) = property.or_else(|| root.get("additionalProperties")) {
                collect(schema, root, DEPTH_MAX, &mut NODES_MAX.clone(), &mut kinds);
            }
        }
        kinds
    }
}

/// Adds the types that `schema` allows. Unions are the union of their members; so is `allOf`, whose
/// members in practice are one type and restrictions of it.
fn collect(schema: &Value, root: &Value, depth: usize, nodes: &mut usize, kinds: &mut Kinds) {
    let (Some(schema), true) = (schema.as_object(), depth > 0 && *nodes > 0) else { return };
    *nodes -= 1;
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
    if let Some(target) = reference.and_then(|pointer| root.pointer(pointer)) {
        collect(target, root, depth - 1, nodes, kinds);
    }
    let members =
        ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array());
    for member in members.flatten() {
        collect(member, root, depth - 1, nodes, kinds);
    }
    match schema.get("type") {
        Some(Value::String(name)) => kinds.add_name(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).for_each(|name| kinds.add_name(name));
        }
        _ => {
            let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
            listed.chain(schema.get("const")).take(NODES_MAX).for_each(|v| kinds.add_value(v));
            kinds.object |= schema.contains_key("properties");
            kinds.array |= schema.contains_key("items");
        }
    }
    kinds.null |= schema.get("nullable") == Some(&Value::Bool(true));
}

impl Kinds {
    fn add_name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => {}
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null = true,
            Value::Bool(_) => self.boolean = true,
            Value::Number(n) if n.is_f64() => self.number = true,
            Value::Number(_) => self.integer = true,
            Value::String(_) => self.string = true,
            Value::Array(_) => self.array = true,
            Value::Object(_) => self.object = true,
        }
    }

    /// Whether every text stands for itself, so that it can be passed on before it is complete.
    pub(crate) fn only_string(self) -> bool {
        Kinds { string: false, ..self } == Kinds::default()
    }

    /// Whether a text may stand for a list or an object.
    pub(crate) fn may_be_container(self) -> bool {
        self.object || self.array
    }

    /// The value that a text stands for: the first of null, boolean, number, object and array that the
    /// schema allows and the text is; else the text as a string. `True`, `False` and `None` count, in
    /// any case: models write Python now and then.
    pub(crate) fn value(self, text: &str) -> Value {
        let word = text.trim();
        if self.null && (word.eq_ignore_ascii_case("null") || word.eq_ignore_ascii_case("none")) {
            return Value::Null;
        }
        if self.boolean && (word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false"))
        {
            return Value::Bool(word.eq_ignore_ascii_case("true"));
        }
        match word.bytes().next() {
            Some(b'-' | b'0'..=b'9') if self.integer || self.number => {
                if let Ok(Value::Number(number)) = serde_json::from_str(word) {
                    match number.as_f64() {
                        Some(_) if self.number || !number.is_f64() => return number.into(),
                        // 3.0 is an integer to JSON Schema; beyond 2^53 a float is not exact.
                        Some(x) if x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0 => {
                            return Value::from(x as i64);
                        }
                        _ => {}
                    }
                }
            }
            Some(b'{' | b'[') if self.may_be_container() => {
                if let Ok(value) = serde_json::from_str::<Value>(word) {
                    let declared = if value.is_object() { self.object } else { self.array };
                    // The wrong container is still nearer to the schema than a string.
                    if declared || !self.string {
                        return value;
                    }
                }
            }
            _ => {}
        }
        Value::String(text.to_owned())
    }
}

/// JSON of a text without its quotes. Escaping looks at one character at a time, so pieces join.
pub(crate) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(schema: Value, text: &str) -> Value {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "properties": {"k": schema},
            "$defs": {"int": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
        }}}]);
        Tools::new(tools.as_array().unwrap()).kinds("f", "k").value(text)
    }

    #[test]
    fn text_becomes_what_the_schema_allows() {
        for (schema, text, expected) in [
            (json!({"type": "string"}), "5", json!("5")),
            (json!({"type": "integer"}), "5", json!(5)),
            (json!({"type": "integer"}), " 5\n", json!(5)),
            (json!({"type": "integer"}), "5.0", json!(5)),
            (json!({"type": "integer"}), "5.5", json!("5.5")),
            (json!({"type": "integer"}), "1e400", json!("1e400")),
            (json!({"type": "integer"}), "18446744073709551615", json!(u64::MAX)),
            (json!({"type": "integer"}), "\"5\"", json!("\"5\"")),
            (json!({"type": "number"}), "2.5", json!(2.5)),
            (json!({"type": "number"}), "NaN", json!("NaN")),
            (json!({"type": "boolean"}), "True", json!(true)),
            (json!({"type": "boolean"}), "yes", json!("yes")),
            (json!({"type": "null"}), "None", json!(null)),
            (json!({"type": "object"}), "{\"b\": 1, \"a\": 2}", json!({"b": 1, "a": 2})),
            (json!({"type": "object"}), "{broken", json!("{broken")),
            (json!({"type": "array"}), "[1, [2]]", json!([1, [2]])),
            (json!({"type": ["string", "null"]}), "null", json!(null)),
            (json!({"type": ["string", "null"]}), "nullable", json!("nullable")),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "7", json!(7)),
            (json!({"oneOf": [{"type": "array"}, {"type": "string"}]}), "{}", json!("{}")),
            (json!({"$ref": "#/$defs/int"}), "7", json!(7)),
            (json!({"$ref": "#/$defs/loop"}), "7", json!("7")),
            (json!({"$ref": "elsewhere"}), "7", json!("7")),
            (json!({"type": "integer", "nullable": true}), "null", json!(null)),
            (json!({"enum": [1, 2]}), "2", json!(2)),
            (json!({"const": true}), "true", json!(true)),
            (json!({"properties": {}}), "{}", json!({})),
            (json!({"type": 5}), "5", json!("5")),
            (json!("integer"), "5", json!("5")),
            (json!({}), "5", json!("5")),
        ] {
            assert_eq!(value(schema.clone(), text), expected, "{schema} {text}");
        }
    }

    #[test]
    fn circles_and_fans_of_references_end() {
        let fan = json!({"anyOf": vec![json!({"$ref": "#/properties/k"}); 20]});
        assert_eq!(value(fan, "5"), json!("5"));
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(value(json!({"type": "array"}), &deep), json!(deep));
    }
}
