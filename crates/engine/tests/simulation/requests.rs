//! Random requests with every parameter that the engine knows, and grammars that the toy compiles.

use crate::random::Random;
use crate::toy::{BANNED, STOP, THINK_END, VOCAB, mix};
use calla_engine::structure::{Grammar, MatchError, Matcher};
use calla_engine::{CacheKey, Request, Sampling, Thinking};
use calla_ops::TokenMask;

/// A request for a prompt. `free_of_eight` of eight are held to nothing but their ends.
pub(crate) fn request(random: &mut Random, prompt: Vec<u32>, free_of_eight: usize) -> Request {
    let thinking = random.one_in(4).then(|| Thinking {
        end_id: THINK_END,
        budget: random.one_in(2).then(|| random.below(10)),
        forced_end: vec![40, 41, THINK_END],
        separator: vec![42; random.below(3)],
    });
    let max_tokens = random.below(40);
    if random.below(8) < free_of_eight {
        return Request {
            key: CacheKey { owner: "o".into(), name: random.below(2).to_string() },
            sampling: sampling(random),
            stop_ids: if random.one_in(2) { vec![STOP] } else { vec![STOP, 13, 14, 15] },
            vocab_used: VOCAB - 3 - random.below(8) / 7,
            thinking,
            ..Request::new(prompt, max_tokens)
        };
    }
    Request {
        key: CacheKey { owner: "o".into(), name: random.below(2).to_string() },
        sampling: Sampling {
            presence_penalty: if random.one_in(4) { 0.5 } else { 0.0 },
            logit_bias: (0..random.below(3) as u32).map(|t| (5 + t, 3.0)).collect(),
            ..sampling(random)
        },
        min_tokens: if random.one_in(4) { random.below(20) } else { 0 },
        stop_ids: vec![STOP],
        ignore_eos: random.one_in(8),
        banned_ids: if random.one_in(8) { vec![BANNED] } else { vec![] },
        vocab_used: VOCAB - 3,
        top_logprobs: random.one_in(4).then(|| random.below(4)),
        thinking,
        grammar: random.one_in(4).then(|| Grammar::Regex(random.below(8).to_string())),
        ..Request::new(prompt, max_tokens)
    }
}

/// Greedy or drawn, without anything that adjusts logits.
fn sampling(random: &mut Random) -> Sampling {
    Sampling {
        temperature: if random.one_in(2) { 0.0 } else { 1.0 },
        top_k: [0, 1, 5, 20, 20, 20, 30][random.below(7)],
        top_p: if random.one_in(2) { 1.0 } else { 0.9 },
        seed: random.below(1000) as u64,
        ..Sampling::greedy()
    }
}

/// A grammar of the toy: its number says how many tokens it takes, and that 0 cannot be compiled.
pub(crate) fn compile(grammar: &Grammar) -> Result<Box<dyn Matcher>, String> {
    let Grammar::Regex(text) = grammar else { panic!("the requests here have no other grammar") };
    match text.parse().expect("a number") {
        0 => Err("no such grammar".into()),
        number => Ok(Box::new(ToyMatcher { number, taken: 0, past: 0 })),
    }
}

/// Allows a third of the vocabulary, another one after each token; the end after `number` tokens or more; and
/// nothing else after twice as many.
struct ToyMatcher {
    number: u64,
    taken: u64,
    past: u64,
}

impl ToyMatcher {
    fn allows(&self, token: u32) -> bool {
        let fits = mix(self.past, u64::from(token)).is_multiple_of(3);
        fits && token != STOP && self.taken < 2 * self.number
    }
}

impl Matcher for ToyMatcher {
    fn mask(&mut self) -> Result<TokenMask, MatchError> {
        if self.number == 7 && self.taken == 5 {
            return Err(MatchError("out of fuel".into()));
        }
        let mut mask = TokenMask::none(VOCAB);
        for token in (0..VOCAB as u32).filter(|&t| self.allows(t)) {
            mask.insert(token);
        }
        if self.taken >= self.number {
            mask.insert(STOP);
        }
        Ok(mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), MatchError> {
        assert!(self.allows(token), "only tokens of the mask are chosen");
        self.taken += 1;
        self.past = mix(self.past, u64::from(token));
        Ok(())
    }
}
