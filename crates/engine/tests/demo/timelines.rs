//! Conversations over time on the demo checkpoint: how much is computed again, and that every reply equals
//! that of a cold session, token for token.

use crate::harness::{Answer, Demo};
use calla_text::{Message, Role};
use serde_json::{Value, json};

const REPLY_TOKENS_MAX: usize = 80;

/// A session that remembers, beside one that is reset before each request.
struct Timeline {
    warm: Demo,
    cold: Demo,
    /// Everything that the warm session has had in its state, request by request.
    past: Vec<Vec<u32>>,
}

impl Timeline {
    fn new() -> Self {
        Self { warm: Demo::load(), cold: Demo::load(), past: vec![] }
    }

    /// Asks both; the warm one must reuse all that the snapshot rule promises.
    fn ask(&mut self, messages: &[Message], tools: &[Value], think: bool) -> Answer {
        let warm = self.warm.answer(messages, tools, think, REPLY_TOKENS_MAX);
        self.cold.session.reset();
        let cold = self.cold.answer(messages, tools, think, REPLY_TOKENS_MAX);
        assert_eq!(cold.reuse.reused, 0);
        assert_eq!(warm.ids, cold.ids, "the warm reply differs from the cold one");
        let promised = self.promised(&warm.prompt);
        assert!(
            warm.reuse.reused >= promised,
            "{:?} of {} tokens, promised {promised}",
            warm.reuse,
            warm.prompt.len()
        );
        self.past.push([warm.prompt.as_slice(), &warm.ids].concat());
        warm
    }

    /// Tokens that must be reused: up to the end of an earlier reply that the prompt continues, or else up
    /// to the last turn that it shares with an earlier request.
    fn promised(&self, prompt: &[u32]) -> usize {
        let shared = |past: &Vec<u32>| {
            let common = past.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            if common == past.len() && common < prompt.len() {
                return common;
            }
            let is_marker = |&i: &usize| self.warm.markers.contains(&prompt[i]);
            (0..common.min(prompt.len() - 1)).rev().find(is_marker).unwrap_or(0)
        };
        self.past.iter().map(shared).max().unwrap_or(0)
    }
}

fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

const QUESTIONS: [&str; 6] = [
    "What is 47 + 38?",
    "Sort: pear, apple, fig",
    "What is the capital of Kenya?",
    "Reverse: red, green, blue",
    "How do you spell banana?",
    "12 + 30 = ?",
];

#[test]
fn a_chat_recomputes_the_last_turn_at_most() {
    for think in [false, true] {
        let mut timeline = Timeline::new();
        let mut messages = vec![Message::new(Role::System, "You are a helpful assistant.")];
        for turn in 0..12 {
            messages.push(user(QUESTIONS[turn % QUESTIONS.len()]));
            let answer = timeline.ask(&messages, &[], think);
            messages.push(answer.reply.into_message());
        }
    }
}

#[test]
fn edits_regenerations_and_branches_go_on_from_the_turn_they_share() {
    let mut timeline = Timeline::new();
    let mut messages = vec![];
    let mut turns = vec![];
    for question in QUESTIONS {
        messages.push(user(question));
        let answer = timeline.ask(&messages, &[], false);
        turns.push(messages.clone());
        messages.push(answer.reply.into_message());
    }
    // Regenerate the last; edit the third question; branch after the second answer, twice.
    timeline.ask(&turns[5], &[], false);
    let mut edited = turns[2].clone();
    *edited.last_mut().unwrap() = user("What is the capital of Peru?");
    let answer = timeline.ask(&edited, &[], false);
    assert!(answer.reuse.reused > 0 && answer.reuse.divergence.is_some());
    edited.push(answer.reply.into_message());
    for question in ["What is 9 - 4?", "third word of: owl, trumpet, cupboard, cook"] {
        let mut branch = edited.clone();
        branch.push(user(question));
        timeline.ask(&branch, &[], false);
    }
}

#[test]
fn an_agent_loop_of_thirty_calls_computes_only_what_is_new() {
    let tool = json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                       "required": ["city"]},
    }});
    let tools = [tool];
    let mut timeline = Timeline::new();
    let mut messages = vec![user("What is the weather in Paris?")];
    for step in 0..30 {
        let answer = timeline.ask(&messages, &tools, true);
        if step > 0 {
            // The reply before, its result, and the opening of the next: nothing else is new.
            let new = answer.prompt.len() - answer.reuse.reused;
            assert!(new < 80, "{new} tokens computed at step {step}: {:?}", answer.reuse);
        }
        let mut reply = answer.reply.into_message();
        if reply.tool_calls.is_empty() {
            // Whatever a demo of this size says, the loop goes on with a call.
            reply.tool_calls = serde_json::from_value(json!([{
                "function": {"name": "get_weather", "arguments": {"city": "Oslo"}},
            }]))
            .unwrap();
        }
        messages.push(reply);
        messages.push(Message::new(
            Role::Tool,
            format!("{{\"temperature\": {step}, \"condition\": \"sunny\"}}"),
        ));
    }
}
