//! What a `tokenizer.json` may say: the pipeline of the family and nothing that could do otherwise.
//!
//! The `tokenizers` crate runs whatever pipeline the file describes, and a few lines can make it write
//! gigabytes for a short text (chained replacements), draw merges at random (dropout) or lose text (a
//! vocabulary without some bytes). So the file is held against what byte-level BPE of the family needs
//! before the crate sees it.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// Longest text of an added token, in bytes; the family's longest has 22.
const ADDED_TOKEN_BYTES_MAX: usize = 256;
/// Longest pattern of a pre-tokenizer, in bytes; the family's has 140.
const PATTERN_BYTES_MAX: usize = 1024;
/// The family's own pattern, Qwen3.5 and 3.6.
const FAMILY_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Most patterns in a row; the family has one.
const SPLITS_MAX: usize = 4;
/// Most characters of a file's value in a message.
const SHOWN_CHARS_MAX: usize = 80;

/// The fields of the file that are read beside the `tokenizers` crate.
#[derive(Deserialize)]
#[serde(
    expecting = "a tokenizer: an object with `model`, `added_tokens` and the steps around them"
)]
pub(crate) struct TokenizerFile {
    /// Read here because the crate re-numbers added tokens without an error where the file has a hole.
    #[serde(default)]
    pub(crate) added_tokens: Vec<AddedTokenOfFile>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelOfFile,
}

#[derive(Deserialize)]
#[serde(expecting = "an added token: an object with `id`, `content` and `special`")]
pub(crate) struct AddedTokenOfFile {
    pub(crate) id: u32,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) special: bool,
}

#[derive(Deserialize)]
#[serde(expecting = "`model`: an object with `type`, `vocab` and `merges`")]
struct ModelOfFile {
    #[serde(default, rename = "type")]
    kind: Value,
    #[serde(default)]
    dropout: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    fuse_unk: Value,
    #[serde(default)]
    byte_fallback: Value,
    #[serde(default)]
    vocab: VocabIds,
}

/// The ids of a vocabulary, without its texts.
#[derive(Default)]
struct VocabIds(Vec<u32>);

impl<'de> Deserialize<'de> for VocabIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VocabIds, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = VocabIds;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`model.vocab` as a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabIds, A::Error> {
                let mut ids = Vec::new();
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u32>()? {
                    ids.push(id);
                }
                Ok(VocabIds(ids))
            }
        }
        deserializer.deserialize_map(Ids)
    }
}

impl TokenizerFile {
    /// Parses and checks the file.
    ///
    /// # Errors
    /// The field, what it says and what is accepted.
    pub(crate) fn parse(json: &str) -> Result<TokenizerFile, String> {
        let file: TokenizerFile = serde_json::from_str(json).map_err(|e| e.to_string())?;
        check_model(&file.model)?;
        check_normalizer(&file.normalizer, "normalizer")?;
        check_pre_tokenizer(&file.pre_tokenizer)?;
        check_post_processor(&file.post_processor)?;
        if kind(&file.decoder) != Some("ByteLevel") {
            return Err(refused("decoder", &file.decoder, "ByteLevel"));
        }
        for AddedTokenOfFile { id, content, .. } in &file.added_tokens {
            if content.is_empty() {
                return Err(format!("the added token {id} is empty"));
            }
            if content.len() > ADDED_TOKEN_BYTES_MAX {
                return Err(format!(
                    "the added token {id} has {} bytes, at most {ADDED_TOKEN_BYTES_MAX} are accepted",
                    content.len()
                ));
            }
        }
        Ok(file)
    }

    /// Whether the text is cut by the family's pattern alone: what a piece becomes then depends on
    /// nothing before it.
    pub(crate) fn has_family_pattern(&self) -> bool {
        let steps = &self.pre_tokenizer["pretokenizers"];
        let (split, byte_level) = (&steps[0], &steps[1]);
        steps.as_array().is_some_and(|steps| steps.len() == 2)
            && split["pattern"]["Regex"] == FAMILY_PATTERN
            && split["behavior"] == "Isolated"
            && split["invert"] == false
            && byte_level["use_regex"] == false
    }
}

fn check_model(model: &ModelOfFile) -> Result<(), String> {
    // Older files do not name the type; the `tokenizers` crate then tells it by the fields.
    if !matches!(&model.kind, Value::Null) && model.kind != "BPE" {
        return Err(refused("model.type", &model.kind, "BPE"));
    }
    if !model.dropout.is_null() && model.dropout.as_f64() != Some(0.0) {
        // Merges left out at random: the same text would get other ids each time.
        return Err(refused("model.dropout", &model.dropout, "null or 0"));
    }
    if !model.unk_token.is_null() {
        return Err(refused("model.unk_token", &model.unk_token, "null"));
    }
    for (field, value) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if !value.is_null() && value != "" {
            return Err(refused(field, value, "null or \"\""));
        }
    }
    for (field, value) in
        [("model.fuse_unk", &model.fuse_unk), ("model.byte_fallback", &model.byte_fallback)]
    {
        if !value.is_null() && value != &Value::Bool(false) {
            return Err(refused(field, value, "false"));
        }
    }
    let mut ids = model.vocab.0.clone();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]) {
        None => Ok(()),
        Some(id) => Err(format!("`model.vocab` gives the id {id} to two tokens; ids must differ")),
    }
}

fn check_normalizer(normalizer: &Value, field: &str) -> Result<(), String> {
    match (normalizer, kind(normalizer)) {
        (Value::Null, _) | (_, Some("NFC")) => Ok(()),
        (_, Some("Sequence")) => {
            let steps = steps(normalizer, "normalizers", field)?;
            // NFC changes nothing the second time, but each pass takes time and memory.
            match steps {
                [] => Ok(()),
                [step] => check_normalizer(step, &format!("{field}.normalizers[0]")),
                _ => Err(refused(field, normalizer, "null, NFC, or a Sequence of one NFC")),
            }
        }
        _ => Err(refused(field, normalizer, "null or NFC")),
    }
}

fn check_pre_tokenizer(pre_tokenizer: &Value) -> Result<(), String> {
    const ACCEPTED: &str = "ByteLevel, or a Sequence of Split and, last, ByteLevel";
    let field = "pre_tokenizer";
    let (splits, last) = match kind(pre_tokenizer) {
        Some("ByteLevel") => (&[][..], pre_tokenizer),
        Some("Sequence") => match steps(pre_tokenizer, "pretokenizers", field)? {
            [splits @ .., last] if splits.len() <= SPLITS_MAX => (splits, last),
            _ => return Err(refused(field, pre_tokenizer, ACCEPTED)),
        },
        _ => return Err(refused(field, pre_tokenizer, ACCEPTED)),
    };
    for (i, split) in splits.iter().enumerate() {
        let field = format!("pre_tokenizer.pretokenizers[{i}]");
        if kind(split) != Some("Split") {
            return Err(refused(&field, split, ACCEPTED));
        }
        let pattern = &split["pattern"];
        let text = pattern["Regex"].as_str().or_else(|| pattern["String"].as_str());
        match text.map(str::len) {
            Some(1..=PATTERN_BYTES_MAX) => {}
            Some(bytes) => {
                return Err(format!(
                    "`{field}.pattern` has {bytes} bytes, accepted are 1 to {PATTERN_BYTES_MAX}"
                ));
            }
            None => {
                let accepted = "{\"Regex\": text} or {\"String\": text}";
                return Err(refused(&format!("{field}.pattern"), pattern, accepted));
            }
        }
    }
    if kind(last) != Some("ByteLevel") {
        return Err(refused(field, pre_tokenizer, ACCEPTED));
    }
    if last["add_prefix_space"] == true {
        return Err(refused(&format!("{field}: add_prefix_space"), &Value::Bool(true), "false"));
    }
    Ok(())
}

/// Prompts are not post-processed, so a step that would put tokens around them must not be there.
fn check_post_processor(post_processor: &Value) -> Result<(), String> {
    let empty = |value: &Value| value.as_object().is_none_or(|map| map.is_empty());
    match (post_processor, kind(post_processor)) {
        (Value::Null, _) | (_, Some("ByteLevel")) => Ok(()),
        (_, Some("TemplateProcessing"))
            if empty(&post_processor["special_tokens"])
                && matches!(post_processor["single"].as_array().map(Vec::as_slice),
                    Some([only]) if only["Sequence"]["id"] == "A") =>
        {
            Ok(())
        }
        _ => Err(refused(
            "post_processor",
            post_processor,
            "null, ByteLevel, or a TemplateProcessing that adds no token",
        )),
    }
}

/// The steps of a `Sequence`.
fn steps<'a>(sequence: &'a Value, name: &str, field: &str) -> Result<&'a [Value], String> {
    let steps = sequence[name].as_array().map(Vec::as_slice);
    steps.ok_or_else(|| refused(&format!("{field}.{name}"), &sequence[name], "a list"))
}

fn kind(step: &Value) -> Option<&str> {
    step["type"].as_str()
}

fn refused(field: &str, value: &Value, accepted: &str) -> String {
    let text = value.to_string();
    let (shown, rest) = match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => (&text[..end], "..."),
        None => (text.as_str(), ""),
    };
    format!("`{field}` is {shown}{rest}; accepted is {accepted}")
}
