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
        (deep.as_bytes(), "recursion limit"),
        (b"{\"version\": \"9.0\"}", "tokenizer.json"),
    ] {
        let message = load(&[("tokenizer.json", bytes)]).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json") && message.contains(words), "{message}");
    }
    let message = load(&[]).unwrap_err().to_string();
    assert!(message.starts_with("no tokenizer.json in "), "{message}");
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
        ("merge of three", |j| j["model"]["merges"] = json!(["a b c"]), "not a list of pairs"),
        ("no merges", |j| j["model"]["merges"] = Value::Null, "not a list of pairs"),
        ("token as number", |j| j["added_tokens"] = json!([5]), "expected an added token"),
        ("bad merge", |j| j["model"]["merges"] = json!(["q zz"]), ""),
        (
            "bad regex",
            |j| j["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
            "",
        ),
        ("vocab of strings", |j| j["model"]["vocab"] = json!({"a": "b"}), ""),
        ("no bytes", |j| j["model"]["vocab"] = json!({"a": 0}), "has no token '!'"),
        ("one id twice", |j| j["model"]["vocab"]["zz"] = json!(7), "gives the id 7 to two tokens"),
        (
            "long token",
            |j| j["added_tokens"][0]["content"] = json!("<".repeat(257)),
            "has 257 bytes, at most 256",
        ),
    ];
    for (name, change, words) in cases {
        let message = load_changed(change).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json") && message.contains(words), "{name}: {message}");
    }
}

#[test]
fn pipelines_that_the_family_does_not_use() {
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let nfc = json!({"type": "NFC"});
    let split = json!({"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated",
        "invert": false});
    let long = json!({"type": "Split", "pattern": {"Regex": "a".repeat(1025)},
        "behavior": "Isolated", "invert": false});
    let byte_level = byte_tokenizer_json()["pre_tokenizer"].clone();
    let mut prefixed = byte_level.clone();
    prefixed["add_prefix_space"] = json!(true);
    let normalizers = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    let pre_tokenizers = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let template = |single: Value, special: Value| json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special});
    let begin = json!({"SpecialToken": {"id": "<|im_start|>", "type_id": 0}});
    let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
    let load_field = |pointer: &str, value: &Value| {
        load_changed(|json| *json.pointer_mut(pointer).unwrap() = value.clone())
    };

    for (pointer, value) in [
        ("/normalizer", Value::Null),
        ("/normalizer", normalizers(vec![])),
        ("/normalizer", normalizers(vec![nfc.clone()])),
        ("/pre_tokenizer", pre_tokenizers(vec![split.clone(), byte_level.clone()])),
        ("/post_processor", template(json!([sequence.clone()]), json!({}))),
        ("/model/dropout", json!(0.0)),
        ("/model/end_of_word_suffix", json!("")),
    ] {
        let tokenizer = load_field(pointer, &value).unwrap();
        assert_eq!(tokenizer.encode_text("aab").unwrap(), [97, 97, 98], "{pointer}: {value}");
    }

    let bomb = normalizers(vec![replace.clone(); 34]);
    for (pointer, value, words) in [
        ("/normalizer", replace, "`normalizer` is {"),
        ("/normalizer", bomb, "NFC"),
        ("/normalizer", normalizers(vec![nfc; 1000]), "a Sequence of one NFC"),
        ("/normalizer", json!({"type": "Prepend", "prepend": "x"}), "accepted is null or NFC"),
        ("/normalizer", json!("NFC"), "accepted is null or NFC"),
        ("/pre_tokenizer", Value::Null, "`pre_tokenizer` is null"),
        ("/pre_tokenizer", split.clone(), "last, ByteLevel"),
        ("/pre_tokenizer", prefixed, "add_prefix_space"),
        ("/pre_tokenizer", pre_tokenizers(vec![]), "last, ByteLevel"),
        ("/pre_tokenizer", pre_tokenizers(vec![long, byte_level.clone()]), "has 1025 bytes"),
        (
            "/pre_tokenizer",
            pre_tokenizers([vec![split; 5], vec![byte_level]].concat()),
            "last, ByteLevel",
        ),
        ("/post_processor", template(json!([begin, sequence]), json!({})), "adds no token"),
        ("/decoder", json!({"type": "Fuse"}), "accepted is ByteLevel"),
        ("/model/dropout", json!(0.5), "`model.dropout` is 0.5; accepted is null or 0"),
        ("/model/unk_token", json!("a"), "`model.unk_token` is \"a\""),
        ("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix"),
        ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
        ("/model/fuse_unk", json!(true), "fuse_unk"),
        ("/model/byte_fallback", json!(true), "byte_fallback"),
    ] {
        let message = load_field(pointer, &value).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json") && message.contains(words), "{message}");
        assert!(message.len() < 400, "{message}");
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
fn texts_beyond_any_context_are_refused() {
    let tokenizer = crate::fixtures::byte_tokenizer();
    let long = "x".repeat((16 << 20) + 1);
    for result in [tokenizer.encode_text(&long), tokenizer.encode_raw(&long)] {
        let error = result.unwrap_err();
        assert!(error.is_request_fault());
        assert!(error.to_string().starts_with("a text of 16777217 bytes: at most 16777216"));
    }
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
