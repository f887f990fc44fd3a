//! Checks a JSON schema before it is compiled, and rewrites it so that it stands alone.
//!
//! What the compiler would follow without a bound is bounded here: nesting, chains of references, lists, and
//! the products that intersections of unions unfold into. The result holds only keywords that are
//! enforced; references in it are all of the form `#/$defs/N`.

use crate::GrammarError;
use crate::compiler::bound;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Nesting of schemas.
const DEPTH_MAX: usize = 100;
/// Nesting summed over the schema and all that it refers to: how deep a chain of references can lead.
const CHAIN_MAX: usize = 4_000;
/// Schemas that are referred to.
const REFERENCES_MAX: usize = 2_000;
/// Properties of one object: the compiler's time is quadratic in them.
const PROPERTIES_MAX: usize = 2_000;
/// Values of one enumeration.
const ENUM_MAX: usize = 10_000;
/// Members of one union, tuple or intersection.
const MEMBERS_MAX: usize = 1_000;
/// Largest bound on items or properties.
const ITEMS_MAX: u64 = 10_000;
/// Largest bound on a string's length.
const LENGTH_MAX: u64 = 100_000;
/// Where bounds on numbers end: 2^63.
const NUMBER_END: f64 = 9_223_372_036_854_775_808.0;
/// Schemas that all intersections together may unfold into.
const UNFOLDED_MAX: u64 = 500_000;

/// White space that a reply may have between two tokens of JSON: none, one space, or a line feed and an
/// indent. Without a bound a model can go on with white space for ever.
const WHITE_SPACE: &str = r"\x20|\r?\n[\x20\x09]{0,40}";

/// Keywords whose value goes to the compiler as it is.
const PLAIN: [&str; 14] = [
    "type",
    "const",
    "enum",
    "required",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
];
const PLAIN_NUMBERS: [&str; 3] = ["exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Keywords whose value is a schema.
pub(crate) const ONE: [&str; 3] = ["additionalProperties", "items", "additionalItems"];
/// Keywords whose value is a list of schemas.
pub(crate) const LIST: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords whose value is a map of schemas.
pub(crate) const MAP: [&str; 2] = ["properties", "patternProperties"];
/// Keywords that constrain and cannot be enforced.
pub(crate) const UNSUPPORTED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "disallow",
    "extends",
];

/// Levels of arrays and objects that the JSON parser reads.
const JSON_LEVELS_MAX: usize = 127;

/// Refuses a keyword that constrains and is not enforced. `uniqueItems` and `not` say nothing if they are false.
pub(crate) fn check_supported(
    schema: &Map<String, Value>,
    place: &str,
) -> Result<(), GrammarError> {
    let constrains = |word: &str, value: &Value| {
        let idle = ["uniqueItems", "not"].contains(&word) && *value == Value::Bool(false);
        UNSUPPORTED.contains(&word) && !idle
    };
    match schema.iter().find(|(word, value)| constrains(word, value)) {
        Some((keyword, _)) => {
            Err(GrammarError::UnsupportedKeyword { keyword: keyword.clone(), place: place.into() })
        }
        None => Ok(()),
    }
}

/// Parses a schema.
pub(crate) fn parse(text: &str) -> Result<Value, GrammarError> {
    // Editors of some systems put a byte order mark before the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_json::from_str(text).map_err(|error| {
        let words = error.to_string();
        GrammarError::InvalidSchema(match words.split_once("recursion limit exceeded") {
            Some((_, place)) => format!(
                "its JSON nests deeper than {JSON_LEVELS_MAX} levels{place}: put inner schemas under $defs"
            ),
            None => words,
        })
    })
}

/// Rewrites `schema`, whose references lead into `root`, to stand alone.
pub(crate) fn close(schema: &Value, root: &Value) -> Result<Value, GrammarError> {
    let mut closer = Closer { root, names: HashMap::new(), queue: Vec::new() };
    let (closed, mut chain) = closer.schema(schema, "#", 0)?;
    let mut definitions = Map::new();
    while let Some((name, place)) = closer.queue.pop() {
        let target = resolve(root, &place)?;
        let (definition, height) = closer.schema(target, &place, 0)?;
        chain += height;
        bound("the schema's depth through references", chain, CHAIN_MAX)?;
        definitions.insert(name, definition);
    }
    let mut closed = match closed {
        Value::Object(closed) => closed,
        Value::Bool(true) => Map::new(),
        _ => return Err(GrammarError::InvalidSchema("`false` allows no value at all".into())),
    };
    let mut unfolding = Unfolding {
        definitions: &definitions,
        known: HashMap::new(),
        spent: 0,
        step: Some(Step { coefficient: 1, exponent: 0 }),
    };
    unfolding.charge(&closed)?;
    for definition in definitions.values() {
        if let Value::Object(definition) = definition {
            unfolding.charge(definition)?;
        }
    }
    if unfolding.spent > 0 && unfolding.step.is_none() {
        let words = "in a schema with intersections, the values of \"multipleOf\" have too large a common multiple";
        return Err(invalid("#", words));
    }
    closed.insert("$defs".into(), definitions.into());
    let options = json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE});
    closed.insert("x-guidance".into(), options);
    Ok(closed.into())
}

/// The schema that a reference of the form `#...` leads to.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Result<&'a Value, GrammarError> {
    let error = |reason| GrammarError::Reference {
        reference: shortened(reference),
        place: "#".into(),
        reason,
    };
    let id = root.get("$id").or_else(|| root.get("id")).and_then(Value::as_str).unwrap_or_default();
    let local = reference.strip_prefix(id.trim_end_matches('#')).unwrap_or(reference);
    let Some(pointer) = local.strip_prefix('#') else {
        return Err(error("it leads out of the schema; nothing is fetched, so put it under $defs"));
    };
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return Err(error("anchors are not supported; write a path such as #/$defs/NAME"));
    }
    let pointer =
        percent_decoded(pointer).ok_or_else(|| error("its percent-escapes are no UTF-8"))?;
    // `#/` is meant as the root wherever it is seen.
    let target = if pointer == "/" { Some(root) } else { root.pointer(&pointer) };
    target.ok_or_else(|| error("it leads nowhere"))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'%')
            .then(|| after.get(..2).and_then(|code| std::str::from_utf8(code).ok()))
            .flatten()
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

struct Closer<'a> {
    root: &'a Value,
    /// Name in `$defs` of each reference met.
    names: HashMap<String, String>,
    /// References whose schemas are still to be rewritten.
    queue: Vec<(String, String)>,
}

impl Closer<'_> {
    /// The schema rewritten, and its nesting.
    fn schema(
        &mut self,
        schema: &Value,
        place: &str,
        depth: usize,
    ) -> Result<(Value, usize), GrammarError> {
        bound("the schema's nesting", depth, DEPTH_MAX)?;
        let schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(_) => return Ok((schema.clone(), 1)),
            _ => return Err(invalid(place, "a schema is an object or a boolean")),
        };
        check_supported(schema, place)?;
        let mut closed = Map::new();
        let mut height = 0;
        for (keyword, value) in schema {
            let word = keyword.as_str();
            let mut inner = |closer: &mut Self, value: &Value, at: &str| {
                let place = format!("{place}/{}", shortened(at));
                let (value, below) = closer.schema(value, &place, depth + 1)?;
                height = height.max(below);
                Ok::<Value, GrammarError>(value)
            };
            let value = if PLAIN.contains(&word) || PLAIN_NUMBERS.contains(&word) {
                checked(word, value, place)?
            } else if LIST.contains(&word) || (word == "items" && value.is_array()) {
                let Some(members) = value.as_array() else {
                    return Err(invalid(place, &format!("{word:?} is not a list")));
                };
                bound("the number of members of a list of schemas", members.len(), MEMBERS_MAX)?;
                members.iter().map(|m| inner(self, m, word)).collect::<Result<Value, _>>()?
            } else if ONE.contains(&word) {
                inner(self, value, word)?
            } else if MAP.contains(&word) {
                let Some(members) = value.as_object() else {
                    return Err(invalid(place, &format!("{word:?} is not an object")));
                };
                bound("the number of properties of an object", members.len(), PROPERTIES_MAX)?;
                let members = members.iter().map(|(k, v)| Ok((k.clone(), inner(self, v, k)?)));
                members.collect::<Result<Map<_, _>, GrammarError>>()?.into()
            } else if word == "$ref" {
                self.reference(value, place)?
            } else {
                // Annotations, and words that JSON Schema does not know.
                continue;
            };
            closed.insert(keyword.clone(), value);
        }
        Ok((closed.into(), height + 1))
    }

    fn reference(&mut self, value: &Value, place: &str) -> Result<Value, GrammarError> {
        let Some(reference) = value.as_str() else {
            return Err(invalid(place, "\"$ref\" is not a string"));
        };
        if let Some(name) = self.names.get(reference) {
            return Ok(format!("#/$defs/{name}").into());
        }
        resolve(self.root, reference).map_err(|error| match error {
            GrammarError::Reference { reference, reason, .. } => {
                GrammarError::Reference { reference, place: place.into(), reason }
            }
            other => other,
        })?;
        let name = self.names.len().to_string();
        bound("the number of references", self.names.len() + 1, REFERENCES_MAX)?;
        self.names.insert(reference.to_owned(), name.clone());
        self.queue.push((name.clone(), reference.to_owned()));
        Ok(format!("#/$defs/{name}").into())
    }
}

/// The value of a plain keyword, checked as far as the compiler does not do it well.
pub(crate) fn checked(keyword: &str, value: &Value, place: &str) -> Result<Value, GrammarError> {
    let (most, what) = match keyword {
        "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            (ITEMS_MAX, "a bound on a count")
        }
        "minLength" | "maxLength" => (LENGTH_MAX, "a bound on a length"),
        "enum" => {
            let Some(values) = value.as_array().filter(|values| !values.is_empty()) else {
                return Err(invalid(place, "\"enum\" is not a list of at least one value"));
            };
            bound("the number of values of an enumeration", values.len(), ENUM_MAX)?;
            return Ok(value.clone());
        }
        "required" => {
            let count = value.as_array().map_or(0, Vec::len);
            bound("the number of required properties", count, PROPERTIES_MAX)?;
            return Ok(value.clone());
        }
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
            // Draft 4 has boolean ones. The compiler counts in i64.
            return match value.as_f64() {
                Some(number) if number.abs() >= NUMBER_END => Err(invalid(
                    place,
                    &format!("{keyword:?} is {number:e}; bounds on numbers lie within 2^63"),
                )),
                None if !value.is_boolean() => {
                    Err(invalid(place, &format!("{keyword:?} is not a number")))
                }
                _ => Ok(value.clone()),
            };
        }
        "multipleOf" => {
            let step = value.as_f64().and_then(Step::new).filter(Step::fits);
            return match step {
                Some(_) => Ok(value.clone()),
                None => Err(invalid(
                    place,
                    "\"multipleOf\" is not a number above 0 of at most six digits",
                )),
            };
        }
        _ => return Ok(value.clone()),
    };
    // 3.0 is an integer to JSON Schema, but not to the compiler.
    let number = value.as_u64().or_else(|| {
        value
            .as_f64()
            .filter(|n| n.fract() == 0.0 && (0.0..NUMBER_END).contains(n))
            .map(|n| n as u64)
    });
    match number {
        Some(number) if number > most => Err(GrammarError::TooLarge {
            what,
            value: usize::try_from(number).unwrap_or(usize::MAX),
            bound: most as usize,
        }),
        Some(number) => Ok(number.into()),
        None => Err(invalid(place, &format!("{keyword:?} is not a whole number from 0 up"))),
    }
}

/// A value of `multipleOf`: `coefficient / 10^exponent`.
#[derive(Clone, Copy)]
struct Step {
    coefficient: u64,
    exponent: u32,
}

impl Step {
    /// `None` if it is not above 0, or has too many digits.
    fn new(value: f64) -> Option<Step> {
        let mut value = value;
        let mut exponent = 0;
        while value.fract() != 0.0 && exponent < 6 {
            value *= 10.0;
            exponent += 1;
        }
        let whole = value.fract() == 0.0 && (1.0..1e6).contains(&value);
        whole.then_some(Step { coefficient: value as u64, exponent })
    }

    /// Whether the compiler, which divides in u32 and does not look for overflow, gets it right.
    fn fits(&self) -> bool {
        let scale = 10u64.pow(self.exponent);
        let most = u64::from(u32::MAX);
        self.coefficient * 10 + 9 * scale <= most && self.coefficient * scale <= most
    }

    /// The least common multiple, if the compiler gets it right.
    fn joined(self, other: Step) -> Option<Step> {
        let exponent = self.exponent.max(other.exponent);
        let scaled = |step: Step| step.coefficient.checked_mul(10u64.pow(exponent - step.exponent));
        let (a, b) = (scaled(self)?, scaled(other)?);
        let product = a.checked_mul(b).filter(|&product| product <= u64::from(u32::MAX))?;
        let (mut divisor, mut rest) = (a, b);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Some(Step { coefficient: product / divisor, exponent }).filter(Step::fits)
    }
}

/// How much the compiler's intersections unfold into: `allOf` of unions multiplies their members, and
/// each product holds copies of both factors.
struct Unfolding<'a> {
    definitions: &'a Map<String, Value>,
    /// By definition; `None` while it is being measured.
    known: HashMap<&'a str, Option<Measure>>,
    spent: u64,
    /// Common multiple of all `multipleOf`: what an intersection may have to count by. `None` if the compiler
    /// cannot.
    step: Option<Step>,
}

/// Alternatives of a schema, and schemas in it when written out.
#[derive(Clone, Copy)]
struct Measure {
    options: u64,
    size: u64,
}

const ONE_SCHEMA: Measure = Measure { options: 1, size: 1 };

impl<'a> Unfolding<'a> {
    /// Adds the intersections in a schema and all below it, references left out.
    fn charge(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError>
    where
        Self: 'a,
    {
        let parts = schema.get("allOf").and_then(Value::as_array).map_or(0, Vec::len)
            + ["anyOf", "oneOf", "enum", "const", "$ref"]
                .iter()
                .filter(|&&k| schema.contains_key(k))
                .count();
        let plain = schema.keys().any(|k| is_plain_constraint(k));
        if parts > 1 || (parts == 1 && plain) {
            self.spent =
                self.spent.saturating_add(measure(schema, self.definitions, &mut self.known).size);
            let spent = usize::try_from(self.spent).unwrap_or(usize::MAX);
            bound("the size of the schema's intersections", spent, UNFOLDED_MAX as usize)?;
        }
        if let Some(value) = schema.get("multipleOf") {
            let step = value.as_f64().and_then(Step::new);
            self.step = self.step.zip(step).and_then(|(all, step)| all.joined(step));
        }
        for (_, member) in members(schema) {
            self.charge(member)?;
        }
        Ok(())
    }
}

fn is_plain_constraint(keyword: &str) -> bool {
    let applies =
        LIST[..3].contains(&keyword) || ["enum", "const", "$ref", "type"].contains(&keyword);
    !applies && !keyword.starts_with('$')
}

/// Schemas directly in a schema, with the keyword that holds them.
fn members(schema: &Map<String, Value>) -> impl Iterator<Item = (&str, &Map<String, Value>)> {
    schema.iter().flat_map(|(keyword, value)| {
        let values: Vec<&Value> = match value {
            Value::Array(values) if LIST.contains(&keyword.as_str()) || keyword == "items" => {
                values.iter().collect()
            }
            Value::Object(values) if MAP.contains(&keyword.as_str()) => values.values().collect(),
            value if ONE.contains(&keyword.as_str()) => vec![value],
            _ => Vec::new(),
        };
        values.into_iter().filter_map(|v| Some((keyword.as_str(), v.as_object()?)))
    })
}

fn measure<'a>(
    schema: &Map<String, Value>,
    definitions: &'a Map<String, Value>,
    known: &mut HashMap<&'a str, Option<Measure>>,
) -> Measure {
    let sum = |a: Measure, b: Measure| Measure {
        options: a.options.saturating_add(b.options),
        size: a.size.saturating_add(b.size),
    };
    let product = |a: Measure, b: Measure| Measure {
        options: a.options.saturating_mul(b.options),
        size: a.size.saturating_mul(b.options).saturating_add(b.size.saturating_mul(a.options)),
    };
    let mut own = ONE_SCHEMA;
    let (mut any_of, mut one_of) = (None::<Measure>, None::<Measure>);
    let mut whole = None::<Measure>;
    for (keyword, member) in members(schema) {
        let inner = measure(member, definitions, known);
        match keyword {
            "anyOf" => any_of = Some(any_of.map_or(inner, |all| sum(all, inner))),
            "oneOf" => one_of = Some(one_of.map_or(inner, |all| sum(all, inner))),
            "allOf" => whole = Some(whole.map_or(inner, |all| product(all, inner))),
            _ => {
                own.options = own.options.max(inner.options);
                own.size = own.size.saturating_add(inner.size);
            }
        }
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let size = values.iter().map(value_size).sum();
        any_of = Some(product(
            any_of.unwrap_or(ONE_SCHEMA),
            Measure { options: values.len() as u64, size },
        ));
    }
    if let Some(value) = schema.get("const") {
        own.size = own.size.saturating_add(value_size(value));
    }
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/"));
    if let Some((name, definition)) = name.and_then(|name| definitions.get_key_value(name)) {
        let target = match known.get(name.as_str()) {
            Some(measure) => measure.unwrap_or(ONE_SCHEMA),
            None => {
                known.insert(name, None);
                let found = definition.as_object().map(|d| measure(d, definitions, known));
                let found = found.unwrap_or(ONE_SCHEMA);
                known.insert(name, Some(found));
                found
            }
        };
        whole = Some(whole.map_or(target, |all| product(all, target)));
    }
    [any_of, one_of, whole].into_iter().flatten().fold(own, product)
}

fn value_size(value: &Value) -> u64 {
    match value {
        Value::Array(values) => 1 + values.iter().map(value_size).sum::<u64>(),
        Value::Object(values) => 1 + values.values().map(value_size).sum::<u64>(),
        Value::String(text) => 1 + text.len() as u64 / 64,
        _ => 1,
    }
}

fn invalid(place: &str, words: &str) -> GrammarError {
    GrammarError::InvalidSchema(format!("at {place}: {words}"))
}

/// A text of the request as an error message may repeat it.
pub(crate) fn shortened(text: &str) -> String {
    const BYTES_MAX: usize = 80;
    match text.len() {
        0..=BYTES_MAX => text.to_owned(),
        _ => format!("{}...", &text[..text.floor_char_boundary(BYTES_MAX)]),
    }
}
