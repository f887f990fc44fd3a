//! `calla generate`: one prompt, one reply.

use crate::args::GenerateArgs;
use crate::grammar;
use crate::input::{self, Conversation};
use crate::load::Model;
use crate::output;
use crate::reply_printer::ReplyPrinter;
use crate::run::{self, End, INTERRUPTED, Task};
use crate::sampling;
use anyhow::bail;
use calla_text::{Message, ReplyForm, Role, normalise};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    sampling::check(&args.sampling)?;
    // The prompt is read first: a mistake in it should not cost the loading of a model.
    let prompt = read_prompt(args)?;
    let grammar = grammar::from_flags(&args.structure, prompt.tools())?;
    let mut model = Model::load(&args.model, &args.engine)?;
    let (ids, form) = match &prompt {
        Prompt::Raw(text) => (model.tokenizer.encode_raw(text)?, ReplyForm::Raw),
        Prompt::Chat(conversation) => {
            let options = conversation.render_options(&args.think);
            let messages = normalise(&conversation.messages);
            let rendered = model.template()?.render(&model.tokenizer, &messages, &options)?;
            let thinking = rendered.thinking;
            (rendered.ids, ReplyForm::Chat { thinking, tools: &conversation.tools })
        }
    };
    let task = Task {
        prompt: ids,
        form,
        sampling: sampling::from_flags(&args.sampling)?,
        args: &args.sampling,
        thinking_budget: args.think.thinking_budget,
        grammar,
        logprobs: args.logprobs,
    };
    let cancel = interruptible()?;
    if args.json {
        let outcome = run::run(&mut model, task, &cancel, |_| Ok(()))?;
        // The reply need not wait for the disk, nor what was computed for the reader of the reply.
        let printed = output::json(&outcome.to_json());
        model.session.save();
        printed?;
        return exit_if_interrupted(outcome.end);
    }
    let mut printer = ReplyPrinter::new();
    let outcome = run::run(&mut model, task, &cancel, |event| printer.event(event))?;
    printer.finish()?;
    model.session.save();
    match outcome.end {
        End::ContextFull => output::note("the context is full; --ctx makes it longer"),
        End::Length => output::note("stopped at --max-tokens"),
        End::Stop | End::Cancelled => {}
    }
    tracing::info!(
        "prompt {} tokens at {:.0}/s, reply {} tokens at {:.1}/s",
        outcome.prompt_tokens,
        outcome.prefill_rate(),
        outcome.ids.len(),
        outcome.decode_rate()
    );
    exit_if_interrupted(outcome.end)
}

/// Set by the first Ctrl-C, which ends the reply so that what was computed can be saved. The second ends the
/// program.
fn interruptible() -> anyhow::Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, cancel.clone())?;
    flag::register(SIGINT, cancel.clone())?;
    Ok(cancel)
}

fn exit_if_interrupted(end: End) -> anyhow::Result<()> {
    if end == End::Cancelled {
        std::process::exit(INTERRUPTED);
    }
    Ok(())
}

enum Prompt {
    Raw(String),
    Chat(Conversation),
}

impl Prompt {
    fn tools(&self) -> &[serde_json::Value] {
        match self {
            Self::Raw(_) => &[],
            Self::Chat(conversation) => &conversation.tools,
        }
    }
}

fn read_prompt(args: &GenerateArgs) -> anyhow::Result<Prompt> {
    let mut conversation = match &args.messages {
        Some(file) => input::conversation(Some(file))?,
        None => {
            let text = match &args.prompt {
                Some(text) => text.clone(),
                None => input::text(None)?,
            };
            if args.raw {
                if text.is_empty() {
                    bail!("the prompt is empty");
                }
                return Ok(Prompt::Raw(text));
            }
            if text.trim().is_empty() {
                bail!("the prompt is empty; give it as an argument or on standard input");
            }
            let messages = vec![Message::new(Role::User, text)];
            Conversation { messages, ..Conversation::default() }
        }
    };
    if let Some(system) = &args.system {
        conversation.messages.insert(0, Message::new(Role::System, system.as_str()));
    }
    if let Some(file) = &args.tools {
        conversation.tools = input::tools(file)?;
    }
    Ok(Prompt::Chat(conversation))
}
