//! The checkpoint's tokenizer, with one way in for text and another for prompts with control tokens.
//!
//! Byte-level BPE with an NFC normaliser (the Qwen3.5/3.6 family). *Added tokens* are the entries
//! that the file cuts out of a text before BPE: turn markers, `<think>`, `<tool_call>` and so on.
//! All of them are control tokens here, whether or not the file calls them "special".

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tokenizers::{
    Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential,
    OffsetType, PreTokenizedString, PreTokenizer,
};

use crate::files::{CONFIG_BYTES_MAX, TOKENIZER_BYTES_MAX, bad_file, read_text};
use crate::tokenizer_file::{AddedTokenOfFile, TokenizerFile};
use crate::{Error, GenerationDefaults, Result};

/// An entry that is cut out of a text before BPE: a control token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// The token's id.
    pub id: u32,
    /// Its text.
    pub content: String,
    /// Whether decoding may drop it. Thinking and tool markers have `false`: they must survive.
    pub special: bool,
}

/// A loaded tokenizer. Cloning shares it.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    hf: tokenizers::Tokenizer,
    added: Vec<AddedToken>, // by id
    special_ids: BTreeSet<u32>,
    vocab_size: usize,
    named: BTreeMap<String, String>,
    /// Whether [`cut_piece`] may cut texts.
    cuts: bool,
}

/// Longest text that is tokenised, in bytes: ten times the largest context of the family, at four bytes
/// a token.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Bytes after which a text is cut at the next place where it can be.
const PIECE_BYTES: usize = 64 << 10;

/// Token names of `tokenizer_config.json` that templates and the end-of-sequence set may use.
const NAMED_TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

impl Tokenizer {
    /// Loads `tokenizer.json` and, where present, `tokenizer_config.json` from a checkpoint directory.
    ///
    /// # Errors
    /// A missing, oversized or malformed file; a tokenizer that is not byte-level BPE.
    pub fn load(dir: &Path) -> Result<Tokenizer> {
        let path = dir.join("tokenizer.json");
        let json = read_text(&path, TOKENIZER_BYTES_MAX)?;
        let mut inner = Inner::from_json(&json).map_err(|reason| bad_file(&path, &reason))?;
        let path = dir.join("tokenizer_config.json");
        if let Some(json) = crate::files::read_text_if_present(&path, CONFIG_BYTES_MAX)? {
            inner.named = named_tokens(&json).map_err(|reason| bad_file(&path, &reason))?;
        }
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// Ids of a text in which nothing is a control token: `<|im_end|>` or `</think>` in it become
    /// ordinary tokens, all else is what the tokenizer gives.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] above 16 MiB; [`Error::Encode`] if the tokenizer itself fails, or if its
    /// merges can build an added token (no tokenizer of the family does).
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        bound_text(text)?;
        let ids = guard(|| self.inner.encode_plain(text, PIECE_BYTES))
            .map_err(|reason| Error::Encode { bytes: text.len(), reason })?;
        let is_added = |id: &u32| self.inner.added.binary_search_by_key(id, |t| t.id).is_ok();
        match ids.iter().copied().find(is_added) {
            None => Ok(ids),
            Some(id) => Err(Error::Encode {
                bytes: text.len(),
                reason: format!("plain text became the added token {id}: the merges can build it"),
            }),
        }
    }

    /// Ids of a prompt in which added tokens are recognised wherever they are written. For prompts
    /// that are trusted as a whole; text of users goes through [`encode_text`](Self::encode_text) or
    /// [`ChatTemplate::render`](crate::ChatTemplate::render). Nothing is put in front or behind.
    ///
    /// # Errors
    /// As for [`encode_text`](Self::encode_text).
    pub fn encode_raw(&self, prompt: &str) -> Result<Vec<u32>> {
        self.encode_marked(prompt, None)
    }

    /// As [`encode_raw`](Self::encode_raw); `mark` is a character that stands inside what only looks
    /// like an added token, and is taken out once the true ones are cut out.
    pub(crate) fn encode_marked(&self, prompt: &str, mark: Option<char>) -> Result<Vec<u32>> {
        bound_text(prompt)?;
        let pieces = guard(|| Ok(self.inner.cut_added_tokens(prompt)))
            .map_err(|reason| Error::Encode { bytes: prompt.len(), reason })?;
        let mut ids = Vec::with_capacity(prompt.len() / 3);
        for piece in pieces {
            match (piece, mark) {
                (Piece::Added(id), _) => ids.push(id),
                (Piece::Text(text), None) => ids.extend(self.encode_text(&text)?),
                (Piece::Text(text), Some(mark)) => {
                    ids.extend(self.encode_text(&text.replace(mark, ""))?);
                }
            }
        }
        Ok(ids)
    }

    /// Text of the ids; what is not UTF-8 becomes U+FFFD, ids outside the vocabulary vanish. With
    /// `skip_special` the tokens marked special (turn markers, not thinking or tool markers) vanish too.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                self.push_token_bytes(id, &mut bytes);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that the token stands for; none for an id outside the vocabulary. They may begin or end
    /// inside a scalar.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.push_token_bytes(id, &mut bytes);
        bytes
    }

    /// Appends the bytes that the token stands for; nothing for an id outside the vocabulary.
    pub(crate) fn push_token_bytes(&self, id: u32, bytes: &mut Vec<u8>) {
        let Some(token) = self.inner.hf.id_to_token(id) else { return };
        let start = bytes.len();
        for c in token.chars() {
            match byte_of_char(c) {
                Some(byte) => bytes.push(byte),
                None => {
                    // An added token with a character outside the byte alphabet stands for itself.
                    bytes.truncate(start);
                    bytes.extend_from_slice(token.as_bytes());
                    return;
                }
            }
        }
    }

    /// Id of a token as written in the vocabulary (byte-level form for ordinary tokens).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.hf.token_to_id(token)
    }

    /// The token as written in the vocabulary (byte-level form for ordinary tokens).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.hf.id_to_token(id)
    }

    /// One more than the largest id. A checkpoint may have more rows than this, never fewer.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size
    }

    /// All added tokens, by id.
    pub fn added_tokens(&self) -> &[AddedToken] {
        &self.inner.added
    }

    /// Whether decoding with `skip_special` drops this id.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.special_ids.contains(&id)
    }

    /// `bos_token`, `eos_token`, `pad_token` or `unk_token` of `tokenizer_config.json`.
    pub fn named_token(&self, name: &str) -> Option<&str> {
        self.inner.named.get(name).map(String::as_str)
    }

    pub(crate) fn named_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inner.named.iter().map(|(name, token)| (name.as_str(), token.as_str()))
    }

    /// Ids that end a reply, ascending: the union of the model configuration's, of
    /// `generation_config.json`'s and of the tokenizer's `eos_token`. The first alone is not enough:
    /// the family's config names `<|endoftext|>`, while a chat turn ends with `<|im_end|>`.
    pub fn eos_ids(&self, config_eos: &[u32], defaults: &GenerationDefaults) -> Vec<u32> {
        let named = self.named_token("eos_token").and_then(|token| self.token_id(token));
        let all = config_eos.iter().copied().chain(defaults.eos_token_id.iter().copied());
        all.chain(named).collect::<BTreeSet<u32>>().into_iter().collect()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.inner.vocab_size)
            .field("added_tokens", &self.inner.added.len())
            .finish_non_exhaustive()
    }
}

enum Piece {
    Added(u32),
    Text(String),
}

impl Inner {
    fn from_json(json: &str) -> Result<Inner, String> {
        let of_file = TokenizerFile::parse(json)?;
        let cuts = of_file.has_family_pattern();
        let mut hf: tokenizers::Tokenizer = guard(|| {
            json.parse().map_err(|e: tokenizers::Error| match e.to_string() {
                // The crate's own words speak of its types and of another file.
                words if words.contains("MergeType") || words.contains("Merges text file") => {
                    r#"`model.merges` is not a list of pairs, each "a b" or ["a", "b"]"#.into()
                }
                words => words,
            })
        })?;
        if !matches!(hf.get_model(), ModelWrapper::BPE(_)) {
            return Err("the model is not BPE, which the family uses".into());
        }
        let alphabet = ('\0'..='\u{143}').filter(|c| byte_of_char(*c).is_some());
        if let Some(c) = alphabet.into_iter().find(|c| hf.token_to_id(&c.to_string()).is_none()) {
            // Text with this byte would lose it without a word.
            return Err(format!("`model.vocab` has no token {c:?}; it needs one for each byte"));
        }
        // Padding would lengthen and truncation would shorten prompts behind the caller's back.
        hf.with_padding(None);
        hf.with_truncation(None).map_err(boxed)?;

        let mut added = Vec::with_capacity(of_file.added_tokens.len());
        for AddedTokenOfFile { id, content, special } in of_file.added_tokens {
            match hf.token_to_id(&content) {
                Some(got) if got == id => added.push(AddedToken { id, content, special }),
                got => {
                    return Err(format!(
                        "the added token {content:?} has id {id} in the file, but its place is {}",
                        got.map_or("nowhere".into(), |got| got.to_string())
                    ));
                }
            }
        }
        added.sort_by_key(|token| token.id);
        if let Some(pair) = added.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(format!(
                "the added tokens {:?} and {:?} share id {}",
                pair[0].content, pair[1].content, pair[0].id
            ));
        }
        // Copying the vocabulary to find its largest id takes longer than to see that it has no hole.
        let count = hf.get_vocab_size(true);
        let dense = (0..count as u32).all(|id| hf.id_to_token(id).is_some());
        let vocab_size = match dense {
            true => count,
            false => hf.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1),
        };
        Ok(Inner {
            vocab_size,
            special_ids: added.iter().filter(|t| t.special).map(|t| t.id).collect(),
            added,
            named: BTreeMap::new(),
            cuts,
            hf,
        })
    }

    /// Normalise, split, merge: the pipeline without the step that cuts out added tokens.
    /// Piece by piece, since it takes some 200 bytes of memory for each byte.
    fn encode_plain(&self, text: &str, piece_bytes: usize) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = match self.cuts {
                true => cut_piece(rest, piece_bytes),
                false => (rest, ""),
            };
            self.encode_piece(piece, &mut ids)?;
            rest = after;
        }
        Ok(ids)
    }

    fn encode_piece(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.hf.get_normalizer() {
            normalizer.normalize(&mut normalized).map_err(boxed)?;
        }
        let mut pieces = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.hf.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(boxed)?;
        }
        let model = self.hf.get_model();
        pieces.tokenize(|piece| model.tokenize(piece.get())).map_err(boxed)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(boxed)?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn cut_added_tokens(&self, text: &str) -> Vec<Piece> {
        self.hf
            .get_added_vocabulary()
            .extract_and_normalize(None::<&NormalizerWrapper>, text)
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .flat_map(|(text, _, tokens)| match tokens {
                Some(tokens) => tokens.iter().map(|token| Piece::Added(token.id)).collect(),
                None => vec![Piece::Text(text.to_owned())],
            })
            .collect()
    }
}

fn named_tokens(json: &str) -> Result<BTreeMap<String, String>, String> {
    let config: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json).map_err(|e| e.to_string())?;
    let mut named = BTreeMap::new();
    for name in NAMED_TOKENS {
        let value = match config.get(name) {
            // The older form: an added token written out.
            Some(serde_json::Value::Object(token)) => token.get("content"),
            other => other,
        };
        match value {
            None | Some(serde_json::Value::Null) => {}
            Some(serde_json::Value::String(token)) => {
                named.insert(name.to_owned(), token.clone());
            }
            Some(_) => return Err(format!("`{name}` is neither a string nor a token")),
        }
    }
    Ok(named)
}

/// A piece of at least `bytes_min` bytes that gives the same ids apart from the rest as with it, and the
/// rest; all of the text where no such place is found.
///
/// The place is behind a letter and before a space, a line's end or a full-width comma or stop. No match of the
/// family's pattern has a letter and behind it one of these, nor does its only look-ahead follow a
/// letter, nor does NFC join them.
fn cut_piece(text: &str, bytes_min: usize) -> (&str, &str) {
    let start = text.floor_char_boundary(bytes_min);
    let mut after_letter = false;
    for (at, c) in text[start..].char_indices() {
        if after_letter && matches!(c, ' ' | '\n' | '\u{ff0c}' | '\u{3002}') {
            return text.split_at(start + at);
        }
        after_letter = c.is_ascii_alphabetic() || ('\u{4e00}'..='\u{9fa5}').contains(&c);
    }
    (text, "")
}

fn bound_text(text: &str) -> Result<()> {
    match text.len() {
        0..=TEXT_BYTES_MAX => Ok(()),
        bytes => Err(Error::TextTooLong { bytes, bytes_max: TEXT_BYTES_MAX }),
    }
}

fn boxed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs a call into the `tokenizers` crate, parts of which panic on odd files and texts.
fn guard<T>(call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    crate::guard::guard("the tokenizer", call)
}

/// The byte that a character of the byte-level alphabet (GPT-2's) stands for: printable Latin-1 stands
/// for itself, the other 68 bytes are U+0100 onwards in order.
fn byte_of_char(c: char) -> Option<u8> {
    static TABLE: OnceLock<[Option<u8>; 0x144]> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table = [None; 0x144];
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let code = match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => byte as usize,
                _ => {
                    next += 1;
                    next - 1
                }
            };
            table[code] = Some(byte);
        }
        table
    });
    table.get(c as usize).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_behind_letters_only() {
        for (text, bytes_min, expected) in [
            ("ab cd ef", 3, ("ab cd", " ef")),
            ("ab cd", 0, ("ab", " cd")),
            ("ab, 1 .\n\n  ", 0, ("ab, 1 .\n\n  ", "")),
            ("a\u{301} b\n", 0, ("a\u{301} b", "\n")),
            (
                "\u{4e00}\u{4e00}\u{ff0c}\u{4e00}\u{3002}",
                4,
                ("\u{4e00}\u{4e00}", "\u{ff0c}\u{4e00}\u{3002}"),
            ),
            ("ab cd", 99, ("ab cd", "")),
            ("", 0, ("", "")),
        ] {
            assert_eq!(cut_piece(text, bytes_min), expected, "{text:?}");
        }
    }

    #[test]
    fn ids_do_not_depend_on_where_a_text_is_cut() {
        use proptest::prelude::*;
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
        let tokenizer = Tokenizer::load(&dir).unwrap();
        assert!(tokenizer.inner.cuts);
        let text = "([a-d]{1,3}|'s|'ll| |  |\\n|\\r\\n|\\t|1|22|[,.!]{1,2}|\u{ff0c}|\u{3002}|\u{4e00}|\u{e9}|\u{301}|\u{a0}){0,40}";
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1_000));
        runner
            .run(&(text, 0..8usize), |(text, piece_bytes)| {
                let whole = tokenizer.inner.encode_plain(&text, usize::MAX).unwrap();
                prop_assert_eq!(tokenizer.inner.encode_plain(&text, piece_bytes).unwrap(), whole);
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let bytes: Vec<u8> =
            (0..0x144).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(bytes.iter().copied().collect::<BTreeSet<u8>>().len(), 256);
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char('é'), Some(0xe9));
        assert_eq!(byte_of_char('〈'), None);
    }

    #[test]
    fn a_panic_inside_becomes_an_error() {
        let reason = guard::<()>(|| panic!("odd file")).unwrap_err();
        assert_eq!(reason, "the tokenizer gave up: odd file");
    }
}
