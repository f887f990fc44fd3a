//! Vocabularies, and replies drawn at random from masks.

use calla_engine::structure::{Grammar, Matcher};
use calla_grammar::Compiler;
use calla_ops::TokenMask;
use calla_text::Tokenizer;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

pub(crate) struct Fixture {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) compiler: Compiler,
    pub(crate) eos: Vec<u32>,
    pub(crate) vocab: usize,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn load(dir: &Path, vocab: impl Fn(&Tokenizer) -> usize) -> Fixture {
    let tokenizer = Tokenizer::load(dir).unwrap();
    let vocab = vocab(&tokenizer);
    let id = |token| tokenizer.token_id(token).unwrap();
    let eos = vec![id("<|im_end|>"), id("<|endoftext|>")];
    let compiler = Compiler::new(&tokenizer, vocab, &eos).unwrap();
    let start = Instant::now();
    compiler.prepare().unwrap();
    eprintln!("vocabulary of {vocab}: {:?}", start.elapsed());
    Fixture { tokenizer, compiler, eos, vocab }
}

/// The demo checkpoint's 4,096 tokens.
pub(crate) fn demo() -> &'static Fixture {
    static FIXTURE: OnceLock<Fixture> = OnceLock::new();
    FIXTURE.get_or_init(|| load(&root().join("demo"), Tokenizer::vocab_size))
}

/// The published checkpoint's vocabulary, if it lies beside the repository.
pub(crate) fn published() -> Option<&'static Fixture> {
    static FIXTURE: OnceLock<Option<Fixture>> = OnceLock::new();
    let fixture = FIXTURE.get_or_init(|| {
        let dir = root().join("../shared/qwen3.6");
        dir.join("tokenizer.json").exists().then(|| load(&dir, Tokenizer::vocab_size))
    });
    if fixture.is_none() {
        eprintln!("skipped: no published vocabulary beside the repository");
    }
    fixture.as_ref()
}

impl Fixture {
    pub(crate) fn matcher(&self, grammar: &Grammar) -> Box<dyn Matcher> {
        self.compiler.compile(grammar).unwrap_or_else(|error| panic!("{grammar:?}: {error}"))
    }

    pub(crate) fn allowed(&self, mask: &TokenMask) -> Vec<u32> {
        assert_eq!(mask.len(), self.vocab);
        (0..self.vocab as u32).filter(|&t| mask.contains(t)).collect()
    }

    /// Walks a text through a grammar by the given tokens: the step at which it is refused, if it is.
    pub(crate) fn follow(&self, matcher: &mut dyn Matcher, ids: &[u32]) -> Option<usize> {
        for (at, &id) in ids.iter().enumerate() {
            if !matcher.mask().unwrap().contains(id) {
                assert!(matcher.accept(id).is_err());
                return Some(at);
            }
            matcher.accept(id).unwrap();
        }
        None
    }

    /// Whether a text, as the tokenizer cuts it, is a whole reply.
    pub(crate) fn matches(&self, grammar: &Grammar, text: &str) -> bool {
        let ids = self.tokenizer.encode_text(text).unwrap();
        self.matches_ids(grammar, &ids)
    }

    pub(crate) fn matches_ids(&self, grammar: &Grammar, ids: &[u32]) -> bool {
        let mut matcher = self.matcher(grammar);
        self.follow(&mut *matcher, ids).is_none() && matcher.mask().unwrap().contains(self.eos[0])
    }

    /// A reply drawn from masks, or `None` if it comes to no end within four times `tokens`. Every token is one
    /// that the mask allows; now and then, and mostly from `tokens` on, those are tried that spell one of `ends`, so
    /// that what is open is closed before long.
    pub(crate) fn sample(
        &self,
        grammar: &Grammar,
        seed: u64,
        tokens: usize,
        ends: &[&str],
    ) -> Option<Vec<u32>> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let ends: Vec<_> =
            ends.iter().map(|text| self.tokenizer.encode_raw(text).unwrap()).collect();
        let mut matcher = self.matcher(grammar);
        let (mut ids, mut script) = (Vec::new(), Vec::new());
        for step in 0..tokens * 4 {
            let mask = matcher.mask().unwrap();
            let late = step > tokens;
            let ended = self.eos.iter().all(|&id| mask.contains(id));
            assert_eq!(ended, self.eos.iter().any(|&id| mask.contains(id)));
            let allowed = self.allowed(&mask);
            assert!(!allowed.is_empty(), "{:?}", self.tokenizer.decode(&ids, false));
            let only_end = ended && allowed.len() == self.eos.len();
            if only_end || (ended && (late || rng.random_ratio(1, 8))) {
                return Some(ids);
            }
            if script.is_empty() && rng.random_ratio(if late { 3 } else { 1 }, 4) {
                script.clone_from(&ends[rng.random_range(0..ends.len())]);
                script.reverse();
            }
            let next = script.pop().filter(|&id| mask.contains(id) && !self.eos.contains(&id));
            let id = next.unwrap_or_else(|| {
                script.clear();
                loop {
                    let id = allowed[rng.random_range(0..allowed.len())];
                    if !self.eos.contains(&id) {
                        break id;
                    }
                }
            });
            matcher.accept(id).unwrap();
            ids.push(id);
        }
        None
    }
}
