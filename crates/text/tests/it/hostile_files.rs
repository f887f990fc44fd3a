//! Checkpoint files made to break the loader: each is an error that names the file.

use calla_text::{ChatTemplate, Error, GenerationDefaults, Tokenizer};
use serde_json::{Value, json};

use crate::fixtures::byte_tokenizer_json;

fn load(files: &[(&str, &[u8])]) -> Result<Tokenizer, Error> {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    Tokenizer::load(dir.path())
}

fn load_changed(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, Error> {
    let mut json = byte_tokenizer_json();
    change(&mut json);
    load(&[("tokenizer.json", json.to_string().as_bytes())])
}

#[test]
fn broken_tokenizer_files() {
    let deep = format!("{{\"model\": {}", "[".repeat(100_000));
    for (bytes, words) in [
        (&b""[..], "EOF"),
        (b"{", "EOF"),
        (b"[]", "tokenizer.json"),
        (b"null", "tokenizer.json"),
        (b"{}", "tokenizer.json"),
        (b"\xff\xfe", "UTF-8"),
        (deep.as_bytes(), "EOF"),
        (b"{\"version\": \"9.0\"}", "tokenizer.json"),
    ] {
        let message = load(&[("tokenizer.json", bytes)]).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json") && message.contains(words), "{message}");
    }
    assert!(matches!(load(&[]), Err(Error::Read { .. })));
}

#[test]
fn tokenizers_that_lie() {
    type Case = (&'static str, fn(&mut Value), &'static str);
    let cases: Vec<Case> = vec![
        ("hole", |j| j["added_tokens"][3]["id"] = json!(9999), "has id 9999"),
        ("huge id", |j| j["added_tokens"][0]["id"] = json!(u32::MAX), "has id"),
        ("negative id", |j| j["added_tokens"][0]["id"] = json!(-1), "invalid value"),
        ("empty token", |j| j["added_tokens"][0]["content"] = json!(""), "is empty"),
        ("twice", |j| j["added_tokens"][1] = j["added_tokens"][0].clone(), "id"),
        (
            "wrong model",
            |j| j["model"] = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
            "BPE",
        ),
        ("no decoder", |j| j["decoder"] = Value::Null, "ByteLevel"),
        ("bad merge", |j| j["model"]["merges"] = json!(["q zz"]), ""),
        (
            "bad regex",
            |j| j["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
            "",
        ),
        ("vocab of strings", |j| j["model"]["vocab"] = json!({"a": "b"}), ""),
    ];
    for (name, change, words) in cases {
        let message = load_changed(change).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json") && message.contains(words), "{name}: {message}");
    }
}

#[test]
fn padding_and_truncation_are_ignored() {
    let tokenizer = load_changed(|json| {
        json["truncation"] = json!({"direction": "Right", "max_length": 2,
            "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 1_000_000_000}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    })
    .unwrap();
    assert_eq!(tokenizer.encode_raw("abc").unwrap(), [97, 98, 99]);
}

#[test]
fn the_size_covers_the_largest_id_over_a_hole() {
    let tokenizer = load_changed(|json| json["model"]["vocab"]["A"] = json!(5000)).unwrap();
    assert_eq!(tokenizer.vocab_size(), 5001);
    assert_eq!(tokenizer.token(5000).as_deref(), Some("A"));
    assert_eq!(tokenizer.token(4999), None);
}

#[test]
fn an_added_token_that_text_can_spell_is_refused_when_it_does() {
    let tokenizer = load_changed(|json| {
        json["added_tokens"] = json!([{"id": 97, "content": "a", "special": true,
            "normalized": false, "single_word": false, "lstrip": false, "rstrip": false}]);
    })
    .unwrap();
    assert_eq!(tokenizer.encode_text("xyz").unwrap(), [120, 121, 122]);
    let message = tokenizer.encode_text("xaz").unwrap_err().to_string();
    assert!(message.contains("added token 97"), "{message}");
}

#[test]
fn broken_configs() {
    let tokenizer = byte_tokenizer_json().to_string();
    let with = |config: &str| {
        load(&[
            ("tokenizer.json", tokenizer.as_bytes()),
            ("tokenizer_config.json", config.as_bytes()),
        ])
    };
    let loaded = with(r#"{"eos_token": {"content": "<|im_end|>"}, "bos_token": null}"#).unwrap();
    assert_eq!(loaded.named_token("eos_token"), Some("<|im_end|>"));
    assert_eq!(loaded.eos_ids(&[7], &GenerationDefaults::default()), [7, 258]);
    for config in ["", "[]", r#"{"eos_token": 5}"#] {
        let message = with(config).unwrap_err().to_string();
        assert!(message.contains("tokenizer_config.json"), "{message}");
    }
}

#[test]
fn templates_come_from_either_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let message = ChatTemplate::load(path).unwrap_err().to_string();
    assert!(message.contains("chat_template.jinja"), "{message}");
    let config = path.join("tokenizer_config.json");
    for (json, expected) in [
        (json!({}), None),
        (json!({"chat_template": null}), None),
        (json!({"chat_template": 5}), None),
        (json!({"chat_template": [{"name": "rag", "template": "r"}]}), None),
        (json!({"chat_template": "{% if"}), None),
        (json!({"chat_template": "s"}), Some("s")),
        (
            json!({"chat_template": [{"name": "tool_use", "template": "t"},
            {"name": "default", "template": "d"}]}),
            Some("d"),
        ),
    ] {
        std::fs::write(&config, json.to_string()).unwrap();
        let template = ChatTemplate::load(path).ok();
        assert_eq!(template.as_ref().map(|t| t.source()), expected, "{json}");
    }
    let template = ChatTemplate::load(path).unwrap();
    let tokenizer = crate::fixtures::byte_tokenizer();
    let mut options = calla_text::RenderOptions::default();
    assert_eq!(template.render(&tokenizer, &[], &options).unwrap().text, "d");
    options.tools.push(json!({}));
    assert_eq!(template.render(&tokenizer, &[], &options).unwrap().text, "t");
    std::fs::write(path.join("chat_template.jinja"), "j").unwrap();
    assert_eq!(ChatTemplate::load(path).unwrap().source(), "j");
    std::fs::write(path.join("chat_template.jinja"), vec![b'x'; (1 << 20) + 1]).unwrap();
    assert!(matches!(ChatTemplate::load(path), Err(Error::FileTooLarge { .. })));
}
