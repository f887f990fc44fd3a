//! Compiles grammars under bounds, on a stack of its own.

use crate::GrammarError;
use crate::error::plain_words;
use crate::json_schema;
use crate::matcher::GrammarMatcher;
use crate::vocabulary::Vocabulary;
use calla_engine::structure::{Grammar, Matcher};
use calla_text::Tokenizer;
use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use toktrie::InferenceCapabilities;

/// Longest grammar, in bytes of its text.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;
/// Longest regular expression, in bytes.
const REGEX_BYTES_MAX: usize = 64 << 10;
/// Lines of a Lark grammar; a rule takes one, and rules may nest as deeply as there are rules.
const LARK_LINES_MAX: usize = 10_000;
/// Open brackets and negations of a Lark grammar, quoted or not.
const LARK_DEPTH_MAX: usize = 1_000;
/// Stack of a compilation. The library recurses over schemas, references, rules and brackets; the bounds
/// above and those of [`json_schema`] keep it within this. Pages that are not reached take no memory.
const STACK_BYTES: usize = 256 << 20;

/// Compiles grammars for one model. Cloning shares the vocabulary.
#[derive(Clone)]
pub struct Compiler {
    shared: Arc<Shared>,
}

struct Shared {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler")
            .field("tokens", &self.shared.vocabulary.len)
            .finish_non_exhaustive()
    }
}

/// Bounds of the library. They are below its own defaults where a request of one user could hold up others: fuel is
/// spent at 14 to 50 thousand a millisecond, a lexer state takes one or two kilobytes.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_items_in_row: 2_000,
        max_lexer_states: 50_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

impl Compiler {
    /// A compiler for the tokens `0..vocab_used` of a tokenizer; those from there on are never allowed.
    /// `eos_ids` are the tokens that end a reply.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if there are no tokens, too many, or an `eos_ids` outside of them.
    pub fn new(
        tokenizer: &Tokenizer,
        vocab_used: usize,
        eos_ids: &[u32],
    ) -> Result<Compiler, GrammarError> {
        let build = || {
            let vocabulary = Arc::new(Vocabulary::new(tokenizer, vocab_used, eos_ids)?);
            let mut factory = ParserFactory::new(
                &vocabulary.env,
                InferenceCapabilities::default(),
                &llguidance::earley::SlicedBiasComputer::json_slices(),
            )
            .map_err(|error| GrammarError::Vocabulary(plain_words(&error.to_string())))?;
            factory.quiet();
            *factory.limits_mut() = limits();
            Ok(Compiler { shared: Arc::new(Shared { vocabulary, factory }) })
        };
        guard(build)
    }

    /// Compiles a grammar. Takes milliseconds as a rule, so belongs on a thread that no reply waits for.
    ///
    /// # Errors
    /// If the grammar is malformed, cannot be enforced, or is over a bound; the message says which.
    pub fn compile(&self, grammar: &Grammar) -> Result<Box<dyn Matcher>, GrammarError> {
        on_large_stack(|| self.compile_here(grammar))
    }

    fn compile_here(&self, grammar: &Grammar) -> Result<Box<dyn Matcher>, GrammarError> {
        let top = match grammar {
            Grammar::JsonSchema(text) => {
                bound("the schema's size in bytes", text.len(), TEXT_BYTES_MAX)?;
                let schema = json_schema::parse(text)?;
                TopLevelGrammar::from_json_schema(json_schema::close(&schema, &schema)?)
            }
            Grammar::JsonObject => {
                let schema = serde_json::json!({"type": "object"});
                TopLevelGrammar::from_json_schema(json_schema::close(&schema, &schema)?)
            }
            Grammar::Regex(regex) => {
                bound("the expression's size in bytes", regex.len(), REGEX_BYTES_MAX)?;
                if regex.is_empty() {
                    return Err(GrammarError::Refused("the regular expression is empty".into()));
                }
                TopLevelGrammar::from_regex(without_anchors(regex))
            }
            Grammar::Lark(text) => {
                bound_lark(text)?;
                TopLevelGrammar::from_lark(text.clone())
            }
        };
        let Shared { vocabulary, factory } = &*self.shared;
        let parser = factory
            .create_parser(top)
            .map_err(|error| GrammarError::Refused(plain_words(&format!("{error:#}"))))?;
        let matcher = llguidance::Matcher::new(Ok(parser));
        if let Some(words) = matcher.get_error() {
            return Err(GrammarError::Refused(plain_words(&words)));
        }
        let markers = matches!(grammar, Grammar::Lark(_));
        Ok(Box::new(GrammarMatcher::new(matcher, Arc::clone(vocabulary), markers)))
    }
}

pub(crate) fn bound(what: &'static str, value: usize, bound: usize) -> Result<(), GrammarError> {
    match value > bound {
        true => Err(GrammarError::TooLarge { what, value, bound }),
        false => Ok(()),
    }
}

/// The whole reply matches, so that anchors at the ends say nothing; the library knows none.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(rest) if rest.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 0 => rest,
        _ => regex,
    }
}

/// Bounds what the library follows by recursion. Quotes are not looked at, so that a quoted bracket counts as
/// one: a bound that cannot be talked around is worth more than one that is exact.
fn bound_lark(text: &str) -> Result<(), GrammarError> {
    bound("the grammar's size in bytes", text.len(), TEXT_BYTES_MAX)?;
    bound("the grammar's number of lines", text.lines().count(), LARK_LINES_MAX)?;
    let (mut depth, mut deepest, mut negations) = (0usize, 0, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'~' => negations += 1,
            b'\n' => negations = 0,
            _ => {}
        }
        deepest = deepest.max(depth + negations);
    }
    bound("the grammar's depth of brackets and `~`", deepest, LARK_DEPTH_MAX)?;
    if text.contains("allow_invalid_utf8") {
        return Err(GrammarError::Refused("replies are UTF-8: remove allow_invalid_utf8".into()));
    }
    Ok(())
}

/// Runs a compilation with the stack that its bounds are made for.
fn on_large_stack<T: Send>(
    call: impl FnOnce() -> Result<T, GrammarError> + Send,
) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || guard(call))
            .map_err(|error| GrammarError::Internal(format!("no thread: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(GrammarError::Internal("it panicked".into())))
    })
}

/// A panic of the library becomes an error. What it leaves half done is dropped with the call: the
/// vocabulary is only read, and the factory's counters are atomic.
fn guard<T>(call: impl FnOnce() -> Result<T, GrammarError>) -> Result<T, GrammarError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        Err(GrammarError::Internal(plain_words(words)))
    })
}
