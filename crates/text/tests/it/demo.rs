//! The demo checkpoint's tokenizer and template.

use calla_text::{
    ChatTemplate, Event, GenerationDefaults, RenderOptions, Reply, ReplyParser, Tokenizer,
};
use serde_json::json;

use crate::fixtures::{self, messages};
use crate::published::check_detokenizer;

#[test]
fn renders_and_stops() {
    let Some(dir) = fixtures::demo() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let template = ChatTemplate::load(&dir).unwrap();
    let defaults = GenerationDefaults::load(&dir).unwrap();
    assert_eq!(tokenizer.eos_ids(&[], &defaults), [4087, 4089]);
    assert_eq!(tokenizer.vocab_size(), 4096);

    let conversation = messages(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
    ]));
    let rendered = template.render(&tokenizer, &conversation, &RenderOptions::default()).unwrap();
    assert_eq!(
        rendered.text,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n\
         <|im_start|>assistant\n<think>\n"
    );
    assert!(rendered.thinking);
    assert_eq!(rendered.ids, tokenizer.encode_raw(&rendered.text).unwrap());
    let options = RenderOptions { enable_thinking: Some(false), ..RenderOptions::default() };
    let rendered = template.render(&tokenizer, &conversation, &options).unwrap();
    assert!(!rendered.thinking && rendered.text.ends_with("<think>\n\n</think>\n\n"));
}

/// What the template writes for a reply, the parser reads back.
#[test]
fn a_reply_goes_through_the_template_and_back() {
    let Some(dir) = fixtures::demo() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let template = ChatTemplate::load(&dir).unwrap();
    let tools = vec![json!({"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}}}})];
    let conversation = messages(json!([
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "I add.", "reasoning_content": "need a tool", "tool_calls": [
            {"function": {"name": "add", "arguments": {"a": 5, "note": "<b>\n</parameter> ö"}}},
            {"function": {"name": "add", "arguments": "{\"a\": -1}"}},
        ]},
    ]));
    let options = RenderOptions {
        tools: tools.clone(),
        add_generation_prompt: false,
        ..RenderOptions::default()
    };
    let rendered = template.render(&tokenizer, &conversation, &options).unwrap();
    let (_, reply) = rendered.text.split_once("assistant\n<think>\n").unwrap();
    let reply = reply.strip_suffix("<|im_end|>\n").unwrap();

    let mut parser = ReplyParser::new(&tools, true);
    let mut events: Vec<Event> = reply.split_inclusive(' ').flat_map(|p| parser.push(p)).collect();
    events.extend(parser.finish());
    let mut result = Reply::default();
    events.iter().for_each(|event| result.add(event));
    assert_eq!(result.into_message(), conversation[1]);
}

#[test]
fn detokenizing_in_pieces_is_decoding_the_whole() {
    let Some(dir) = fixtures::demo() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let hf = tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap();
    check_detokenizer(&tokenizer, &hf, 4_200);
}
