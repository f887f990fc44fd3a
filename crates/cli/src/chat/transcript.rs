//! The conversation so far: messages, system message, calls that wait for a result.

use crate::input::{Conversation, TemplateSettings};
use crate::run::call_id;
use anyhow::Context;
use calla_text::{Message, Role};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    pub(super) system: Option<String>,
    /// Without the system message.
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Value>,
    /// What the saved request told the template.
    pub(super) settings: TemplateSettings,
    /// Ids of calls that wait for a result, in order.
    waiting: Vec<String>,
    /// What waited before the last message of the user, in case that is taken back.
    given_up: Vec<String>,
    /// Calls of all replies so far.
    calls: usize,
}

impl Transcript {
    /// Goes on with a saved conversation.
    pub(super) fn from_conversation(conversation: Conversation) -> Self {
        let Conversation { mut messages, tools, mut settings } = conversation;
        // A chat always lets the model answer.
        settings.add_generation_prompt = None;
        let starts_with_system = messages.first().is_some_and(|m| m.role == Role::System);
        let system = starts_with_system.then(|| messages.remove(0).content.text());
        let mut transcript = Self { system, tools, settings, ..Self::default() };
        for message in messages {
            transcript.follow(message);
        }
        transcript
    }

    /// Adds a message of a saved conversation. The calls of a reply wait for the results right behind it.
    fn follow(&mut self, mut message: Message) {
        match message.role {
            Role::Tool => {
                let answered = message.tool_call_id.as_ref();
                let place = self.waiting.iter().position(|id| Some(id) == answered).unwrap_or(0);
                if place < self.waiting.len() {
                    self.waiting.remove(place);
                }
            }
            _ => self.waiting.clear(),
        }
        for call in &mut message.tool_calls {
            let id = call.id.get_or_insert_with(|| call_id(self.calls));
            self.waiting.push(id.clone());
            self.calls += 1;
        }
        self.messages.push(message);
    }

    /// Calls that wait for a result.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// All messages, as the template wants them.
    pub(super) fn prompt(&self) -> Vec<Message> {
        let system = self.system.as_ref().map(|text| Message::new(Role::System, text.as_str()));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    /// Forgets all but the system message and the tools.
    pub(super) fn reset(&mut self) {
        self.messages.clear();
        self.waiting.clear();
        self.given_up.clear();
    }

    /// Adds a message of the user. Calls that wait are given up.
    pub(super) fn add_user(&mut self, text: String) {
        self.given_up = std::mem::take(&mut self.waiting);
        self.messages.push(Message::new(Role::User, text));
    }

    /// Adds the result of the first call that waits: how many still do, or `None` if none did.
    pub(super) fn add_tool_result(&mut self, text: String) -> Option<usize> {
        if self.waiting.is_empty() {
            return None;
        }
        let id = self.waiting.remove(0);
        self.messages.push(Message { tool_call_id: Some(id), ..Message::new(Role::Tool, text) });
        Some(self.waiting.len())
    }

    /// Adds a reply: how many calls it makes.
    pub(super) fn add_reply(&mut self, mut reply: Message) -> usize {
        for call in &mut reply.tool_calls {
            let id = call_id(self.calls);
            self.calls += 1;
            self.waiting.push(id.clone());
            call.id = Some(id);
        }
        let calls = reply.tool_calls.len();
        self.messages.push(reply);
        calls
    }

    /// Takes the last message back, which got no reply: what waited before it waits again.
    pub(super) fn take_back(&mut self) {
        match self.messages.pop() {
            Some(Message { role: Role::Tool, tool_call_id: Some(id), .. }) => {
                self.waiting.insert(0, id);
            }
            Some(Message { role: Role::User, .. }) => {
                self.waiting = std::mem::take(&mut self.given_up);
            }
            _ => {}
        }
    }

    /// Writes `{"messages": [...]}`, and the tools where there are some.
    pub(super) fn save(&self, path: &str, overwrite: bool) -> anyhow::Result<PathBuf> {
        let path = expand_home(path);
        let mut object = json!({ "messages": self.prompt() });
        if !self.tools.is_empty() {
            object["tools"] = self.tools.clone().into();
        }
        let text = serde_json::to_string_pretty(&object)? + "\n";
        write(&path, &text, overwrite)
            .with_context(|| format!("cannot save {}", path.display()))?;
        Ok(path)
    }
}

fn write(path: &Path, text: &str, overwrite: bool) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    if overwrite {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    let mut file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            anyhow::bail!("it exists already; /save! overwrites")
        }
        opened => opened?,
    };
    if let Err(error) = file.write_all(text.as_bytes()) {
        if !overwrite {
            let _ = fs::remove_file(path);
        }
        return Err(error.into());
    }
    Ok(())
}

fn expand_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use calla_text::ToolCall;
    use serde_json::Map;

    #[test]
    fn results_answer_calls_in_order() {
        let mut transcript = Transcript::default();
        assert_eq!(transcript.add_tool_result("early".into()), None);
        transcript.add_user("do it".into());
        let call = |name: &str| ToolCall { id: None, name: name.to_owned(), arguments: Map::new() };
        let reply =
            Message { tool_calls: vec![call("a"), call("b")], ..Message::new(Role::Assistant, "") };
        assert_eq!(transcript.add_reply(reply), 2);
        assert_eq!(transcript.add_tool_result("1".into()), Some(1));
        assert_eq!(transcript.add_tool_result("2".into()), Some(0));
        transcript.take_back();
        assert_eq!(transcript.add_tool_result("2 again".into()), Some(0));
        let ids: Vec<_> = transcript.messages[2..].iter().map(|m| m.tool_call_id.clone()).collect();
        assert_eq!(ids, [Some("call_0".into()), Some("call_1".into())]);
    }

    #[test]
    fn calls_wait_through_a_failed_turn_and_in_a_saved_conversation() {
        let call = |id: Option<&str>| ToolCall {
            id: id.map(str::to_owned),
            name: "f".into(),
            arguments: Map::new(),
        };
        let result = |id: &str| Message {
            tool_call_id: Some(id.to_owned()),
            ..Message::new(Role::Tool, "r")
        };
        let reply = Message {
            tool_calls: vec![call(Some("x")), call(None), call(Some("z"))],
            ..Message::new(Role::Assistant, "")
        };
        let messages = vec![Message::new(Role::User, "do it"), reply, result("z")];
        let conversation = Conversation { messages, ..Conversation::default() };
        let mut transcript = Transcript::from_conversation(conversation);
        assert_eq!(transcript.waiting(), 2);
        transcript.add_user("never mind".into());
        assert_eq!(transcript.add_tool_result("late".into()), None);
        transcript.take_back();
        assert_eq!(transcript.add_tool_result("1".into()), Some(1));
        assert_eq!(transcript.add_tool_result("2".into()), Some(0));
        let ids: Vec<_> =
            transcript.messages[2..].iter().filter_map(|m| m.tool_call_id.as_deref()).collect();
        assert_eq!(ids, ["z", "x", "call_1"]);

        let mut messages = transcript.messages.clone();
        messages.push(Message::new(Role::Assistant, "done"));
        let conversation = Conversation { messages, ..Conversation::default() };
        assert_eq!(Transcript::from_conversation(conversation).waiting(), 0);
    }

    #[test]
    fn a_saved_conversation_is_never_overwritten_silently_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chat.json");
        let name = path.to_str().unwrap();
        let mut transcript =
            Transcript { system: Some("Be brief.".into()), ..Transcript::default() };
        transcript.add_user("hi".into());
        transcript.save(name, false).unwrap();
        let message = format!("{:#}", transcript.save(name, false).unwrap_err());
        assert!(message.contains("/save!"), "{message}");
        transcript.add_user("again".into());
        transcript.save(name, true).unwrap();
        let back = Transcript::from_conversation(crate::input::conversation(Some(&path)).unwrap());
        assert_eq!(back.prompt(), transcript.prompt());
        assert_eq!(back.system.as_deref(), Some("Be brief."));
    }
}
