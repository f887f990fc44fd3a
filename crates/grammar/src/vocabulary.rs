//! The tokens of a checkpoint as a trie of bytes, and which of them a grammar may ever use.

use crate::GrammarError;
use calla_ops::TokenMask;
use calla_text::Tokenizer;
use std::sync::Arc;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// Longest token that a grammar may use, in bytes; the trie's nodes count parents in ten bits.
const TOKEN_BYTES_MAX: usize = 1000;
/// Ids that the trie can hold.
const TOKENS_MAX: usize = 1 << 22;

/// What all grammars of one model share.
pub(crate) struct Vocabulary {
    pub(crate) env: TokEnv,
    pub(crate) len: usize,
    pub(crate) eos: Vec<u32>,
    /// Ordinary tokens.
    pub(crate) text: TokenMask,
    /// Ordinary tokens and the added ones that a reply may hold: thinking and tool markers.
    pub(crate) text_and_markers: TokenMask,
    /// Added tokens that no reply may hold: those that end it, and turn markers.
    pub(crate) barred: Vec<String>,
}

impl Vocabulary {
    /// Whether tokens `0..len` of which `eos` end a reply can make a vocabulary.
    pub(crate) fn check(len: usize, eos: &[u32]) -> Result<(), GrammarError> {
        let bad = |words: String| Err(GrammarError::Vocabulary(words));
        if len == 0 || len > TOKENS_MAX {
            return bad(format!("{len} tokens; from 1 to {TOKENS_MAX} are possible"));
        }
        if eos.is_empty() {
            return bad("no token ends a reply".into());
        }
        match eos.iter().find(|&&id| id as usize >= len) {
            Some(id) => bad(format!("token {id} ends a reply, but there are {len} tokens")),
            None => Ok(()),
        }
    }

    /// The vocabulary of what [`check`](Self::check) has let through.
    pub(crate) fn new(tokenizer: &Tokenizer, len: usize, eos: &[u32]) -> Vocabulary {
        let mut eos = eos.to_vec();
        eos.sort_unstable();
        eos.dedup();

        // Tokens without bytes are never allowed.
        let mut words: Vec<Vec<u8>> = vec![Vec::new(); len];
        let mut text = TokenMask::none(len);
        for (id, word) in words.iter_mut().enumerate() {
            *word = tokenizer.token(id as u32).and_then(|t| token_bytes(&t)).unwrap_or_default();
            // A byte FF is never part of UTF-8, and marks added tokens in the trie.
            if word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) || word.len() > TOKEN_BYTES_MAX
            {
                word.clear();
            }
            if !word.is_empty() {
                text.insert(id as u32);
            }
        }
        let mut text_and_markers = text.clone();
        let mut barred = Vec::new();
        for token in tokenizer.added_tokens() {
            if token.special || eos.contains(&token.id) {
                barred.push(token.content.clone());
            }
            let id = token.id as usize;
            if id >= len {
                continue;
            }
            text.remove(token.id);
            text_and_markers.remove(token.id);
            words[id].clear();
            if token.content.len() < TOKEN_BYTES_MAX {
                words[id].push(TokTrie::SPECIAL_TOKEN_MARKER);
                words[id].extend_from_slice(token.content.as_bytes());
                if !token.special && !eos.contains(&token.id) {
                    text_and_markers.insert(token.id);
                }
            }
        }
        for &id in &eos {
            text.remove(id);
            text_and_markers.remove(id);
        }
        let trie = TokTrie::from(&TokRxInfo::new(len as u32, eos[0]), &words).with_eos_tokens(&eos);
        // "Approximate" concerns only how forced text would be tokenised, which is left to the model.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        Vocabulary { env, len, eos, text, text_and_markers, barred }
    }
}

/// Bytes of a token in GPT-2's byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes
/// are U+0100 onwards in order. `None` for a token that is not written in it.
fn token_bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of_char).collect()
}

fn byte_of_char(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let mut bytes: Vec<u8> =
            (0..0x200).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        assert_eq!(token_bytes("Ġa"), Some(b" a".to_vec()));
        assert_eq!(token_bytes("Ċ"), Some(b"\n".to_vec()));
        assert_eq!(token_bytes("é"), Some(vec![0xe9]));
        assert_eq!(token_bytes("〈"), None);
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }
}
