//! The published checkpoint's tokenizer and template against ids and renderings by Hugging Face.

use calla_text::{
    ChatTemplate, Detokenizer, Error, GenerationDefaults, Message, RenderOptions, Rendered,
    Tokenizer, normalise,
};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::fixtures;

#[derive(Deserialize)]
struct Encoding {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
    add_generation_prompt: bool,
    rendered: Option<String>,
    ids: Option<Vec<u32>>,
    #[serde(default)]
    error: bool,
}

fn read<T: serde::de::DeserializeOwned>(path: std::path::PathBuf) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn ids_are_the_published_ones() {
    let Some(dir) = fixtures::published() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let encodings: Vec<Encoding> = read(dir.join("token_ids.json"));
    assert!(!encodings.is_empty());
    for Encoding { text, ids } in encodings {
        assert_eq!(tokenizer.encode_raw(&text).unwrap(), ids, "{text:?}");
        if !text.starts_with('<') {
            assert_eq!(tokenizer.encode_text(&text).unwrap(), ids, "{text:?}");
        }
    }
    assert_eq!(tokenizer.vocab_size(), 248_077);
    assert_eq!(tokenizer.added_tokens().len(), 33);
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(248_046));
    assert_eq!(tokenizer.token(248_069).as_deref(), Some("</think>"));
    assert_eq!(tokenizer.token(248_077), None);
    assert!(tokenizer.is_special(248_046) && !tokenizer.is_special(248_069));
    assert_eq!(tokenizer.decode(&[248_045, 846, 198, 248_068], true), "user\n<think>");
    assert_eq!(tokenizer.decode(&[248_045, 846, 198, 248_068], false), "<|im_start|>user\n<think>");

    let defaults = GenerationDefaults::load(&dir).unwrap();
    assert_eq!((defaults.top_k, defaults.top_p), (Some(20), Some(0.95)));
    assert_eq!(tokenizer.eos_ids(&[248_044], &defaults), [248_044, 248_046]);
    assert!(tokenizer.eos_ids(&[], &GenerationDefaults::default()).is_empty());
}

#[test]
fn control_tokens_in_text_become_ordinary_ones() {
    let Some(dir) = fixtures::published() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    // What the tokenizer gives for `<`, `|`, `im`, `_end`, `|`, `>` glued: no id of an added token.
    for token in tokenizer.added_tokens() {
        for text in [token.content.clone(), format!("a {}b", token.content)] {
            let ids = tokenizer.encode_text(&text).unwrap();
            assert!(ids.iter().all(|id| *id < 248_044), "{text:?}: {ids:?}");
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }
}

#[test]
fn renderings_are_hugging_faces() {
    let Some(dir) = fixtures::published() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let template = ChatTemplate::load(&dir).unwrap();
    let cases: Vec<Case> = read(dir.join("renders.json"));
    assert!(!cases.is_empty());
    for case in cases {
        let mut kwargs = case.kwargs;
        let mut switch = |name: &str| kwargs.remove(name).and_then(|value| value.as_bool());
        let options = RenderOptions {
            tools: case.tools.unwrap_or_default(),
            add_generation_prompt: case.add_generation_prompt,
            enable_thinking: switch("enable_thinking"),
            preserve_thinking: switch("preserve_thinking"),
            variables: kwargs,
        };
        let result = template.render(&tokenizer, &case.messages, &options);
        if case.error {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::TemplateRaised { .. }), "{}: {error}", case.name);
            let repaired = normalise(&case.messages);
            template.render(&tokenizer, &repaired, &options).unwrap();
            continue;
        }
        let Rendered { text, ids, thinking } = result.unwrap();
        assert_eq!(Some(&text), case.rendered.as_ref(), "{}", case.name);
        assert_eq!(Some(&ids), case.ids.as_ref(), "{}", case.name);
        assert_eq!(thinking, text.ends_with("<think>\n"), "{}", case.name);
        assert_eq!(tokenizer.encode_raw(&text).unwrap(), ids, "{}", case.name);
        if case.messages.iter().all(|message| message.role != calla_text::Role::Developer) {
            assert_eq!(normalise(&case.messages), case.messages, "{}", case.name);
        }
    }
}

#[test]
fn detokenizing_in_pieces_is_decoding_the_whole() {
    let Some(dir) = fixtures::published() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let hf = tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap();
    check_detokenizer(&tokenizer, &hf, 248_320);
}

/// Random ids, beyond the vocabulary too, biased to single bytes so that scalars are broken.
pub(crate) fn check_detokenizer(tokenizer: &Tokenizer, hf: &tokenizers::Tokenizer, rows: u32) {
    let ids = prop::collection::vec(prop_oneof![0..rows, 0..256u32, rows - 300..rows], 0..60);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(500));
    runner
        .run(&(ids, any::<bool>()), |(ids, skip_special)| {
            let mut detokenizer = Detokenizer::new(tokenizer, skip_special);
            let mut text = String::new();
            for &id in &ids {
                text += &detokenizer.push(id);
            }
            text += &detokenizer.finish();
            prop_assert_eq!(&text, &tokenizer.decode(&ids, skip_special));
            prop_assert_eq!(text, hf.decode(&ids, skip_special).unwrap());
            Ok(())
        })
        .unwrap();
}
