//! `calla chat`: a conversation, turn by turn.

mod command;
mod line_reader;
mod transcript;

use crate::args::ChatArgs;
use crate::input;
use crate::load::Model;
use crate::output;
use crate::reply_printer::ReplyPrinter;
use crate::run::{self, End, INTERRUPTED, Outcome, Task};
use crate::sampling;
use calla_engine::{Level, Miss, Reuse, Sampling, SubmitError};
use calla_runtime::SessionError;
use calla_text::{ChatTemplate, RenderOptions, ReplyForm, normalise};
use command::Input;
use line_reader::LineReader;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transcript::Transcript;

/// Said when calls wait for a result.
const ANSWER_CALLS: &str = "/tool RESULT answers the call";

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<()> {
    sampling::check(&args.sampling)?;
    let transcript = start_transcript(args)?;
    let model = Model::load(&args.model, &args.engine)?;
    let mut chat = Chat {
        template: model.template()?,
        sampling: sampling::from_defaults(&args.sampling, &model.defaults)?,
        enable_thinking: args.think.enable_thinking().or(transcript.settings.enable_thinking),
        model,
        transcript,
        args,
        signals: Signals::install()?,
        last_reuse: None,
    };
    let mut lines = LineReader::new()?;
    if lines.is_interactive() {
        chat.greet();
    }
    if chat.transcript.waiting() > 0 {
        output::note(ANSWER_CALLS);
    }
    while let Some(line) = chat.signals.while_waiting(&mut lines)? {
        let input = command::parse(&line);
        let is_turn = matches!(input, Input::Message(_) | Input::ToolResult(_));
        if !chat.take(input)? {
            break;
        }
        if is_turn && lines.is_interactive() {
            output::raw("\n")?;
        }
    }
    chat.model.session.save();
    Ok(())
}

fn start_transcript(args: &ChatArgs) -> anyhow::Result<Transcript> {
    let mut transcript = match &args.messages {
        Some(file) => Transcript::from_conversation(input::conversation(Some(file))?),
        None => Transcript::default(),
    };
    if let Some(file) = &args.tools {
        transcript.tools = input::tools(file)?;
    }
    if args.system.is_some() {
        transcript.system.clone_from(&args.system);
    }
    Ok(transcript)
}

struct Chat<'a> {
    model: Model,
    template: ChatTemplate,
    sampling: Sampling,
    /// `None` leaves it to the template.
    enable_thinking: Option<bool>,
    transcript: Transcript,
    args: &'a ChatArgs,
    signals: Signals,
    /// Of the last prompt.
    last_reuse: Option<Reuse>,
}

impl Chat<'_> {
    fn greet(&self) {
        let name = self.model.dir.file_name().map_or(self.model.dir.as_os_str(), |name| name);
        output::note(&format!(
            "calla {}: {} on {}, context {} tokens. /help lists commands.",
            env!("CARGO_PKG_VERSION"),
            name.to_string_lossy(),
            self.model.device,
            self.model.session.context_length()
        ));
        if self.model.is_demo {
            output::note(
                "It is small and knows little. Try: 12 + 30 = ? or What is the capital of Peru?",
            );
        }
    }

    /// Does what a line asks for; `false` to leave. An error that a line brings about is told, and the chat
    /// goes on.
    fn take(&mut self, input: Input) -> anyhow::Result<bool> {
        match input {
            Input::Empty => {}
            Input::Exit => return Ok(false),
            Input::Help => output::note(command::HELP),
            Input::Wrong(text) => output::note(&text),
            Input::Stats => self.show_stats(),
            Input::Reset => {
                self.transcript.reset();
                output::note("the conversation is forgotten");
            }
            Input::System(None) => match &self.transcript.system {
                Some(text) => output::note(&format!("system message: {text}")),
                None => output::note("there is no system message"),
            },
            Input::System(Some(text)) => {
                self.transcript.system = Some(text).filter(|text| text != "-");
                let done = if self.transcript.system.is_some() { "set" } else { "removed" };
                output::note(&format!("system message {done}"));
            }
            Input::Think(on) => {
                self.enable_thinking = Some(on);
                output::note(if on { "thinking is on" } else { "thinking is off" });
            }
            Input::Save { path, overwrite } => match self.transcript.save(&path, overwrite) {
                Ok(path) => output::note(&format!("saved to {}", path.display())),
                Err(error) => output::note_error(&error),
            },
            Input::ToolResult(text) => match self.transcript.add_tool_result(text) {
                None => output::note("the model waits for no result of a tool"),
                Some(0) => self.answer()?,
                Some(more) => output::note(&format!("{more} more to answer with /tool")),
            },
            Input::Message(text) => {
                self.transcript.add_user(text);
                self.answer()?;
            }
        }
        Ok(true)
    }

    /// Lets the model answer the last message. What keeps it from answering is told, and the message is
    /// taken back.
    fn answer(&mut self) -> anyhow::Result<()> {
        let outcome = match self.generate() {
            Ok(outcome) => outcome,
            Err(error) if error.downcast_ref::<std::io::Error>().is_some() => return Err(error),
            Err(error) => {
                self.transcript.take_back();
                output::note_error(&error);
                if let Some(SessionError::Submit(SubmitError::ContextLength { .. })) =
                    error.downcast_ref()
                {
                    output::note("/reset starts a new conversation; --ctx gives a longer context");
                }
                return Ok(());
            }
        };
        self.last_reuse = Some(outcome.usage.reuse);
        self.show_end(&outcome);
        // Whatever ends the program, this turn will not be lost.
        self.model.session.save_meanwhile();
        if outcome.ids.is_empty() && outcome.end == End::Cancelled {
            self.transcript.take_back();
            output::note("your message is taken back: the answer had not begun");
            return Ok(());
        }
        let calls = self.transcript.add_reply(outcome.reply.reply.into_message());
        if calls > 0 {
            output::note(ANSWER_CALLS);
        }
        Ok(())
    }

    fn generate(&mut self) -> anyhow::Result<Outcome> {
        let tools = self.transcript.tools.clone();
        let options = RenderOptions {
            enable_thinking: self.enable_thinking,
            ..self.transcript.settings.render_options(tools, &self.args.think)
        };
        let messages = normalise(&self.transcript.prompt());
        let rendered = self.template.render(&self.model.tokenizer, &messages, &options)?;
        // Each answer draws anew, and the whole chat again the same with the same seed.
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        let task = Task {
            prompt: rendered.ids,
            form: ReplyForm::Chat { thinking: rendered.thinking, tools: &options.tools },
            sampling: self.sampling.clone(),
            args: &self.args.sampling,
            thinking_budget: self.args.think.thinking_budget,
            grammar: None,
            logprobs: None,
        };
        let mut printer = ReplyPrinter::new();
        let cancel = &self.signals.cancel;
        let outcome = run::run(&mut self.model, task, cancel, |event| printer.event(event));
        printer.finish()?;
        outcome
    }

    /// The quiet line after an answer, and why it ended if not by itself.
    fn show_end(&self, outcome: &Outcome) {
        match outcome.end {
            End::Stop => {}
            End::Length => output::note("stopped at --max-tokens"),
            End::Cancelled => output::note("stopped"),
            End::ContextFull => output::note(&format!(
                "the context of {} tokens is full: /reset starts a new conversation, \
                 --ctx gives a longer one",
                self.model.session.context_length()
            )),
        }
        let prompt = match (outcome.prompt_done, outcome.prompt_tokens) {
            (done, total) if done < total => format!("{done} of {total}"),
            (_, total) => total.to_string(),
        };
        let usage = &outcome.usage;
        let reused = match usage.reuse.reused {
            0 => String::new(),
            reused => match usage.reuse.from {
                Some(Level::Host) => format!(" ({reused} reused, from host memory)"),
                Some(Level::Disk) => format!(" ({reused} reused, from disk)"),
                None => format!(" ({reused} reused)"),
            },
        };
        let drafted = match usage.drafted_tokens {
            0 => String::new(),
            drafted => format!(", {} of {drafted} drafts kept", usage.accepted_tokens),
        };
        output::note(&format!(
            "[prompt {prompt} tokens{reused}, prefill {:.0} tok/s; reply {} tokens, \
             decode {:.1} tok/s{drafted}]",
            outcome.prefill_rate(),
            outcome.ids.len(),
            outcome.decode_rate()
        ));
    }

    /// Why the last prompt was not reused further than it was, in words.
    fn last_miss(&self) -> String {
        let Some(Reuse { reused, common, miss, divergence, .. }) = self.last_reuse else {
            return String::new();
        };
        let why = match miss {
            None => "all that agrees with an earlier one".to_owned(),
            Some(Miss::Cold) => "nothing like it was seen before".to_owned(),
            Some(Miss::OtherKey) => "seen under another key only".to_owned(),
            Some(Miss::NoSnapshot) => {
                format!("{common} tokens agree with an earlier one; state is kept at turns")
            }
            Some(Miss::Evicted) => {
                format!("{common} tokens agree with an earlier one, whose state gave way")
            }
        };
        let at = divergence.map_or(String::new(), |d| {
            format!("; it differs from it at token {}, in message {}", d.token, d.message + 1)
        });
        format!("\nlast prompt: {reused} tokens reused ({why}{at})")
    }

    fn show_stats(&self) {
        let session = &self.model.session;
        let (cache, saved) = (session.occupancy(), session.saved());
        let counts = session.counts();
        // The CPU's state is in host memory itself.
        let in_host = match saved.host_prefixes {
            0 => String::new(),
            prefixes => {
                let megabytes = saved.host_bytes / 1_000_000;
                format!(", {prefixes} prefixes in host memory ({megabytes} MB)")
            }
        };
        let from_host = match counts.host_tokens {
            0 => String::new(),
            tokens => format!("{tokens} from host memory, "),
        };
        output::note(&format!(
            "model {} on {}\n{} messages; context of {} tokens{}\n\
             cache: {} snapshots in {} of {} slots, {} of {} KV pages{in_host}, {} prefixes on disk\n\
             prompts: {} tokens, {} of them reused ({from_host}{} from disk); {} snapshots gave way\n\
             replies: {} tokens; {} of {} drafted tokens kept{}",
            self.model.dir.display(),
            self.model.device,
            self.transcript.messages.len(),
            session.context_length(),
            match self.transcript.tools.len() {
                0 => String::new(),
                tools => format!("; {tools} tools"),
            },
            cache.snapshots,
            cache.slots_used,
            cache.slots,
            cache.pages_used,
            cache.pages,
            saved.files,
            counts.prompt_tokens,
            counts.reused_tokens,
            counts.loaded_tokens,
            counts.evictions,
            counts.generated_tokens,
            counts.accepted_tokens,
            counts.drafted_tokens,
            self.last_miss()
        ));
    }
}

/// Ctrl-C as a signal: it stops an answer, and ends the program only while that waits for a line from a
/// pipe. (At its prompt the line editor reads the key itself.)
struct Signals {
    cancel: Arc<AtomicBool>,
    waits_on_pipe: Arc<AtomicBool>,
}

impl Signals {
    fn install() -> anyhow::Result<Self> {
        let signals = Self {
            cancel: Arc::new(AtomicBool::new(false)),
            waits_on_pipe: Arc::new(AtomicBool::new(false)),
        };
        flag::register_conditional_shutdown(SIGINT, INTERRUPTED, signals.waits_on_pipe.clone())?;
        flag::register(SIGINT, signals.cancel.clone())?;
        Ok(signals)
    }

    /// Reads a line. A signal that comes after it cancels the answer, even if that has not begun yet.
    fn while_waiting(&self, lines: &mut LineReader) -> anyhow::Result<Option<String>> {
        self.cancel.store(false, Ordering::SeqCst);
        self.waits_on_pipe.store(!lines.is_interactive(), Ordering::SeqCst);
        let line = lines.next();
        self.waits_on_pipe.store(false, Ordering::SeqCst);
        line
    }
}
