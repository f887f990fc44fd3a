//! The model's format of tool calls, written as a grammar.
//!
//! A call is `<tool_call>\n<function=NAME>\n`, for each argument
//! `<parameter=KEY>\nVALUE\n</parameter>\n`, then `</function>\n</tool_call>`; calls are apart by one line
//! feed. `<tool_call>` and `</tool_call>` are added tokens, the other tags are text.

use crate::GrammarError;
use crate::compiler::{TEXT_BYTES_MAX, checked_regex, closed_schema};
use crate::json_schema;
use crate::lenient::{JOINING, relaxed_parameters, type_only};
use crate::parameter_value::{Forms, text_terminal};
use calla_engine::structure::Grammar;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

/// Which function has to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any of those on offer.
    Required,
    /// The one of this name.
    Named(String),
}

/// Longest name of a function or parameter, in bytes: what the parser of replies takes for a name.
const NAME_BYTES_MAX: usize = 256;
/// Parameters of one function.
const PARAMETERS_MAX: usize = 1_000;
/// Parameters of all functions: the compiler can number 65,000 symbols, and one parameter takes three.
const PARAMETERS_SUM_MAX: usize = 10_000;
/// Functions of one request.
const TOOLS_MAX: usize = 1_000;

/// What values are written with. A bare text cannot hold what the parser of replies could take for its end.
///
/// `any_text` is a value with the line feed before it, cut into pieces that begin with a line feed or `<`
/// and hold no other: so a tag of the format is the beginning of a piece, and within one nearly every
/// token fits by one look at the lexer's state. `NO_TAGS`, one expression for the whole text, costs a walk
/// over the vocabulary at each token, and stands where a length or a pattern has to hold too.
const VALUES: &str = r#"END: "\n</parameter>\n"
any_text: TEXT_LINE (TEXT_LINE | TEXT_REST)* END
TEXT_LINE: /\n<?[^<\n]*/ & ~/\n(<\/parameter>|<\/function>|<\/tool_call>|<parameter=|<tool_call>)[^<\n]*/
TEXT_REST: /<[^<\n]*/ & ~/(<\/parameter>|<\/function>|<\/tool_call>)[^<\n]*/
NO_TAGS: /(?s:.*)/ & ~(/(?s:.*)(<\/parameter>|<\/function>|<\/tool_call>)(?s:.*)/ | /((?s:.*)\n)?(<parameter=|<tool_call>)(?s:.*)/)
"#;
/// Nesting of a tool, as deep as a request's JSON can be; what follows here recurses over it.
const NESTING_MAX: usize = 128;
/// Name of a parameter that the schema does not list.
const EXTRA_KEY: &str = "/[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/";

/// The grammar of one call, or with `parallel` of one or more, to the functions that `choice` admits.
///
/// `tools` are as in a request: `{"type": "function", "function": {"name", "parameters"}}`, or the inner
/// object alone. Required parameters must come, the others may, in the order of `properties`. A
/// parameter that the schema does not list may come, behind the others, only if `additionalProperties`
/// is given and is not false.
///
/// Of a tool without `"strict": true`, what cannot be enforced is left out: keywords such as `not` or `uniqueItems`,
/// formats and patterns that the compiler does not know, and of a parameter that cannot be written as a grammar
/// otherwise all but its type. Of a strict one it is an error.
///
/// # Errors
/// If there is no such function, if a name cannot stand in a tag, or if the schema of a strict tool cannot be enforced.
pub fn tool_calls(
    tools: &[Value],
    choice: &ToolChoice,
    parallel: bool,
) -> Result<Grammar, GrammarError> {
    Ok(Grammar::Lark(format!("start: calls\n{}", calls(tools, choice, parallel)?)))
}

/// The grammar of a reply that either calls tools, like that of [`tool_calls`] with any choice, or is an answer of
/// the form `answer`: what `response_format` and tools ask for together.
///
/// # Errors
/// Those of [`tool_calls`]; those of compiling `answer`, as far as they show in its text; if `answer` is a Lark grammar,
/// which cannot be joined with another.
pub fn tool_calls_or(
    tools: &[Value],
    parallel: bool,
    answer: &Grammar,
) -> Result<Grammar, GrammarError> {
    let answer = match answer {
        Grammar::JsonSchema(text) => format!("%json {}", closed_schema(Some(text))?),
        Grammar::JsonObject => format!("%json {}", closed_schema(None)?),
        Grammar::Regex(regex) => {
            format!("/{}/", llguidance::regex_to_lark(checked_regex(regex)?, ""))
        }
        Grammar::Lark(_) => {
            let words = "a Lark grammar cannot be joined with tools: write the calls as rules of it, or offer no tools";
            return Err(GrammarError::Refused(words.into()));
        }
    };
    let calls = calls(tools, &ToolChoice::Required, parallel)?;
    Ok(Grammar::Lark(format!("start: calls | answer\nanswer: {answer}\n{calls}")))
}

/// The rule `calls` and all that it refers to.
fn calls(tools: &[Value], choice: &ToolChoice, parallel: bool) -> Result<String, GrammarError> {
    crate::compiler::bound("the number of tools", tools.len(), TOOLS_MAX)?;
    let mut writer = Writer { text: String::new(), shared: HashMap::new(), parameters: 0 };
    let mut names = BTreeSet::new();
    let mut rules = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            let tool = index.to_string();
            return Err(GrammarError::Tool { tool, reason: "it has no name".into() });
        };
        let in_tool = |reason| GrammarError::Tool { tool: json_schema::shortened(name), reason };
        if !names.insert(name) {
            return Err(in_tool("another tool has this name".into()));
        }
        if matches!(choice, ToolChoice::Named(chosen) if chosen != name) {
            continue;
        }
        check_name(name).map_err(in_tool)?;
        if !is_within(function, NESTING_MAX) {
            return Err(in_tool(format!("it nests deeper than {NESTING_MAX} levels")));
        }
        let parameters = function.get("parameters").or_else(|| function.get("input_schema"));
        let parameters = parameters.unwrap_or(&Value::Null);
        let is_strict = [function, tool].iter().any(|at| at.get("strict") == Some(&true.into()));
        let written = match is_strict {
            true => writer.function(index, name, parameters, true),
            false => writer.function(index, name, &relaxed_parameters(parameters), false),
        };
        written.map_err(|error| match error {
            GrammarError::Tool { reason, .. } => in_tool(reason),
            error => in_tool(error.to_string()),
        })?;
        rules.push(format!("f{index}"));
        crate::compiler::bound(
            "the size of the tools' grammar",
            writer.text.len(),
            TEXT_BYTES_MAX,
        )?;
    }
    if rules.is_empty() {
        return Err(match choice {
            ToolChoice::Named(name) => GrammarError::Tool {
                tool: json_schema::shortened(name),
                reason: "no tool on offer has this name".into(),
            },
            ToolChoice::Required => GrammarError::NoTools,
        });
    }
    let more = if parallel { " (\"\\n\" call)*" } else { "" };
    let head = format!(
        "calls: call{more}\ncall: <tool_call> \"\\n\" ({}) \"</function>\\n\" </tool_call>\n",
        rules.join(" | ")
    );
    Ok(head + VALUES + &writer.text)
}

struct Writer {
    text: String,
    /// Names of the rules and terminals of values, by what they say. Each `%json` brings a lexer of its own,
    /// so that equal schemas must share one.
    shared: HashMap<String, String>,
    /// Parameters of all functions so far.
    parameters: usize,
}

impl Writer {
    /// Adds the rule `fN` of a call, from `<function=` up to its last argument.
    fn function(
        &mut self,
        index: usize,
        name: &str,
        schema: &Value,
        is_strict: bool,
    ) -> Result<(), GrammarError> {
        let parameters = Parameters::new(schema)?;
        self.parameters += parameters.listed.len();
        let what = "the number of parameters of all tools";
        crate::compiler::bound(what, self.parameters, PARAMETERS_SUM_MAX)?;
        let mut rule = format!("f{index}: {}", quoted(&format!("<function={name}>\n")));
        for &(key, schema) in &parameters.listed {
            let required = parameters.required.contains(key);
            if *schema == Value::Bool(false) && !required {
                continue;
            }
            check_name(key).map_err(tool_error)?;
            let value = self
                .value_or_type(schema, parameters.root, is_strict)
                .map_err(|error| tool_error(format!("parameter {key:?}: {error}")))?;
            let open = quoted(&format!("<parameter={key}>{}", value.before()));
            let argument = self.name("p", format!("{open} {}", value.name()));
            let _ = write!(rule, " {argument}{}", if required { "" } else { "?" });
        }
        if let Some(schema) = parameters.extra {
            let value = self.value_or_type(schema, parameters.root, is_strict)?;
            let listed: Vec<String> =
                parameters.listed.iter().map(|(key, _)| quoted(key)).collect();
            let but = match listed.is_empty() {
                true => String::new(),
                false => format!(" & ~({})", listed.join(" | ")),
            };
            let key = self.name("KEY", format!("{EXTRA_KEY}{but}"));
            let close = quoted(&format!(">{}", value.before()));
            let open = self.name("OPEN", format!("\"<parameter=\" {key} {close}"));
            let argument = self.name("p", format!("{open} {}", value.name()));
            let _ = write!(rule, " {argument}*");
        }
        let _ = writeln!(self.text, "{rule}");
        Ok(())
    }

    /// The name of a rule or terminal with this body, which is added unless there is one already.
    fn name(&mut self, prefix: &str, body: String) -> String {
        let number = self.shared.len();
        let name = self.shared.entry(body).or_insert_with_key(|body| {
            let name = format!("{prefix}{number}");
            let _ = writeln!(self.text, "{name}: {body}");
            name
        });
        name.clone()
    }

    /// Like [`Self::value`], but unless it has to be strict, a schema that cannot be written stands for its type.
    fn value_or_type(
        &mut self,
        schema: &Value,
        root: &Value,
        is_strict: bool,
    ) -> Result<Written, GrammarError> {
        match self.value(schema, root) {
            // No value at all is no mistake in writing.
            Err(_) if !is_strict && *schema != Value::Bool(false) => {
                self.value(&type_only(schema), root)
            }
            value => value,
        }
    }

    /// Adds what a value and its closing tag need.
    fn value(&mut self, schema: &Value, root: &Value) -> Result<Written, GrammarError> {
        let forms = Forms::new(schema, root)?;
        if forms.is_any_text() {
            return Ok(Written::AnyText);
        }
        let mut options = Vec::new();
        for text in &forms.texts {
            let text = self.name("TEXT", text_terminal(text)?);
            options.push(self.name("VALUE", format!("{text} END")));
        }
        if !forms.literals.is_empty() {
            let mut literals = Vec::with_capacity(forms.literals.len());
            for literal in &forms.literals {
                if ["</parameter>", "</function>", "</tool_call>", "<parameter=", "<tool_call>"]
                    .iter()
                    .any(|tag| literal.contains(tag))
                {
                    return Err(tool_error(format!(
                        "the value {:?} holds a tag of the format of calls",
                        json_schema::shortened(literal)
                    )));
                }
                literals.push(quoted(&format!("{literal}\n</parameter>\n")));
            }
            options.push(self.name("VALUE", literals.join(" | ")));
        }
        if !forms.json.is_empty() {
            let schema = match forms.json.len() {
                1 => forms.json[0].clone(),
                _ => serde_json::json!({ "anyOf": forms.json }),
            };
            let closed = json_schema::close(&schema, root)?;
            let json = self.name("j", format!("%json {closed}"));
            options.push(format!("{json} END"));
        }
        match options.is_empty() {
            true => Err(tool_error("its schema allows no value".into())),
            false => Ok(Written::As(self.name("v", options.join(" | ")))),
        }
    }
}

/// How a value is written.
enum Written {
    /// As `any_text`.
    AnyText,
    /// By the rule of this name, which begins behind the opening tag's line feed.
    As(String),
}

impl Written {
    fn name(&self) -> &str {
        match self {
            Written::AnyText => "any_text",
            Written::As(name) => name,
        }
    }

    /// What stands between the opening tag and the rule.
    fn before(&self) -> &'static str {
        match self {
            Written::AnyText => "",
            Written::As(_) => "\n",
        }
    }
}

/// Parameters of a function.
struct Parameters<'a> {
    /// What references lead into.
    root: &'a Value,
    /// Names and schemas, in the order of the schema.
    listed: Vec<(&'a str, &'a Value)>,
    required: BTreeSet<&'a str>,
    /// Schema of parameters that are not listed, if there may be such.
    extra: Option<&'a Value>,
}

/// Schema of a parameter that is required and nothing else.
static ANYTHING: Value = Value::Bool(true);

impl<'a> Parameters<'a> {
    fn new(root: &'a Value) -> Result<Parameters<'a>, GrammarError> {
        let mut found =
            Parameters { root, listed: Vec::new(), required: BTreeSet::new(), extra: None };
        let mut schema = root;
        // As many references as a schema may nest; more go in circles.
        for _ in 0..100 {
            match schema.get("$ref").and_then(Value::as_str) {
                Some(reference) => {
                    check_beside_reference(schema)?;
                    schema = json_schema::resolve(root, reference)?;
                }
                None => break,
            }
        }
        let schema = match schema {
            Value::Null => return Ok(found),
            Value::Object(schema) => schema,
            _ => return Err(tool_error("`parameters` is not an object".into())),
        };
        check_keywords(schema)?;
        match schema.get("properties") {
            None | Some(Value::Null) => {}
            Some(Value::Object(properties)) => {
                found.listed.extend(properties.iter().map(|(key, schema)| (key.as_str(), schema)));
            }
            Some(_) => return Err(tool_error("`properties` is not an object".into())),
        }
        let required = schema.get("required").and_then(Value::as_array);
        found.required.extend(required.into_iter().flatten().filter_map(Value::as_str));
        let extra = schema.get("additionalProperties");
        for key in &found.required {
            if !found.listed.iter().any(|(listed, _)| listed == key) {
                found.listed.push((*key, extra.unwrap_or(&ANYTHING)));
            }
        }
        found.extra = extra.filter(|extra| !matches!(extra, Value::Bool(false) | Value::Null));
        let count = found.listed.len();
        crate::compiler::bound("the number of parameters", count, PARAMETERS_MAX)?;
        Ok(found)
    }
}

/// What stands beside a `$ref` that is followed would be passed over.
fn check_beside_reference(schema: &Value) -> Result<(), GrammarError> {
    let Value::Object(schema) = schema else { return Ok(()) };
    let mut others = schema.clone();
    others.remove("$ref");
    check_keywords(&others)?;
    match ["properties", "required", "additionalProperties"]
        .into_iter()
        .find(|keyword| others.contains_key(*keyword))
    {
        Some(keyword) => Err(tool_error(format!(
            "{keyword:?} beside the \"$ref\" of `parameters` is not supported: write it in the schema referred to"
        ))),
        None => Ok(()),
    }
}

/// Words of a function's parameters other than those that are enforced must be annotations.
fn check_keywords(schema: &Map<String, Value>) -> Result<(), GrammarError> {
    if schema.get("type").is_some_and(|kind| kind != "object") {
        return Err(tool_error("the type of `parameters` is not \"object\"".into()));
    }
    json_schema::check_supported(schema, "#")?;
    match schema.keys().find(|key| JOINING.contains(&key.as_str())) {
        Some(keyword) => {
            Err(GrammarError::UnsupportedKeyword { keyword: keyword.clone(), place: "#".into() })
        }
        None => Ok(()),
    }
}

fn is_within(value: &Value, levels: usize) -> bool {
    let is_inner = |inner: &Value| levels > 0 && is_within(inner, levels - 1);
    match value {
        Value::Array(values) => values.iter().all(is_inner),
        Value::Object(values) => values.values().all(is_inner),
        _ => true,
    }
}

/// An error whose tool is filled in where it is known.
pub(crate) fn tool_error(reason: String) -> GrammarError {
    GrammarError::Tool { tool: String::new(), reason }
}

/// Whether a name can stand in `<function=NAME>` or `<parameter=NAME>` and be read back.
fn check_name(name: &str) -> Result<(), String> {
    let reason = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "is longer than 256 bytes"
    } else if name.trim() != name {
        "begins or ends with white space"
    } else if name.chars().any(|c| matches!(c, '<' | '>') || c.is_control()) {
        "holds `<`, `>` or a control character, which no tag can"
    } else {
        return Ok(());
    };
    Err(format!("the name {:?} {reason}", json_schema::shortened(name)))
}

/// A text as a literal of Lark, which is written like one of JSON.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
