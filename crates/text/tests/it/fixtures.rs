//! Where the tests' checkpoints are, and a tokenizer that needs none.

use std::path::{Path, PathBuf};

use calla_text::{Message, Tokenizer};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of the published checkpoint, which are not part of the repository.
pub(crate) fn published() -> Option<PathBuf> {
    let dir = root().join("../shared/qwen3.6");
    if !dir.join("tokenizer.json").exists() {
        println!("skipped: the published checkpoint's tokenizer is not at {}", dir.display());
        return None;
    }
    Some(dir)
}

/// The demo checkpoint.
pub(crate) fn demo() -> Option<PathBuf> {
    let places = [root().join("demo"), root().join("../shared/demo-model")];
    let found = places.iter().find(|dir| dir.join("tokenizer.json").exists()).cloned();
    if found.is_none() {
        println!("skipped: the demo checkpoint is not at {}", places[0].display());
    }
    found
}

pub(crate) const MARKERS: [(&str, bool); 9] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
];

/// A tokenizer of the family's kind: one token per byte, then the markers.
pub(crate) fn byte_tokenizer_json() -> Value {
    let mut next = 0x100;
    let vocab: serde_json::Map<String, Value> = (0..=255u8)
        .map(|byte| {
            let code = match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => byte.into(),
                _ => {
                    next += 1;
                    next - 1
                }
            };
            (char::from_u32(code).unwrap().to_string(), byte.into())
        })
        .collect();
    let added: Vec<Value> = MARKERS
        .iter()
        .zip(256..)
        .map(|((content, special), id)| {
            json!({"id": id, "content": content, "special": special, "normalized": false,
                   "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                          "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                    "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                  "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    })
}

pub(crate) fn byte_tokenizer() -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), byte_tokenizer_json().to_string()).unwrap();
    Tokenizer::load(dir.path()).unwrap()
}

pub(crate) fn messages(json: Value) -> Vec<Message> {
    serde_json::from_value(json).unwrap()
}
