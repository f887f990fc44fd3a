//! From a request to the core's task.
//!
//! | here | there |
//! |---|---|
//! | each block of `system` | a leading system message |
//! | `tool_result` blocks of a user message | a tool message each; the text between them stays the user's |
//! | `thinking` blocks | the message's thinking; `redacted_thinking` is left out |
//! | `system` messages, `mid_conv_system` blocks | system messages in their place |
//! | tools without an `input_schema` that Anthropic defines | left out |
//! | no `thinking` | thinking off: clients that did not ask for its blocks do not expect them |
//! | `output_config.effort` | a budget for adaptive thinking |
//! | `clear_thinking_...` with `keep: "all"` | earlier thinking stays in the prompt |

use super::request::{
    Content, ContextManagement, InputBlock, InputMessage, InputRole, MessagesRequest, Thinking,
    ThinkingKind, Tool, ToolChoice, ToolChoiceKind, ToolResultBlock,
};
use crate::error::ApiError;
use crate::generate::task::{self, Chat, Format, Options, Prompt, Task};
use calla_text::{Message, Part, Role, ToolCall};
use serde_json::{Map, Value, json};
use std::fmt::Display;

/// What stands before a tool's result that is an error.
const ERROR_MARK: &str = "Error: ";

/// The task of a request for a reply.
///
/// # Errors
/// If a field has a value that is not allowed; the message begins with the field.
pub(crate) fn task(request: MessagesRequest) -> Result<Task, ApiError> {
    if request.messages.last().is_some_and(|message| message.role == InputRole::Assistant) {
        let place = format!("messages[{}]", request.messages.len() - 1);
        return Err(invalid(
            place,
            "the conversation ends with the assistant, whose turn cannot be prefilled: end it with a user message",
        ));
    }
    let options = options(&request)?;
    Ok(Task { prompt: Prompt::Chat(chat(request)?), options })
}

/// The conversation of a request, whoever speaks last.
///
/// # Errors
/// As for [`task`].
pub(crate) fn chat(request: MessagesRequest) -> Result<Chat, ApiError> {
    if request.messages.is_empty() {
        return Err(invalid("messages", "the list is empty: at least one message is required"));
    }
    let mut messages = system(request.system)?;
    for (i, message) in request.messages.into_iter().enumerate() {
        conversation(&format!("messages[{i}]"), message, &mut messages)?;
    }
    let (config, older) = (request.output_config, request.output_format);
    let (effort, format) = config.map_or((None, None), |config| (config.effort, config.format));
    let format = match format.or(older) {
        Some(format) => Format::JsonSchema(Value::Object(format.schema)),
        None => Format::Text,
    };
    let (enable_thinking, thinking_budget) = thinking(request.thinking, effort.as_deref())?;
    let (tool_choice, one_call) = tool_choice(request.tool_choice)?;
    Ok(Chat {
        messages,
        tools: tools(request.tools.unwrap_or_default())?,
        tool_choice,
        one_call,
        format,
        enable_thinking: Some(enable_thinking),
        preserve_thinking: keeps_thinking(request.context_management).then_some(true),
        thinking_budget,
        variables: Map::new(),
    })
}

/// An error of the core in this dialect's words: its fields have other names here, and only the message can
/// say which one is at fault.
pub(crate) fn in_own_words(mut error: ApiError) -> ApiError {
    let Some(param) = error.param.as_deref() else { return error };
    let field = match param {
        "stop" => "stop_sequences",
        "response_format" => "output_config.format",
        other => other,
    };
    // Agents look at how the message about the context's length begins.
    if error.code != Some("context_length_exceeded") && !error.message.starts_with(field) {
        error.message = format!("{field}: {}", error.message);
    }
    error.param = Some(field.to_owned());
    error
}

fn invalid(field: impl Display, problem: impl Display) -> ApiError {
    ApiError::invalid(field.to_string(), format!("{field}: {problem}"))
}

fn options(request: &MessagesRequest) -> Result<Options, ApiError> {
    let missing = || invalid("max_tokens", "it is required: say how long the reply may be");
    let max_tokens = request.max_tokens.ok_or_else(missing)?;
    Ok(Options {
        temperature: request.temperature,
        top_k: request.top_k.map(|k| at_least("top_k", k, 0)).transpose()?,
        top_p: request.top_p,
        max_tokens: Some(at_least("max_tokens", max_tokens, 1)?),
        stop: request.stop_sequences.clone().unwrap_or_default(),
        ..Options::default()
    })
}

fn at_least(field: &str, value: i64, min: i64) -> Result<usize, ApiError> {
    let too_small = || invalid(field, format_args!("it must be at least {min} but is {value}"));
    if value < min { Err(too_small()) } else { usize::try_from(value).map_err(|_| too_small()) }
}

/// A message for each block, so that the one that names the client's version can be told from the others.
fn system(system: Option<Content>) -> Result<Vec<Message>, ApiError> {
    let blocks = match system {
        None => return Ok(vec![]),
        Some(Content::Text(text)) => return Ok(vec![Message::new(Role::System, text)]),
        Some(Content::Blocks(blocks)) => blocks,
    };
    let message = |(i, block)| {
        let text = text_of(&format!("system[{i}]"), block)?;
        Ok(Message::new(Role::System, text))
    };
    blocks.into_iter().enumerate().map(message).collect()
}

/// Adds a message, which can become several.
fn conversation(
    place: &str,
    message: InputMessage,
    out: &mut Vec<Message>,
) -> Result<(), ApiError> {
    let role = match message.role {
        InputRole::User => Role::User,
        InputRole::Assistant => Role::Assistant,
        InputRole::System => Role::System,
        InputRole::Developer => Role::Developer,
    };
    let blocks = match message.content {
        Content::Text(text) => {
            out.push(Message::new(role, text));
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    if role == Role::Assistant {
        out.push(reply(place, blocks)?);
        return Ok(());
    }
    let is_empty = blocks.is_empty();
    // Texts that stand side by side.
    let mut texts: Vec<Part> = vec![];
    for (j, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}.content[{j}]");
        let other = match block {
            InputBlock::Text(block) => {
                texts.push(Part::Text(block.text));
                continue;
            }
            InputBlock::ToolResult(result) if role == Role::User => tool_result(&place, result)?,
            InputBlock::MidConvSystem(block) => {
                let parts = text_parts(&format!("{place}.content"), block.content)?;
                message_of(Role::System, parts)
            }
            other => return Err(misplaced(&place, &other, role)),
        };
        if !texts.is_empty() {
            out.push(message_of(role, std::mem::take(&mut texts)));
        }
        out.push(other);
    }
    if !texts.is_empty() || is_empty {
        out.push(message_of(role, texts));
    }
    Ok(())
}

/// An earlier reply. Its texts are joined as they are: they were one text when it was made.
fn reply(place: &str, blocks: Vec<InputBlock>) -> Result<Message, ApiError> {
    let mut message = Message::new(Role::Assistant, "");
    let (mut text, mut reasoning) = (String::new(), String::new());
    for (j, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}.content[{j}]");
        match block {
            InputBlock::Text(block) => text.push_str(&block.text),
            InputBlock::Thinking(block) => reasoning.push_str(&block.thinking),
            InputBlock::RedactedThinking => {}
            InputBlock::ToolUse(call) if call.name.is_empty() => {
                return Err(invalid(format!("{place}.name"), "it is empty: name the tool"));
            }
            InputBlock::ToolUse(call) => message.tool_calls.push(ToolCall {
                id: Some(call.id),
                name: call.name,
                arguments: call.input,
            }),
            other => return Err(misplaced(&place, &other, Role::Assistant)),
        }
    }
    message.content = text.into();
    message.reasoning_content = (!reasoning.is_empty()).then_some(reasoning);
    Ok(message)
}

fn tool_result(place: &str, result: ToolResultBlock) -> Result<Message, ApiError> {
    let mut parts = match result.content {
        None => vec![],
        Some(content) => text_parts(&format!("{place}.content"), content)?,
    };
    if result.is_error == Some(true) {
        parts.insert(0, Part::Text(ERROR_MARK.into()));
    }
    let message = message_of(Role::Tool, parts);
    Ok(Message { tool_call_id: Some(result.tool_use_id), ..message })
}

fn message_of(role: Role, parts: Vec<Part>) -> Message {
    Message { content: calla_text::Content::Parts(parts), ..Message::new(role, "") }
}

fn text_parts(place: &str, content: Content) -> Result<Vec<Part>, ApiError> {
    let blocks = match content {
        Content::Text(text) => return Ok(vec![Part::Text(text)]),
        Content::Blocks(blocks) => blocks,
    };
    let part = |(k, block)| text_of(&format!("{place}[{k}]"), block).map(Part::Text);
    blocks.into_iter().enumerate().map(part).collect()
}

/// The text of a block, where nothing else may stand.
fn text_of(place: &str, block: InputBlock) -> Result<String, ApiError> {
    match block {
        InputBlock::Text(block) => Ok(block.text),
        other => Err(unsupported(place, &other, "only text blocks can stand here")),
    }
}

fn misplaced(place: &str, block: &InputBlock, role: Role) -> ApiError {
    let role = role.as_str();
    unsupported(place, block, format_args!("it cannot stand in a message whose role is {role}"))
}

/// A block that is not read, or not there.
fn unsupported(place: &str, block: &InputBlock, otherwise: impl Display) -> ApiError {
    let kind = match block {
        InputBlock::Text(_) => "text",
        InputBlock::Thinking(_) => "thinking",
        InputBlock::RedactedThinking => "redacted_thinking",
        InputBlock::ToolUse(_) => "tool_use",
        InputBlock::ToolResult(_) => "tool_result",
        InputBlock::MidConvSystem(_) => "mid_conv_system",
        InputBlock::Other(kind) => {
            let kind: String = kind.chars().take(80).collect();
            let problem = format!(
                "a block of type {kind:?} is not supported, as the model is given text only: leave it out, \
                 or put what it says into a text block"
            );
            return invalid(place, problem).with_code("unsupported_content");
        }
    };
    invalid(place, format_args!("a block of type {kind}: {otherwise}"))
}

/// Descriptions in OpenAI's form, which the template prints.
fn tools(tools: Vec<Tool>) -> Result<Vec<Value>, ApiError> {
    let mut descriptions = Vec::with_capacity(tools.len());
    for (i, tool) in tools.into_iter().enumerate() {
        let is_custom = tool.kind.as_deref().is_none_or(|kind| kind == "custom");
        let Some(schema) = tool.input_schema else {
            if is_custom {
                let field = format!("tools[{i}].input_schema");
                return Err(invalid(
                    field,
                    "it is required: give the JSON schema of the tool's input",
                ));
            }
            continue;
        };
        let Some(name) = tool.name.filter(|name| !name.is_empty()) else {
            return Err(invalid(format!("tools[{i}].name"), "it is required: name the tool"));
        };
        let mut function = Map::new();
        function.insert("name".into(), name.into());
        if let Some(description) = tool.description {
            function.insert("description".into(), description.into());
        }
        function.insert("parameters".into(), schema.into());
        if tool.strict == Some(true) {
            function.insert("strict".into(), true.into());
        }
        descriptions.push(json!({"type": "function", "function": function}));
    }
    Ok(descriptions)
}

/// Whether tools are called, and whether once at most.
fn tool_choice(choice: Option<ToolChoice>) -> Result<(task::ToolChoice, bool), ApiError> {
    let Some(choice) = choice else { return Ok((task::ToolChoice::Auto, false)) };
    let one_call = choice.disable_parallel_tool_use == Some(true);
    let choice = match choice.kind {
        ToolChoiceKind::Auto => task::ToolChoice::Auto,
        ToolChoiceKind::Any => task::ToolChoice::Required,
        ToolChoiceKind::None => task::ToolChoice::None,
        ToolChoiceKind::Tool => {
            let missing = || invalid("tool_choice.name", "it is required where the type is tool");
            task::ToolChoice::Named(choice.name.ok_or_else(missing)?)
        }
    };
    Ok((choice, one_call))
}

/// Whether to think, and for how many tokens at most.
fn thinking(
    thinking: Option<Thinking>,
    effort: Option<&str>,
) -> Result<(bool, Option<usize>), ApiError> {
    let effort = match effort {
        None => (true, None),
        Some(word) => task::effort(word).ok_or_else(|| {
            let word: String = word.chars().take(80).collect();
            let words = "low, medium, high, xhigh and max are known";
            invalid("output_config.effort", format_args!("it is {word:?}: {words}"))
        })?,
    };
    let Some(thinking) = thinking else { return Ok((false, None)) };
    let budget = thinking.budget_tokens.map(|n| at_least("thinking.budget_tokens", n, 1));
    let budget = budget.transpose()?;
    Ok(match thinking.kind {
        ThinkingKind::Enabled => (true, budget),
        ThinkingKind::Adaptive => effort,
        ThinkingKind::Disabled => (false, None),
    })
}

fn keeps_thinking(management: Option<ContextManagement>) -> bool {
    let edits = management.and_then(|management| management.edits).unwrap_or_default();
    let keeps = |edit: &super::request::Edit| {
        let all = |keep: &Value| keep == "all" || keep["type"] == "all";
        edit.kind.starts_with("clear_thinking") && edit.keep.as_ref().is_some_and(all)
    };
    edits.iter().any(keeps)
}

#[cfg(test)]
mod tests;
