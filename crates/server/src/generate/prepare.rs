//! From a task to the engine's request: the prompt is rendered, parameters are checked, grammars compiled.

use super::task::{CHOICES_MAX, Chat, Format, Options, Prompt, Task, ToolChoice};
use crate::error::{ApiError, ErrorKind};
use crate::model::Model;
use calla_engine::{CacheKey, Grammar, Request, Sampling, SamplingError, SubmitError};
use calla_grammar::GrammarError;
use calla_text::{
    GenerationDefaults, RenderOptions, ReplyAssembler, ReplyForm, check_messages, normalise,
};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A task that the model can do.
pub(crate) struct Prepared {
    /// Of the first reply; the others differ in their seeds.
    pub(crate) request: Request,
    /// Reads the reply's tokens; one for each reply.
    pub(crate) assembler: ReplyAssembler,
    pub(crate) stop: Vec<String>,
    pub(crate) choices: usize,
    /// Whether the reply ends with its first call.
    pub(crate) one_call: bool,
}

/// Prepares a task: milliseconds of work for a long prompt, on a thread that may take them.
pub(crate) fn prepare(model: &Model, task: Task, owner: &str) -> Result<Prepared, ApiError> {
    let Task { prompt, options } = task;
    check_options(&options, model)?;
    let parts = model.parts();
    let (prompt, is_thinking, chat) = match prompt {
        Prompt::Chat(chat) => {
            let (ids, thinking) = render(model, &chat)?;
            (ids, thinking, Some(chat))
        }
        Prompt::Text(text) => {
            (parts.tokenizer.encode_raw(&text).map_err(|e| text_error(&e))?, false, None)
        }
        Prompt::Tokens(ids) => (ids, false, None),
        Prompt::Infill { prefix, suffix } => (infill(model, &prefix, &suffix)?, false, None),
    };
    let form = match &chat {
        Some(chat) => ReplyForm::Chat { thinking: is_thinking, tools: &chat.tools },
        None => ReplyForm::Raw,
    };
    let assembler =
        ReplyAssembler::new(&parts.tokenizer, form, &options.stop).map_err(|e| text_error(&e))?;
    let grammar = chat.as_ref().map_or(Ok(None), grammar)?;
    // A prompt that does not fit is refused before work is spent on its grammar.
    if prompt.len() >= parts.context {
        return Err(context_length(prompt.len(), parts.context));
    }
    if let Some(grammar) = &grammar {
        let format = chat.as_ref().map_or(&Format::Text, |chat| &chat.format);
        model.compile_ahead(grammar).map_err(|error| grammar_error(&error, format))?;
    }
    let calls_are_barred = chat.as_ref().is_some_and(|chat| chat.tool_choice == ToolChoice::None);
    let budget = chat.as_ref().and_then(|chat| chat.thinking_budget);
    let request = Request {
        prompt,
        key: CacheKey { owner: owner.to_owned(), name: options.cache_salt.clone() },
        sampling: sampling(&options, &parts.defaults)?,
        max_tokens: options.max_tokens.unwrap_or(usize::MAX),
        min_tokens: options.min_tokens,
        stop_ids: parts.stop_ids.clone(),
        ignore_eos: options.ignore_eos,
        banned_ids: model.tool_call_id().filter(|_| calls_are_barred).into_iter().collect(),
        vocab_used: parts.vocab_used,
        top_logprobs: options.logprobs,
        thinking: if is_thinking { model.thinking(budget) } else { None },
        grammar,
    };
    Ok(Prepared {
        request,
        assembler,
        stop: options.stop,
        choices: options.choices,
        one_call: chat.is_some_and(|chat| chat.one_call),
    })
}

/// Ids of a conversation's prompt, and whether it ends inside thinking.
pub(crate) fn render(model: &Model, chat: &Chat) -> Result<(Vec<u32>, bool), ApiError> {
    // Before any rearrangement, so that indices in errors are those of the request.
    check_messages(&chat.messages).map_err(|e| text_error(&e))?;
    let parts = model.parts();
    let options = RenderOptions {
        tools: chat.tools.clone(),
        add_generation_prompt: true,
        enable_thinking: chat.enable_thinking,
        preserve_thinking: chat.preserve_thinking.or(parts.preserve_thinking),
        variables: chat.variables.clone(),
    };
    let messages = normalise(&chat.messages);
    let rendered =
        parts.template.render(&parts.tokenizer, &messages, &options).map_err(|e| text_error(&e))?;
    Ok((rendered.ids, rendered.thinking))
}

/// The family's tokens around what lies before and behind a gap.
fn infill(model: &Model, prefix: &str, suffix: &str) -> Result<Vec<u32>, ApiError> {
    let tokenizer = &model.parts().tokenizer;
    let marker = |name: &str| {
        tokenizer.token_id(name).ok_or_else(|| {
            let message = format!("this model has no token {name}: leave out \"suffix\"");
            ApiError::invalid("suffix", message)
        })
    };
    let text = |text: &str| tokenizer.encode_text(text).map_err(|e| text_error(&e));
    let mut ids = vec![marker("<|fim_prefix|>")?];
    ids.extend(text(prefix)?);
    ids.push(marker("<|fim_suffix|>")?);
    ids.extend(text(suffix)?);
    ids.push(marker("<|fim_middle|>")?);
    Ok(ids)
}

/// What the reply is held to.
fn grammar(chat: &Chat) -> Result<Option<Grammar>, ApiError> {
    let answer = match &chat.format {
        Format::Text => None,
        Format::JsonObject => Some(Grammar::JsonObject),
        Format::JsonSchema(schema) => Some(Grammar::JsonSchema(schema.to_string())),
        Format::Regex(regex) => Some(Grammar::Regex(regex.clone())),
        Format::Lark(lark) => Some(Grammar::Lark(lark.clone())),
    };
    let choice = match &chat.tool_choice {
        ToolChoice::None => return Ok(answer),
        ToolChoice::Auto => {
            if chat.tools.is_empty() {
                return Ok(answer);
            }
            let Some(answer) = answer else { return Ok(None) };
            let grammar = calla_grammar::tool_calls_or(&chat.tools, !chat.one_call, &answer);
            return grammar.map(Some).map_err(|error| grammar_error(&error, &chat.format));
        }
        ToolChoice::Required => calla_grammar::ToolChoice::Required,
        ToolChoice::Named(name) => calla_grammar::ToolChoice::Named(name.clone()),
    };
    let grammar = calla_grammar::tool_calls(&chat.tools, &choice, !chat.one_call);
    grammar.map(Some).map_err(|error| grammar_error(&error, &Format::Text))
}

fn check_options(options: &Options, model: &Model) -> Result<(), ApiError> {
    if !(1..=CHOICES_MAX).contains(&options.choices) {
        let message = format!("n must be from 1 to {CHOICES_MAX} but is {}", options.choices);
        return Err(ApiError::invalid("n", message));
    }
    if options.max_tokens == Some(0) {
        return Err(ApiError::invalid("max_tokens", "max_tokens must be at least 1 but is 0"));
    }
    let used = model.parts().vocab_used;
    let sampling = sampling(options, &model.parts().defaults)?;
    sampling.validate_tokens(used).map_err(|error| sampling_error(&error))
}

/// What the request says, over the checkpoint's generation_config.json.
pub(crate) fn sampling(
    options: &Options,
    defaults: &GenerationDefaults,
) -> Result<Sampling, ApiError> {
    let greedy = Sampling::greedy();
    let is_sampled = defaults.do_sample == Some(true);
    let temperature = if is_sampled { defaults.temperature.unwrap_or(1.0) } else { 0.0 };
    let sampling = Sampling {
        temperature: options.temperature.unwrap_or(temperature),
        top_k: options.top_k.or(defaults.top_k.map(|k| k as usize)).unwrap_or(greedy.top_k),
        top_p: options.top_p.or(defaults.top_p).unwrap_or(greedy.top_p),
        min_p: options.min_p.or(defaults.min_p).unwrap_or(greedy.min_p),
        repetition_penalty: options
            .repetition_penalty
            .or(defaults.repetition_penalty)
            .unwrap_or(greedy.repetition_penalty),
        presence_penalty: options.presence_penalty.unwrap_or(greedy.presence_penalty),
        frequency_penalty: options.frequency_penalty.unwrap_or(greedy.frequency_penalty),
        logit_bias: options.logit_bias.clone(),
        seed: options.seed.unwrap_or_else(random_seed),
    };
    sampling.validate().map_err(|error| sampling_error(&error))?;
    Ok(sampling)
}

/// A seed that nobody asked for. The standard library keys each hasher by randomness of the system.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

fn sampling_error(error: &SamplingError) -> ApiError {
    let param = match error {
        SamplingError::Range { name, .. } => name,
        SamplingError::BiasLen { .. }
        | SamplingError::Bias { .. }
        | SamplingError::BiasToken { .. } => "logit_bias",
    };
    ApiError::invalid(param, error.to_string())
}

/// The prompt leaves no room for a reply. Agents look for the code, or for words of the message, and then
/// compact their conversation.
fn context_length(prompt: usize, context: usize) -> ApiError {
    ApiError::invalid(
        "messages",
        format!(
            "prompt is too long: {prompt} tokens > {context} maximum. This model's maximum context length is \
             {context} tokens, but the messages have {prompt}: shorten them, or serve with a larger --ctx"
        ),
    )
    .with_code("context_length_exceeded")
}

/// What the engine refused. Most of it was checked before.
pub(crate) fn submit_error(error: &SubmitError) -> ApiError {
    let invalid = |param: &str| ApiError::invalid(param, error.to_string());
    match error {
        SubmitError::EmptyPrompt => invalid("prompt"),
        SubmitError::ContextLength { prompt, context } => context_length(*prompt, *context),
        SubmitError::Token { .. } => invalid("prompt"),
        SubmitError::TopLogprobs { .. } => invalid("top_logprobs"),
        SubmitError::Sampling(error) => sampling_error(error),
        SubmitError::ThinkingEnd { .. } => ApiError::new(ErrorKind::Server, error.to_string()),
        SubmitError::QueueFull { .. } => ApiError::new(ErrorKind::QueueFull, error.to_string())
            .with_code("queue_full")
            .with_retry_after(2),
    }
}

/// A grammar that cannot be followed: the request's fault, but for what the library could not do.
fn grammar_error(error: &GrammarError, format: &Format) -> ApiError {
    match error {
        GrammarError::Vocabulary(_) | GrammarError::Internal(_) => {
            ApiError::new(ErrorKind::Server, error.to_string())
        }
        GrammarError::Tool { .. } | GrammarError::NoTools => {
            ApiError::invalid("tools", error.to_string())
        }
        _ => {
            let param = match format {
                Format::JsonObject | Format::JsonSchema(_) => "response_format",
                Format::Regex(_) => "regex",
                Format::Lark(_) => "grammar",
                // Only tools have a grammar then.
                Format::Text => "tools",
            };
            ApiError::invalid(param, error.to_string())
        }
    }
}

/// What the text side refused.
pub(crate) fn text_error(error: &calla_text::Error) -> ApiError {
    use calla_text::Error;
    let invalid = |param: String| ApiError::invalid(param, error.to_string());
    match error {
        Error::BadMessage { index, .. } => invalid(format!("messages[{index}]")),
        Error::UnsupportedPart { index, .. } => {
            invalid(format!("messages[{index}].content")).with_code("unsupported_content")
        }
        Error::BadStop { .. } => invalid("stop".into()),
        Error::ReservedVariable { .. } => invalid("chat_template_kwargs".into()),
        // What a template does with the messages of one request is not the server's fault.
        Error::Template { .. } | Error::TemplateBudget { .. } => invalid("messages".into()),
        _ if error.is_request_fault() => invalid("messages".into()),
        _ => ApiError::new(ErrorKind::Server, error.to_string()),
    }
}
