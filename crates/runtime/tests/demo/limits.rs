//! Replies on the demo checkpoint that are held to grammars, budgets and lengths.

use crate::harness::{Demo, Setup};
use calla_engine::{Failure, Grammar, Request};
use calla_runtime::SessionError;
use calla_text::{Message, RenderOptions, Role};

/// A request for the reply to one question.
fn question(demo: &Demo, text: &str, think: bool) -> Request {
    let options = RenderOptions {
        add_generation_prompt: true,
        enable_thinking: Some(think),
        ..RenderOptions::default()
    };
    let messages = [Message::new(Role::User, text)];
    let rendered = demo.template.render(&demo.tokenizer, &messages, &options).unwrap();
    Request {
        stop_ids: demo.stop_ids.clone(),
        vocab_used: demo.tokenizer.vocab_size(),
        thinking: rendered.thinking.then(|| demo.thinking(None)),
        ..Request::new(rendered.ids, 120)
    }
}

fn text(demo: &Demo, ids: &[u32]) -> String {
    demo.tokenizer.decode(ids, false)
}

#[test]
fn a_schema_holds_the_answer_and_leaves_the_thinking_free() {
    let schema = r#"{"type": "object", "properties": {"sum": {"type": "integer"}},
                     "required": ["sum"], "additionalProperties": false}"#;
    for depth in [0, 2] {
        let mut demo = Demo::load(Setup { depth, ..Setup::default() });
        for think in [false, true] {
            let grammar = Some(Grammar::JsonSchema(schema.to_owned()));
            let request = Request { grammar, ..question(&demo, "12 + 30 = ?", think) };
            let (ids, _) = demo.run(request, |_| {});
            let reply = text(&demo, &ids);
            let answer = if think {
                let (thinking, answer) = reply.split_once("</think>\n\n").expect("a separator");
                assert!(!thinking.is_empty());
                answer
            } else {
                reply.as_str()
            };
            let value: serde_json::Value = serde_json::from_str(answer).expect(answer);
            assert!(value["sum"].is_i64() && value.as_object().unwrap().len() == 1, "{answer}");
        }
    }
}

#[test]
fn an_expression_holds_the_whole_answer() {
    let mut demo = Demo::load(Setup::default());
    let grammar = Some(Grammar::Regex("[a-c]{5}!".to_owned()));
    let request = Request { grammar, ..question(&demo, "How do you spell banana?", false) };
    let (ids, _) = demo.run(request, |_| {});
    let reply = text(&demo, &ids);
    assert_eq!(reply.len(), 6, "{reply}");
    assert!(
        reply.ends_with('!') && reply[..5].chars().all(|c| ('a'..='c').contains(&c)),
        "{reply}"
    );
}

#[test]
fn a_wrong_grammar_fails_its_request_alone() {
    let mut demo = Demo::load(Setup::default());
    let grammar = Some(Grammar::JsonSchema("{\"type\": 7}".to_owned()));
    let request = Request { grammar, ..question(&demo, "12 + 30 = ?", false) };
    let mut generation = demo.session.start(request).unwrap();
    let error = loop {
        if let Err(error) = generation.advance() {
            break error;
        }
    };
    assert!(matches!(error, SessionError::Failed(Failure::Grammar(_))), "{error}");
    drop(generation);
    let request = question(&demo, "12 + 30 = ?", false);
    let (ids, _) = demo.run(request, |_| {});
    assert!(text(&demo, &ids).contains("42"));
}

#[test]
fn a_budget_ends_thinking() {
    let mut demo = Demo::load(Setup::default());
    let free = question(&demo, "What is 47 + 38?", true);
    let (ids, _) = demo.run(free.clone(), |_| {});
    let end = demo.thinking(None).end_id;
    let thought = ids.iter().position(|&id| id == end).expect("it thinks");
    assert!(thought > 3, "it thinks for {thought} tokens");
    for budget in [0, 3] {
        let thinking = Some(demo.thinking(Some(budget)));
        let (short, _) = demo.run(Request { thinking, ..free.clone() }, |_| {});
        // What it thinks until then is the same; then come a line feed and the end.
        assert_eq!(short[..budget], ids[..budget]);
        assert_eq!(short[budget + 1], end);
        assert!(short.len() > budget + 2, "it goes on to answer");
    }
}

#[test]
fn lengths_and_bans_hold() {
    let mut demo = Demo::load(Setup { depth: 2, ..Setup::default() });
    let plain = question(&demo, "12 + 30 = ?", false);
    let (ids, _) = demo.run(plain.clone(), |_| {});
    assert!(ids.len() < 20);
    let longer = Request { min_tokens: 20, max_tokens: 60, ..plain.clone() };
    let (long, _) = demo.run(longer, |_| {});
    assert!(long.len() >= 20 && long.starts_with(&ids));
    let endless = Request { ignore_eos: true, max_tokens: 60, ..plain.clone() };
    assert_eq!(demo.run(endless, |_| {}).0.len(), 60);
    let mut banned = plain;
    banned.sampling.logit_bias.insert(ids[0], -100.0);
    assert_ne!(demo.run(banned, |_| {}).0[0], ids[0]);
}

#[test]
fn sampled_replies_are_the_same_with_and_without_drafts_and_cache() {
    let mut plain = Demo::load(Setup::default());
    let mut drafting = Demo::load(Setup { depth: 2, ..Setup::default() });
    let mut kept = 0;
    for seed in 0..20 {
        let mut request = question(&plain, "How do you spell banana?", true);
        request.sampling.temperature = 1.0;
        request.sampling.top_p = 0.95;
        request.sampling.seed = seed;
        let (expected, _) = plain.run(request.clone(), |_| {});
        let (ids, usage) = drafting.run(request, |_| {});
        assert_eq!(ids, expected, "seed {seed}");
        assert_eq!(usage.reuse.reused > 0, seed > 0);
        kept += usage.accepted_tokens;
    }
    assert!(kept > 0, "no draft was kept, so nothing was compared");
}
