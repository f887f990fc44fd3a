//! Conversations over time on the demo checkpoint: how much is computed again, and that every reply equals
//! that of a cold session, token for token. The warm session drafts and the cold one does not, so what is
//! equal is plain decoding.
//!
//! What the design predicts: of a prompt that continues an earlier one and its reply, everything up to the
//! end of the reply is reused; of one that leaves an earlier one, everything up to the last marker (of a turn
//! or of a tool's result) before the place where it does.

use crate::harness::{Answer, Ask, Demo, Setup};
use calla_engine::{Level, Miss};
use calla_text::{Message, Role};
use serde_json::{Value, json};

const REPLY_TOKENS_MAX: usize = 80;

/// A session that remembers, beside one that is reset before each request.
struct Timeline<'a> {
    setup: Setup<'a>,
    warm: Demo,
    cold: Demo,
    /// Everything that the warm session has had in its state, request by request, with its key.
    past: Vec<(String, Vec<u32>)>,
    /// Shorter prefixes than this are not kept over a restart.
    file_tokens_min: usize,
}

impl<'a> Timeline<'a> {
    fn new(setup: Setup<'a>) -> Self {
        let setup = Setup { depth: 2, ..setup };
        let (warm, cold) = (Demo::load(setup), Demo::load(Setup::default()));
        Self { setup, warm, cold, past: vec![], file_tokens_min: 256 }
    }

    fn ask(&mut self, messages: &[Message], tools: &[Value], think: bool) -> Answer {
        self.ask_as("", messages, tools, think)
    }

    /// Asks both; the warm one must reuse all that the snapshot rule promises.
    fn ask_as(&mut self, key: &str, messages: &[Message], tools: &[Value], think: bool) -> Answer {
        let ask = Ask { messages, tools, think, key };
        let warm = self.warm.answer(&ask, REPLY_TOKENS_MAX);
        self.cold.session.reset();
        let cold = self.cold.answer(&ask, REPLY_TOKENS_MAX);
        assert_eq!(cold.usage.reuse.reused, 0);
        assert_eq!(warm.ids, cold.ids, "the warm reply differs from the cold one");
        let promised = self.promised(key, &warm.prompt);
        let (reuse, total) = (warm.usage.reuse, warm.prompt.len());
        assert!(reuse.reused >= promised, "{reuse:?} of {total} tokens, promised {promised}");
        assert!(reuse.miss.is_some() || reuse.reused >= reuse.common.min(total - 1), "{reuse:?}");
        self.past.push((key.to_owned(), [warm.prompt.as_slice(), &warm.ids].concat()));
        warm
    }

    /// Tokens that must be reused: up to the end of an earlier reply that the prompt continues, or else up
    /// to the last turn that it shares with an earlier request.
    fn promised(&self, key: &str, prompt: &[u32]) -> usize {
        let shared = |past: &[u32]| {
            let common = past.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            if common == past.len() && common < prompt.len() {
                return common;
            }
            let is_marker = |&i: &usize| self.warm.markers.contains(&prompt[i]);
            (0..common.min(prompt.len() - 1)).rev().find(is_marker).unwrap_or(0)
        };
        let own = self.past.iter().filter(|(other, _)| other == key);
        own.map(|(_, past)| shared(past)).max().unwrap_or(0)
    }

    /// The program ends and starts again.
    fn restart(&mut self) {
        self.warm.session.save();
        // The lock on the folder goes with the session.
        self.warm = Demo::load(Setup { disk: None, ..self.setup });
        self.warm = Demo::load(self.setup);
        self.past.retain(|(_, past)| past.len() >= self.file_tokens_min);
    }
}

fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

fn system(text: &str) -> Message {
    Message::new(Role::System, text)
}

const QUESTIONS: [&str; 6] = [
    "What is 47 + 38?",
    "Sort: pear, apple, fig",
    "What is the capital of Kenya?",
    "Reverse: red, green, blue",
    "How do you spell banana?",
    "12 + 30 = ?",
];

fn weather_tool() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                       "required": ["city"]},
    }})
}

/// A system message of many tokens, as agents have it.
fn long_system() -> String {
    let rules = (0..40).map(|i| format!("Rule {i}: answer question {i} in one short line.\n"));
    format!("You are a helpful assistant.\n{}", rules.collect::<String>())
}

#[test]
fn a_chat_recomputes_the_last_turn_at_most() {
    for think in [false, true] {
        let mut timeline = Timeline::new(Setup::default());
        let mut messages = vec![system("You are a helpful assistant.")];
        for turn in 0..12 {
            messages.push(user(QUESTIONS[turn % QUESTIONS.len()]));
            let answer = timeline.ask(&messages, &[], think);
            messages.push(answer.reply.into_message());
        }
        assert!(timeline.warm.session.counts().accepted_tokens > 0, "drafts were kept");
    }
}

#[test]
fn a_client_that_returns_no_reasoning_costs_the_last_turn_at_most() {
    let mut timeline = Timeline::new(Setup::default());
    let mut messages = vec![system("You are a helpful assistant.")];
    for turn in 0..6 {
        messages.push(user(QUESTIONS[turn]));
        let answer = timeline.ask(&messages, &[], true);
        if turn > 0 {
            // The last question, its answer, the new question and the opening of the reply.
            let new = answer.prompt.len() - answer.usage.reuse.reused;
            assert!(new < 120, "{new} tokens computed at turn {turn}: {:?}", answer.usage);
        }
        let mut reply = answer.reply.into_message();
        reply.reasoning_content = None;
        messages.push(reply);
    }
}

#[test]
fn edits_regenerations_and_branches_go_on_from_the_turn_they_share() {
    let mut timeline = Timeline::new(Setup::default());
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
    let reuse = answer.usage.reuse;
    assert!(reuse.reused > 0 && reuse.divergence.is_some_and(|d| d.message == 4), "{reuse:?}");
    edited.push(answer.reply.into_message());
    for question in ["What is 9 - 4?", "third word of: owl, trumpet, cupboard, cook"] {
        let mut branch = edited.clone();
        branch.push(user(question));
        timeline.ask(&branch, &[], false);
    }
}

#[test]
fn a_system_prompt_changed_at_its_end_is_computed_from_there() {
    let mut timeline = Timeline::new(Setup::default());
    let text = long_system();
    let first = timeline.ask(&[system(&text), user(QUESTIONS[0])], &[], false);
    // The first edit finds no snapshot inside of the system prompt and leaves one where it differs.
    timeline.ask(&[system(&format!("{text}It is 10:41.")), user(QUESTIONS[0])], &[], false);
    let third =
        timeline.ask(&[system(&format!("{text}It is 10:42.")), user(QUESTIONS[0])], &[], false);
    let new = third.prompt.len() - third.usage.reuse.reused;
    assert!(new < 64 + 60, "{new} of {} tokens computed", third.prompt.len());
    assert!(first.prompt.len() > 500, "{} tokens are no long prompt", first.prompt.len());
}

#[test]
fn an_agent_loop_of_thirty_calls_computes_only_what_is_new() {
    let tools = [weather_tool()];
    let mut timeline = Timeline::new(Setup::default());
    let mut messages = vec![user("What is the weather in Paris?")];
    for step in 0..30 {
        let answer = timeline.ask(&messages, &tools, true);
        if step > 0 {
            // The reply before, its result, and the opening of the next: nothing else is new.
            let new = answer.prompt.len() - answer.usage.reuse.reused;
            assert!(new < 80, "{new} tokens computed at step {step}: {:?}", answer.usage);
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

#[test]
fn a_conversation_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut timeline = Timeline::new(Setup { disk: Some(dir.path()), ..Setup::default() });
    let mut messages = vec![system(&long_system())];
    for turn in 0..4 {
        messages.push(user(QUESTIONS[turn]));
        let answer = timeline.ask(&messages, &[], false);
        let from = (turn == 2).then_some(Level::Disk);
        assert_eq!(answer.usage.reuse.from, from, "turn {turn}: {:?}", answer.usage);
        messages.push(answer.reply.into_message());
        if turn == 1 {
            timeline.restart();
        }
    }
    // A damaged file is found out: the prompt is computed, and the file removed.
    timeline.restart();
    let files = damage(dir.path());
    assert!(files > 0);
    messages.push(user(QUESTIONS[4]));
    timeline.past.clear();
    let answer = timeline.ask(&messages, &[], false);
    assert_eq!((answer.usage.reuse.reused, answer.usage.reuse.miss), (0, Some(Miss::Evicted)));
    assert!(timeline.warm.session.counts().file_errors > 0);
}

/// Flips the last byte of every file under a directory.
fn damage(dir: &std::path::Path) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count += damage(&path);
        } else if let Ok(mut bytes) = std::fs::read(&path)
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
            std::fs::write(&path, bytes).unwrap();
            count += 1;
        }
    }
    count
}

#[test]
fn a_snapshot_that_gave_way_comes_back_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let tight =
        Setup { disk: Some(dir.path()), snapshot_bytes: Some(12 << 20), ..Setup::default() };
    let mut timeline = Timeline::new(tight);
    let conversation =
        |name: &str| vec![system(&format!("{name}. {}", long_system())), user(QUESTIONS[0])];
    let mut first = conversation("Ada");
    let answer = timeline.ask(&first, &[], false);
    first.push(answer.reply.into_message());
    first.push(user(QUESTIONS[1]));
    // Memory has room for few conversations; others push the first out.
    for i in 0..40 {
        if timeline.warm.session.saved().files > 0 && timeline.warm.session.counts().evictions > 8 {
            break;
        }
        timeline.past.clear();
        timeline.ask(&conversation(&format!("N{i}")), &[], false);
    }
    let answer = timeline.ask(&first, &[], false);
    assert_eq!(answer.usage.reuse.from, Some(Level::Disk), "{:?}", answer.usage);
}

#[test]
fn callers_with_other_keys_share_nothing() {
    let mut timeline = Timeline::new(Setup::default());
    let mut messages = vec![system(&long_system()), user(QUESTIONS[0])];
    let answer = timeline.ask_as("a", &messages, &[], false);
    messages.push(answer.reply.into_message());
    messages.push(user(QUESTIONS[1]));
    let other = timeline.ask_as("b", &messages, &[], false).usage.reuse;
    assert_eq!((other.reused, other.common, other.miss), (0, 0, Some(Miss::OtherKey)));
    assert!(timeline.ask_as("a", &messages, &[], false).usage.reuse.reused > 500);
}
