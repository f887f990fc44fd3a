//! The model that is served, as far as text goes: it stays in memory while the weights come and go.

use calla_engine::{Grammar, Matcher, Thinking};
use calla_grammar::{Compiler, GrammarError};
use calla_runtime::Compile;
use calla_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Compiled grammars that wait to be taken by the engine. One more pushes out the oldest, which is then
/// compiled again.
const READY_MAX: usize = 64;

/// What a model's text side is made of.
pub struct ModelParts {
    /// The name that clients see.
    pub name: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Its sampling defaults.
    pub defaults: GenerationDefaults,
    /// Tokens that end a reply.
    pub stop_ids: Vec<u32>,
    /// Ids below this can be chosen.
    pub vocab_used: usize,
    /// Tokens that prompt and reply together may have.
    pub context: usize,
    /// Whether older turns keep their thinking where a request does not say; `None` leaves it to the template.
    pub preserve_thinking: Option<bool>,
}

/// Grammars with what they compiled to, the oldest first.
type Ready = VecDeque<(Grammar, Box<dyn Matcher>)>;

/// The text side of the model that is served. Cloning shares it.
#[derive(Clone)]
pub struct Model {
    parts: Arc<ModelParts>,
    compiler: Compiler,
    ready: Arc<Mutex<Ready>>,
    created: u64,
    end_of_thinking: Option<Arc<EndOfThinking>>,
    tool_call_id: Option<u32>,
}

/// How thinking ends.
struct EndOfThinking {
    end_id: u32,
    forced_end: Vec<u32>,
    separator: Vec<u32>,
}

impl Model {
    /// A model from its parts.
    ///
    /// # Errors
    /// If the tokenizer cannot be used.
    pub fn new(parts: ModelParts) -> Result<Self, ModelError> {
        let ModelParts { tokenizer, vocab_used, stop_ids, .. } = &parts;
        let compiler = Compiler::new(tokenizer, *vocab_used, stop_ids)?;
        let end_of_thinking = match tokenizer.token_id("</think>") {
            Some(end_id) => {
                let mut forced_end = tokenizer.encode_text("\n")?;
                forced_end.push(end_id);
                let separator = tokenizer.encode_text("\n\n")?;
                Some(Arc::new(EndOfThinking { end_id, forced_end, separator }))
            }
            None => None,
        };
        let tool_call_id = tokenizer.token_id("<tool_call>");
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ready = Arc::default();
        Ok(Self { parts: Arc::new(parts), compiler, ready, created, end_of_thinking, tool_call_id })
    }

    /// The parts.
    #[must_use]
    pub fn parts(&self) -> &ModelParts {
        &self.parts
    }

    /// When the server began to serve it, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// The token that begins a tool call.
    pub(crate) fn tool_call_id(&self) -> Option<u32> {
        self.tool_call_id
    }

    /// How thinking that a prompt has opened ends: by itself, or by force after `budget` tokens.
    pub(crate) fn thinking(&self, budget: Option<usize>) -> Option<Thinking> {
        let end = self.end_of_thinking.as_ref()?;
        Some(Thinking {
            end_id: end.end_id,
            budget,
            forced_end: end.forced_end.clone(),
            separator: end.separator.clone(),
        })
    }

    /// Makes what all grammars share: seconds of work for a full vocabulary, which the first request with a
    /// grammar would else wait for.
    ///
    /// # Errors
    /// If the vocabulary cannot be used for grammars.
    pub fn prepare_grammars(&self) -> Result<(), GrammarError> {
        self.compiler.prepare()
    }

    /// Compiles a grammar so that the engine finds it ready: whoever asked hears of a mistake in it before the
    /// reply begins. Takes milliseconds.
    pub(crate) fn compile_ahead(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        let matcher = self.compiler.compile(grammar)?;
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() >= READY_MAX {
            ready.pop_front();
        }
        ready.push_back((grammar.clone(), matcher));
        Ok(())
    }

    /// What compiles grammars for an engine: it takes those that are ready.
    #[must_use]
    pub fn compile(&self) -> Compile {
        let model = self.clone();
        Box::new(move |grammar| {
            let mut ready = model.ready.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(i) = ready.iter().position(|(is, _)| is == grammar)
                && let Some((_, matcher)) = ready.remove(i)
            {
                return Ok(matcher);
            }
            drop(ready);
            model.compiler.compile(grammar).map_err(|error| error.to_string())
        })
    }
}

/// A model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Its vocabulary cannot be used for grammars.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// Its tokenizer fails.
    #[error(transparent)]
    Text(#[from] calla_text::Error),
}
