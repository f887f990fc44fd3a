//! Compiles grammars under bounds, on a stack of its own.

use crate::GrammarError;
use crate::error::plain_words;
use crate::json_schema;
use crate::lark;
use crate::matcher::GrammarMatcher;
use crate::vocabulary::Vocabulary;
use calla_engine::structure::{Grammar, Matcher};
use calla_text::Tokenizer;
use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use toktrie::InferenceCapabilities;

/// Longest grammar, in bytes of its text.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;
/// Longest regular expression, in bytes.
const REGEX_BYTES_MAX: usize = 64 << 10;
/// Stack of a compilation. The library recurses over schemas, references, rules and brackets. Measured on x86-64 with
/// optimisation, a rule of Lark takes 3.1 kB, a bracket 2 kB, a level of a schema up to 6 kB: at the
/// bounds of [`lark`] 70 MB, at those of [`json_schema`] 23 MB. Pages that are not reached take no memory.
const STACK_BYTES: usize = 256 << 20;

/// Sets of tokens that a mask takes as a whole where the lexer's state lets all of their texts through: white space,
/// and what may stand in a JSON string, without and with the `<` that `tool_calls`
/// has to look at.
const SLICES: [&str; 5] = [
    r"[\x20\x0A\x0D\x09]+",
    r#"[^"\\<\x00-\x1F\x7F]{1,10}"#,
    r#"[^"\\<\x00-\x1F\x7F]{1,30}"#,
    r#"[^"\\<\x00-\x1F\x7F]+"#,
    r#"[^"\\\x00-\x1F\x7F]+"#,
];

/// Compiles grammars for one model. Cloning shares the vocabulary.
#[derive(Clone)]
pub struct Compiler {
    shared: Arc<Shared>,
}

struct Shared {
    tokenizer: Tokenizer,
    len: usize,
    eos: Vec<u32>,
    /// What grammars are compiled against; made when the first one is.
    tools: OnceLock<Result<Tools, GrammarError>>,
}

struct Tools {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("tokens", &self.shared.len).finish_non_exhaustive()
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
    /// This costs nothing yet: the trie over the tokens, seconds of work for a full vocabulary, is made by
    /// the first [`compile`](Self::compile), or by [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if there are no tokens, too many, or an `eos_ids` outside of them.
    pub fn new(
        tokenizer: &Tokenizer,
        vocab_used: usize,
        eos_ids: &[u32],
    ) -> Result<Compiler, GrammarError> {
        Vocabulary::check(vocab_used, eos_ids)?;
        let shared = Shared {
            tokenizer: tokenizer.clone(),
            len: vocab_used,
            eos: eos_ids.to_vec(),
            tools: OnceLock::new(),
        };
        Ok(Compiler { shared: Arc::new(shared) })
    }

    /// Makes what all grammars share, so that the first one need not wait for it. Belongs on a thread that no
    /// reply waits for; a second call costs nothing.
    ///
    /// # Errors
    /// [`GrammarError::Internal`] if the library fails on this vocabulary; each later call then does.
    pub fn prepare(&self) -> Result<(), GrammarError> {
        self.shared.tools().map(|_| ())
    }

    /// Compiles a grammar. Takes milliseconds as a rule, so belongs on a thread that no reply waits for.
    ///
    /// # Errors
    /// If the grammar is malformed, cannot be enforced, or is over a bound; the message says which.
    pub fn compile(&self, grammar: &Grammar) -> Result<Box<dyn Matcher>, GrammarError> {
        let tools = self.shared.tools()?;
        on_stack(STACK_BYTES, || tools.compile(grammar))
    }
}

impl Shared {
    fn tools(&self) -> Result<&Tools, GrammarError> {
        let made =
            self.tools.get_or_init(|| guard(|| Tools::new(&self.tokenizer, self.len, &self.eos)));
        made.as_ref().map_err(Clone::clone)
    }
}

impl Tools {
    fn new(tokenizer: &Tokenizer, len: usize, eos: &[u32]) -> Result<Tools, GrammarError> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, len, eos));
        let slices: Vec<String> = SLICES.iter().map(|&slice| slice.to_owned()).collect();
        let mut factory =
            ParserFactory::new(&vocabulary.env, InferenceCapabilities::default(), &slices)
                .map_err(|error| GrammarError::Vocabulary(plain_words(&error.to_string())))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Tools { vocabulary, factory })
    }

    fn compile(&self, grammar: &Grammar) -> Result<Box<dyn Matcher>, GrammarError> {
        let top = match grammar {
            Grammar::JsonSchema(text) => {
                TopLevelGrammar::from_json_schema(closed_schema(Some(text))?)
            }
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(closed_schema(None)?),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(checked_regex(regex)?),
            Grammar::Lark(text) => {
                let barred = |name: &str| self.vocabulary.barred.iter().any(|token| token == name);
                TopLevelGrammar::from_lark(lark::close(text, barred)?)
            }
        };
        let parser =
            self.factory.create_parser(top).map_err(|error| refusal(&format!("{error:#}")))?;
        let matcher = llguidance::Matcher::new(Ok(parser));
        if let Some(words) = matcher.get_error() {
            return Err(refusal(&words));
        }
        let markers = matches!(grammar, Grammar::Lark(_));
        let vocabulary = Arc::clone(&self.vocabulary);
        // On a copy: a place that allows nothing ends a matcher.
        let mut first = GrammarMatcher::new(matcher.deep_clone(), Arc::clone(&vocabulary), markers);
        match first.mask() {
            Ok(mask) if mask.is_empty() => Err(GrammarError::Unsatisfiable),
            Ok(_) => Ok(Box::new(GrammarMatcher::new(matcher, vocabulary, markers))),
            Err(error) => Err(refusal(&error.0)),
        }
    }
}

/// What the library says of a grammar; its name for a place without a way on is not the user's.
fn refusal(words: &str) -> GrammarError {
    match words.contains("NoExtensionBias") {
        true => GrammarError::Unsatisfiable,
        false => GrammarError::Refused(plain_words(words)),
    }
}

pub(crate) fn bound(what: &'static str, value: usize, bound: usize) -> Result<(), GrammarError> {
    match value > bound {
        true => Err(GrammarError::TooLarge { what, value, bound }),
        false => Ok(()),
    }
}

/// The schema of that text, or without one that of any object, rewritten to stand alone.
pub(crate) fn closed_schema(text: Option<&str>) -> Result<serde_json::Value, GrammarError> {
    let schema = match text {
        Some(text) => {
            bound("the schema's size in bytes", text.len(), TEXT_BYTES_MAX)?;
            json_schema::parse(text)?
        }
        None => serde_json::json!({"type": "object"}),
    };
    json_schema::close(&schema, &schema)
}

/// An expression within its bounds, without the anchors at its ends.
pub(crate) fn checked_regex(regex: &str) -> Result<&str, GrammarError> {
    bound("the expression's size in bytes", regex.len(), REGEX_BYTES_MAX)?;
    match regex.is_empty() {
        true => Err(GrammarError::Refused("the regular expression is empty".into())),
        false => Ok(without_anchors(regex)),
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

/// Runs a compilation on a thread with a stack of that size.
fn on_stack<T: Send>(
    bytes: usize,
    call: impl FnOnce() -> Result<T, GrammarError> + Send,
) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(bytes)
            .spawn_scoped(scope, || guard(call))
            .map_err(|error| GrammarError::Internal(format!("no thread: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(GrammarError::Internal("it panicked".into())))
    })
}

/// A panic of the library becomes an error. What it leaves half done is dropped with the call: the
/// vocabulary is only read, and the factory's counters are atomic. The library's `catch_unwind` and not that
/// of std, because it keeps the program's panic hook from reporting what is caught here.
fn guard<T>(call: impl FnOnce() -> Result<T, GrammarError>) -> Result<T, GrammarError> {
    catch_unwind(AssertUnwindSafe(|| Ok(call())))
        .unwrap_or_else(|error| Err(GrammarError::Internal(plain_words(&error.to_string()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};
    use std::fmt::Write as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn panics_are_errors_and_the_programs_hook_stays() {
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match info.payload_as_str() {
            Some("a bug" | "out of luck") => drop(SEEN.fetch_add(1, Ordering::Relaxed)),
            _ => usual(info),
        }));
        for _ in 0..2 {
            let error = on_stack(1 << 20, || -> Result<(), _> { panic!("out of {}", "luck") });
            let words = "the compiler cannot deal with it (out of luck)";
            assert_eq!(error, Err(GrammarError::Internal(words.into())));
        }
        assert_eq!(SEEN.load(Ordering::Relaxed), 0);
        assert!(std::panic::catch_unwind(|| panic!("a bug")).is_err());
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
    }

    /// Were the stack too small, this would end the whole program; half of it has to do.
    #[test]
    fn the_deepest_grammars_fit_the_stack() {
        let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
        let tokenizer = Tokenizer::load(&demo).unwrap();
        let compiler = Compiler::new(&tokenizer, tokenizer.vocab_size(), &[0]).unwrap();
        let tools = compiler.shared.tools().unwrap();
        let fits =
            |grammar: Grammar| on_stack(STACK_BYTES / 2, || tools.compile(&grammar)).map(drop);

        let mut rules = "start: r0\n".to_owned();
        (0..9_990).for_each(|i| writeln!(rules, "r{i}: ((r{}))", i + 1).unwrap());
        assert_eq!(fits(Grammar::Lark(rules.clone() + "r9990: \"a\"")), Ok(()));
        let error = fits(Grammar::Lark(rules + "r9990: " + &"(".repeat(21))).unwrap_err();
        assert!(error.to_string().contains("over the bound of 20000"), "{error}");

        let chain = |count: usize| {
            let definition = |i: usize| {
                let mut schema = json!({"$ref": format!("#/$defs/{}", i + 1)});
                (0..39).for_each(|_| schema = json!({"type": "array", "prefixItems": [schema]}));
                (i.to_string(), schema)
            };
            let mut definitions: Map<String, Value> = (0..count).map(definition).collect();
            definitions.insert(count.to_string(), json!({"type": "null"}));
            let schema = json!({"$ref": "#/$defs/0", "$defs": definitions});
            Grammar::JsonSchema(schema.to_string())
        };
        assert_eq!(fits(chain(99)), Ok(()));
        let error = fits(chain(100)).unwrap_err();
        assert!(error.to_string().contains("over the bound of 4000"), "{error}");
    }
}
