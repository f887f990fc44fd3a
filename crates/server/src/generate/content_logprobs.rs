//! Log-probabilities of an answer's tokens, given out when the answer's text is.
//!
//! Thinking, markers and what a stop string cut off have none, so the tokens' texts, joined, are the answer.

use calla_ops::sample::TokenLogprobs;
use calla_text::Tokenizer;
use std::collections::VecDeque;

/// A token of the answer with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContentLogprob {
    pub(crate) token: LogprobToken,
    /// The most likely tokens at its place.
    pub(crate) top: Vec<LogprobToken>,
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogprobToken {
    pub(crate) bytes: Vec<u8>,
    /// Natural logarithm; never below [`LOGPROB_MIN`].
    pub(crate) logprob: f32,
}

/// What stands for minus infinity, which JSON cannot say (as OpenAI's API has it).
const LOGPROB_MIN: f32 = -9999.0;

impl LogprobToken {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Self {
        Self { bytes: tokenizer.token_bytes(id), logprob: logprob.max(LOGPROB_MIN) }
    }

    /// Its text; U+FFFD for what is no whole scalar.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Finds the tokens that an answer's text came from.
#[derive(Debug, Default)]
pub(crate) struct ContentLogprobs {
    /// Tokens whose text has not come out yet.
    held: VecDeque<ContentLogprob>,
    /// Text that has come out and belongs to no whole token yet.
    text: Vec<u8>,
}

impl ContentLogprobs {
    /// Takes the next token of the reply. One that was forced has no log-probability and none is given.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, logprobs: Option<TokenLogprobs>) {
        let TokenLogprobs { logprob, top } =
            logprobs.unwrap_or(TokenLogprobs { logprob: 0.0, top: vec![] });
        let top = top.into_iter().map(|(id, lp)| LogprobToken::new(tokenizer, id, lp)).collect();
        self.held
            .push_back(ContentLogprob { token: LogprobToken::new(tokenizer, id, logprob), top });
    }

    /// Something other than the answer came out: tokens before the last one belong to that.
    pub(crate) fn other(&mut self) {
        let kept = self.held.pop_back();
        self.held.clear();
        self.held.extend(kept);
    }

    /// Takes text of the answer that has come out; gives the tokens that are out as a whole.
    pub(crate) fn content(&mut self, text: &str) -> Vec<ContentLogprob> {
        self.text.extend_from_slice(text.as_bytes());
        let mut out = vec![];
        while !self.text.is_empty() {
            let Some(first) = self.held.front() else { break };
            let bytes = &first.token.bytes;
            if !bytes.is_empty() && self.text.starts_with(bytes) {
                self.text.drain(..bytes.len());
                out.extend(self.held.pop_front());
            } else if bytes.starts_with(&self.text) {
                break;
            } else {
                // Thinking, a marker, or white space that the parser took away.
                self.held.pop_front();
            }
        }
        out
    }

    /// The end of the answer: the token that a stop string cut, as far as it is out.
    pub(crate) fn finish(&mut self) -> Option<ContentLogprob> {
        let mut last = self.held.pop_front()?;
        if self.text.is_empty() || !last.token.bytes.starts_with(&self.text) {
            return None;
        }
        last.token.bytes = std::mem::take(&mut self.text);
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn joined(list: &[ContentLogprob]) -> String {
        // Of bytes: one character can be several tokens.
        let bytes: Vec<u8> = list.iter().flat_map(|entry| entry.token.bytes.clone()).collect();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn tokens_of_the_answer_join_to_its_text() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
        let tokenizer = Tokenizer::load(&demo).unwrap();
        let mut logprobs = ContentLogprobs::default();
        let ids = tokenizer.encode_raw("so 7</think>\n\nThe answer 🙂 is 7, and more").unwrap();
        for &id in &ids {
            let given = TokenLogprobs { logprob: f32::NEG_INFINITY, top: vec![(id, -0.5)] };
            logprobs.push(&tokenizer, id, Some(given));
        }
        let mut out = logprobs.content("The ans");
        out.extend(logprobs.content("wer 🙂 is"));
        out.extend(logprobs.content(" 7, a"));
        out.extend(logprobs.finish());
        assert_eq!(joined(&out), "The answer 🙂 is 7, a");
        assert!(out.iter().all(|entry| entry.token.logprob == LOGPROB_MIN));
        assert_eq!(out[0].top[0].bytes, out[0].token.bytes);
        assert_eq!(logprobs.finish().map(|entry| entry.token.text()), None);
    }
}
