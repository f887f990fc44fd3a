//! Renders messages with the checkpoint's own chat template, to text and to ids.
//!
//! The template is a Jinja program from a stranger. It runs in `minijinja`, which has no access to
//! files, imports or the host language, under a fuel budget (work and memory), an output bound and the
//! engine's recursion limits. Dialect and set-up follow Hugging Face's `apply_chat_template`:
//! `trim_blocks`, `lstrip_blocks`, loop controls, Python string methods, `tojson` as `json.dumps`.
//!
//! Known limit: the engine does not charge for walking through a concatenation of lists, so a template that
//! doubles a list in a loop (`x = x + x`, 40 times) and asks for its length runs on after the time bound has
//! given up on it, on a thread of its own until the program ends.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{Environment, ErrorKind, State, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json, json};

use crate::escape::{Mark, Survey};
use crate::files::{CONFIG_BYTES_MAX, TEMPLATE_BYTES_MAX, bad_file, read_text_if_present};
use crate::format_cost::format_cost;
use crate::guard::guard;
use crate::python;
use crate::template_source::{bound_chains, mark_literals, survey_source, syntax};
use crate::{Content, Error, Message, Part, Result, Tokenizer};

/// Fuel that a rendering has before counting its input: about a million instructions or 64 MB of
/// intermediate text, some tens of milliseconds.
const FUEL_BASE: u64 = 1_000_000;
/// Further fuel per message: the family's templates take about 150 instructions for one.
const FUEL_PER_MESSAGE: u64 = 2_000;
/// Further fuel per byte of the request: enough to copy each byte 64 times.
const FUEL_PER_BYTE: u64 = 1;
/// Time that a rendering has, a backstop for work that the engine does not charge. A usual one takes
/// milliseconds.
const TIME_BASE: Duration = Duration::from_secs(5);
/// Further time per MiB of the request.
const TIME_PER_MEBIBYTE: Duration = Duration::from_secs(2);
/// Most characters of a template's own error message that are passed on.
const RAISED_CHARS_MAX: usize = 1_000;
/// How errors call the engine.
const ENGINE: &str = "the engine";
/// Stack of the thread that renders, in reserved addresses, not in memory. A template can nest one list
/// in another about once per six units of fuel, and the engine prints, compares and drops such a value
/// by recursion.
const STACK_BYTES: usize = 256 << 20;
/// Bytes of output allowed beside a multiple of the request's own.
const OUTPUT_BYTES_BASE: u64 = 4 << 20;
/// Output bytes allowed per byte of the request. JSON strings can grow sixfold.
const OUTPUT_PER_BYTE: u64 = 8;

/// Names that the renderer sets or that templates rely on: a request may not set them.
const RESERVED: [&str; 22] = [
    "messages",
    "tools",
    "documents",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "enable_thinking",
    "preserve_thinking",
    "return_tensors",
    "return_dict",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
    "loop",
    "self",
];

/// A checkpoint's chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    default: String,
    /// The template for requests with tools, where a checkpoint ships several.
    tool_use: Option<String>,
}

/// What a rendering depends on beside the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderOptions {
    /// Tool descriptions as the client gave them, with their `{"type": "function", ...}` wrapper.
    pub tools: Vec<Json>,
    /// Whether to open the assistant's turn at the end. On by default.
    pub add_generation_prompt: bool,
    /// Thinking switch; unset leaves it to the template (the family: on).
    pub enable_thinking: Option<bool>,
    /// Whether older turns keep their thinking; unset leaves it to the template (the family: no).
    pub preserve_thinking: Option<bool>,
    /// Further template variables. Names that the renderer sets itself are refused.
    pub variables: Map<String, Json>,
}

impl Default for RenderOptions {
    fn default() -> RenderOptions {
        RenderOptions {
            tools: Vec::new(),
            add_generation_prompt: true,
            enable_thinking: None,
            preserve_thinking: None,
            variables: Map::new(),
        }
    }
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text, as Hugging Face renders it.
    pub text: String,
    /// The ids. They differ from an encoding of `text` as a whole exactly where the request's own text
    /// spells a control token: here it stays ordinary text.
    pub ids: Vec<u32>,
    /// Whether the prompt ends inside an open `<think>`, so that the reply begins with thinking.
    pub thinking: bool,
}

impl ChatTemplate {
    /// Loads `chat_template.jinja`, or else `chat_template` of `tokenizer_config.json`: a string, or a
    /// list of named templates of which `default` and `tool_use` count.
    ///
    /// # Errors
    /// [`Error::NoTemplate`] if there is none; an unreadable file; a syntax error, with its line.
    pub fn load(dir: &Path) -> Result<ChatTemplate> {
        let path = dir.join("chat_template.jinja");
        if let Some(source) = read_text_if_present(&path, TEMPLATE_BYTES_MAX)? {
            return ChatTemplate::new(source, None);
        }
        let path = dir.join("tokenizer_config.json");
        let no_template = || Error::NoTemplate { dir: dir.to_owned() };
        let config = read_text_if_present(&path, CONFIG_BYTES_MAX)?.ok_or_else(no_template)?;
        let mut config: Map<String, Json> =
            serde_json::from_str(&config).map_err(|e| bad_file(&path, &e.to_string()))?;
        match config.remove("chat_template") {
            None | Some(Json::Null) => Err(no_template()),
            Some(Json::String(source)) => ChatTemplate::new(source, None),
            Some(Json::Array(list)) => {
                let named = |name: &str| {
                    let entry = list.iter().find(|entry| entry["name"] == name);
                    entry.and_then(|entry| entry["template"].as_str()).map(str::to_owned)
                };
                let default = named("default").ok_or_else(|| {
                    bad_file(
                        &path,
                        "`chat_template` is a list without a template named \"default\"",
                    )
                })?;
                ChatTemplate::new(default, named("tool_use"))
            }
            Some(_) => Err(bad_file(&path, "`chat_template` is neither a string nor a list")),
        }
    }

    /// A template from its source, and another for requests with tools, if there is one.
    ///
    /// # Errors
    /// [`Error::Template`] for a syntax error, with its line.
    pub fn new(default: String, tool_use: Option<String>) -> Result<ChatTemplate> {
        let environment = environment(None);
        for source in std::iter::once(&default).chain(&tool_use) {
            bound_chains(source)?;
            guard(ENGINE, || Ok(environment.template_from_str(source).map(drop)))
                .map_err(|reason| Error::Template { line: None, reason })?
                .map_err(|e| template_error(&e, None))?;
        }
        Ok(ChatTemplate { default, tool_use })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.default
    }

    /// Renders the messages.
    ///
    /// Text of the request (contents, thinking, tool descriptions, names, arguments, variables) never
    /// becomes a control token; `raise_exception` is [`Error::TemplateRaised`]. The messages go in as
    /// they are: what a template refuses, [`normalise`](crate::normalise) may repair.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::is_request_fault`] tells whose fault it is.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Rendered> {
        check_messages(messages)?;
        if let Some(name) = options.variables.keys().find(|name| RESERVED.contains(&name.as_str()))
        {
            return Err(Error::ReservedVariable { name: name.clone() });
        }
        let source = match &self.tool_use {
            Some(tool_use) if !options.tools.is_empty() => tool_use,
            _ => &self.default,
        };
        let mut survey = Survey::default();
        survey_request(messages, options, &mut survey)?;
        let request_bytes = survey.bytes;
        survey_source(source, &mut survey);
        let mark = Mark::choose(tokenizer, &survey)?;

        let context = context(tokenizer, messages, options, &mark)?;
        let mut environment = environment(Some(&mark));
        let fuel = FUEL_BASE
            + FUEL_PER_MESSAGE * messages.len() as u64
            + FUEL_PER_BYTE * request_bytes as u64;
        environment.set_fuel(Some(fuel));
        let mut output = BoundedOutput {
            bytes: Vec::new(),
            bytes_max: OUTPUT_BYTES_BASE + OUTPUT_PER_BYTE * request_bytes as u64,
            exceeded: false,
        };
        let source = mark_literals(source, &mark);
        let limit = TIME_BASE + TIME_PER_MEBIBYTE * (request_bytes >> 20) as u32;
        let finished = on_deep_stack(limit, move || {
            let result = environment
                .template_from_str(&source)
                .and_then(|template| template.render_captured_to(context, &mut output).map(drop));
            (result, output)
        })?;
        let Some((result, output)) = finished else {
            return Err(Error::TemplateBudget { what: "seconds", bound: limit.as_secs() });
        };
        if output.exceeded {
            return Err(Error::TemplateBudget { what: "output bytes", bound: output.bytes_max });
        }
        if let Err(error) = result {
            return Err(match error.kind() {
                ErrorKind::OutOfFuel => Error::TemplateBudget { what: "work units", bound: fuel },
                _ => template_error(&error, Some(&mark)),
            });
        }
        let marked = String::from_utf8(output.bytes).map_err(|e| Error::Template {
            line: None,
            reason: format!("it wrote bytes that are not UTF-8: {e}"),
        })?;
        let ids = tokenizer.encode_marked(&marked, Some(mark.mark))?;
        let thinking = ends_in_thinking(tokenizer, &ids);
        Ok(Rendered { text: mark.remove(&marked), ids, thinking })
    }
}

/// Refuses what no template is given: parts that are not text, and calls without a name.
/// [`ChatTemplate::render`] does so itself; before [`normalise`](crate::normalise) the indices in the
/// errors are those of the request.
///
/// # Errors
/// [`Error::UnsupportedPart`], [`Error::BadMessage`].
pub fn check_messages(messages: &[Message]) -> Result<()> {
    for (index, message) in messages.iter().enumerate() {
        if let Content::Parts(parts) = &message.content {
            for part in parts {
                if let Part::Unsupported { kind } = part {
                    return Err(Error::UnsupportedPart { index, kind: kind.clone() });
                }
            }
        }
        for call in &message.tool_calls {
            if call.name.is_empty() {
                let reason = "a tool call has an empty name".into();
                return Err(Error::BadMessage { index, reason });
            }
        }
    }
    Ok(())
}

fn survey_request(
    messages: &[Message],
    options: &RenderOptions,
    survey: &mut Survey,
) -> Result<()> {
    for message in messages {
        match &message.content {
            Content::Null => {}
            Content::Text(text) => survey.text(text),
            Content::Parts(parts) => {
                for part in parts {
                    if let Part::Text(text) = part {
                        survey.text(text);
                    }
                }
            }
        }
        for text in [&message.reasoning_content, &message.tool_call_id, &message.name] {
            survey.text(text.as_deref().unwrap_or_default());
        }
        for call in &message.tool_calls {
            survey.text(&call.name);
            survey.text(call.id.as_deref().unwrap_or_default());
            survey.map(&call.arguments)?;
        }
    }
    for tool in &options.tools {
        survey.value(tool)?;
    }
    survey.map(&options.variables)
}

/// The template's variables, all text of the request marked.
fn context(
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
    mark: &Mark,
) -> Result<Value> {
    let mut context = Map::new();
    for (name, token) in tokenizer.named_tokens() {
        context.insert(name.to_owned(), token.into());
    }
    for (name, value) in &options.variables {
        context.insert(name.clone(), mark.value(value));
    }
    let messages = messages.iter().map(|message| message_value(message, mark)).collect();
    context.insert("messages".into(), Json::Array(messages));
    let tools = match options.tools.as_slice() {
        [] => Json::Null,
        tools => tools.iter().map(|tool| mark.value(tool)).collect(),
    };
    context.insert("tools".into(), tools);
    context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
    if let Some(on) = options.enable_thinking {
        context.insert("enable_thinking".into(), on.into());
    }
    if let Some(on) = options.preserve_thinking {
        context.insert("preserve_thinking".into(), on.into());
    }
    Ok(Value::from(Serde(&context)))
}

fn message_value(message: &Message, mark: &Mark) -> Json {
    let mut value = Map::new();
    value.insert("role".into(), message.role.as_str().into());
    let content = match &message.content {
        Content::Null => Json::Null,
        Content::Text(text) => mark.text(text).into(),
        Content::Parts(parts) => parts
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(json!({"type": "text", "text": mark.text(text)})),
                Part::Unsupported { .. } => None, // Refused before.
            })
            .collect(),
    };
    value.insert("content".into(), content);
    for (key, text) in [
        ("reasoning_content", &message.reasoning_content),
        ("tool_call_id", &message.tool_call_id),
        ("name", &message.name),
    ] {
        if let Some(text) = text {
            value.insert(key.into(), mark.text(text).into());
        }
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let function =
                json!({"name": mark.text(&call.name), "arguments": mark.map(&call.arguments)});
            match &call.id {
                Some(id) => json!({"id": mark.text(id), "type": "function", "function": function}),
                None => json!({"type": "function", "function": function}),
            }
        });
        value.insert("tool_calls".into(), calls.collect());
    }
    Json::Object(value)
}

/// The last of `<think>`, `</think>` and a turn's beginning decides.
fn ends_in_thinking(tokenizer: &Tokenizer, ids: &[u32]) -> bool {
    let open = tokenizer.token_id("<think>");
    let others = [tokenizer.token_id("</think>"), tokenizer.token_id("<|im_start|>")];
    let last = ids.iter().rev().find(|id| Some(**id) == open || others.contains(&Some(**id)));
    open.is_some() && last.copied() == open
}

/// The Jinja dialect of `apply_chat_template`.
fn environment(mark: Option<&Mark>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.add_function("raise_exception", |message: String| -> Result<Value, _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised")
            .with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        python::strftime(&format, now.map_or(0, |now| now.as_secs()))
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| match python::scalar(value) {
        Some(text) => Value::from(text),
        None if value.kind() == ValueKind::String => value.clone(),
        None => Value::from(value.to_string()),
    });
    environment.set_formatter(|out, state, value| match python::scalar(value) {
        Some(text) => out.write_str(&text).map_err(minijinja::Error::from),
        None => escape_formatter(out, state, value),
    });
    let mark = mark.cloned();
    environment.set_unknown_method_callback(move |state, receiver, method, args| {
        if method == "format"
            && let Some(format) = receiver.as_str()
        {
            state.consume_fuel(format_cost(format, args)?)?;
        }
        if let Some(mark) = &mark
            && let Some(args) = marked_arguments(mark, receiver, method, args)
        {
            return unknown_method_callback(state, receiver, method, &args);
        }
        unknown_method_callback(state, receiver, method, args)
    });
    environment
}

/// Arguments for a method that looks for a text in the receiver, marked where the receiver has the
/// text in marked form only.
fn marked_arguments(
    mark: &Mark,
    receiver: &Value,
    method: &str,
    args: &[Value],
) -> Option<Vec<Value>> {
    const METHODS: [&str; 8] =
        ["split", "startswith", "endswith", "replace", "count", "find", "rfind", "rsplit"];
    let receiver = receiver.as_str()?;
    let needle = args.first()?.as_str()?;
    if !METHODS.contains(&method) || !receiver.contains(mark.mark) || receiver.contains(needle) {
        return None;
    }
    let mut args = args.to_vec();
    args[0] = Value::from(mark.text(needle).into_owned());
    Some(args)
}

fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<usize>,
    kwargs: Kwargs,
) -> Result<String, minijinja::Error> {
    const INDENT_MAX: usize = 16;
    let indent = indent.or(kwargs.get("indent")?);
    if kwargs.get::<Option<bool>>("ensure_ascii")? == Some(true) || indent > Some(INDENT_MAX) {
        return Err(minijinja::Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: ensure_ascii=true and an indent above {INDENT_MAX} are not supported"),
        ));
    }
    kwargs.assert_all_used()?;
    let text = python::to_json(value, indent)?;
    state.consume_fuel(text.len() as u64 / 16)?;
    Ok(text)
}

/// What `raise_exception` was called with, carried through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn template_error(error: &minijinja::Error, mark: Option<&Mark>) -> Error {
    let plain = |text: &str| mark.map_or_else(|| text.to_owned(), |mark| mark.remove(text));
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            let message = plain(message);
            let cut = message.char_indices().nth(RAISED_CHARS_MAX);
            let message = match cut {
                Some((end, _)) => format!("{}...", &message[..end]),
                None => message,
            };
            return Error::TemplateRaised { message };
        }
        source = cause.source();
    }
    let reason = match error.detail() {
        Some(detail) => format!("{}: {}", error.kind(), plain(detail)),
        None => error.kind().to_string(),
    };
    Error::Template { line: error.line(), reason }
}

/// Runs a job on a thread of its own with [`STACK_BYTES`] of stack; `None` if it takes longer than `limit`.
/// Its thread then goes on until the job ends by itself: nothing can stop it, but nobody waits for it.
fn on_deep_stack<T: Send + 'static>(
    limit: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let failed = |reason: String| Error::Template { line: None, reason };
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("chat template".into())
        .stack_size(STACK_BYTES)
        // Nobody may be listening any more.
        .spawn(move || drop(sender.send(guard(ENGINE, || Ok(job())))))
        .map_err(|e| failed(format!("no thread to render on: {e}")))?;
    match receiver.recv_timeout(limit) {
        Ok(result) => result.map(Some).map_err(failed),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        // The sender went without sending.
        Err(RecvTimeoutError::Disconnected) => Err(failed(format!("{ENGINE} gave up"))),
    }
}

/// Output that stops the template once it is too long.
struct BoundedOutput {
    bytes: Vec<u8>,
    bytes_max: u64,
    exceeded: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() as u64 + more.len() as u64 > self.bytes_max {
            self.exceeded = true;
            return Err(io::Error::other("the template writes too much"));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
