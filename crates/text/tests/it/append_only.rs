//! A history that only grows is a prompt that only grows, once it is normalised.

use std::path::Path;

use calla_text::{
    ChatTemplate, Content, Message, RenderOptions, Role, Tokenizer, ToolCall, normalise,
};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Map, json};

use crate::fixtures;

const ATTRIBUTION: &str =
    "x-anthropic-billing-header: cc_version=2.1.38.c39; cc_entrypoint=cli; cch=4873d;";

fn contents() -> impl Strategy<Value = Content> {
    prop_oneof![
        8 => "[a-c]{1,3}( [a-c]{1,3}){0,3}".prop_map(Content::Text),
        1 => prop::sample::select(vec![
            "",
            "\n",
            " x\n",
            "<tool_response>\nr\n</tool_response>",
            "<tool_response>r</tool_response> no",
            "<|im_end|>\n<|im_start|>system",
            "<think>\nwhy\n</think>\n\nso",
            "</system-reminder>",
        ])
        .prop_map(Content::from),
        1 => Just(Content::Null),
    ]
}

fn not_replies() -> impl Strategy<Value = Message> {
    let roles = prop::sample::select(vec![Role::System, Role::Developer, Role::User, Role::Tool]);
    (roles, contents()).prop_map(|(role, content)| Message::new(role, content))
}

fn replies() -> impl Strategy<Value = Message> {
    let call = json!({"a": 1, "b": " x\n"});
    let arguments: Map<_, _> = call.as_object().unwrap().clone();
    let call = ToolCall { id: None, name: "f".into(), arguments };
    let calls = (0usize..3).prop_map(move |count| vec![call.clone(); count]);
    (contents(), prop::option::of("[a-c\n ]{0,6}"), calls).prop_map(
        |(content, reasoning_content, tool_calls)| Message {
            reasoning_content,
            tool_calls,
            ..Message::new(Role::Assistant, content)
        },
    )
}

/// Runs of messages between replies.
fn histories() -> impl Strategy<Value = Vec<Message>> {
    let run = prop::collection::vec(not_replies(), 0..5);
    let turn = (run, replies()).prop_map(|(mut run, reply)| {
        run.push(reply);
        run
    });
    let last = prop::collection::vec(not_replies(), 0..4);
    (prop::collection::vec(turn, 0..5), last).prop_map(|(turns, last)| {
        let mut list = turns.concat();
        list.extend(last);
        list
    })
}

/// Lengths that the list had when a request was made: before each reply but a first message, and at its end.
fn requests(list: &[Message]) -> Vec<usize> {
    let is_reply = |n: &usize| list[*n].role == Role::Assistant;
    (1..list.len()).filter(is_reply).chain([list.len()]).collect()
}

/// Index of the last user message that templates take for a question.
fn last_question(list: &[Message]) -> usize {
    let is_question = |message: &Message| {
        let text = message.content.text();
        let text = text.trim();
        message.role == Role::User
            && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))
    };
    list.iter().rposition(is_question).unwrap()
}

fn check(
    list: &[Message],
    render: impl Fn(&[Message], Option<bool>) -> Vec<u32>,
) -> Result<(), TestCaseError> {
    let lengths = requests(list);
    for pair in lengths.windows(2) {
        let (earlier, later) = (normalise(&list[..pair[0]]), normalise(&list[..pair[1]]));
        prop_assert!(later.starts_with(&earlier), "{earlier:?}\n{later:?}");
        // With all thinking kept, the prompt only grows.
        let (before, after) = (render(&earlier, Some(true)), render(&later, Some(true)));
        prop_assert!(after.starts_with(&before), "{earlier:?}\n{later:?}");
        // With the template's own rule it does while no question comes, as in a loop of tool calls; a
        // question drops the thinking behind the one before.
        let question = last_question(&earlier);
        let kept = if last_question(&later) == question { earlier.len() } else { question + 1 };
        let (before, after) = (render(&earlier[..kept], None), render(&later, None));
        prop_assert!(after.starts_with(&before), "{earlier:?}\n{later:?}");
    }
    // In a loop of tool calls, instructions are no question.
    let loops = list.iter().rposition(|message| message.role == Role::Assistant);
    if let Some(reply) = loops
        && list[reply + 1..].iter().any(|message| message.role == Role::Tool)
        && list[reply + 1..].iter().all(|message| message.role != Role::User)
    {
        let normal = normalise(list);
        prop_assert!(normal[last_question(&normal)..].iter().any(|m| m.role == Role::Assistant));
    }
    Ok(())
}

/// The same list as another client might send it: white space around contents, a line of attribution.
fn disguised(list: &[Message]) -> Vec<Message> {
    let mut list = list.to_vec();
    for message in &mut list {
        if let Content::Text(text) = &mut message.content {
            *text = format!("\n {text}\t\n");
        }
        if let Some(text) = &mut message.reasoning_content {
            *text = format!("\n{text} ");
        }
    }
    if let Some(first) =
        list.first_mut().filter(|m| matches!(m.role, Role::System | Role::Developer))
    {
        first.content = format!("{ATTRIBUTION}\n{}", first.content.text()).into();
    }
    list
}

fn grows(dir: &Path, cases: u32) {
    let tokenizer = Tokenizer::load(dir).unwrap();
    let template = ChatTemplate::load(dir).unwrap();
    let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
    let render = |list: &[Message], preserve_thinking, tools: &[serde_json::Value]| {
        let options = RenderOptions {
            tools: tools.to_vec(),
            add_generation_prompt: false,
            preserve_thinking,
            ..RenderOptions::default()
        };
        template.render(&tokenizer, list, &options).unwrap().ids
    };
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&histories(), |list| {
            check(&list, |list, preserve| render(list, preserve, &[]))?;
            check(&list, |list, preserve| render(list, preserve, &tools))?;
            let again = normalise(&disguised(&list));
            prop_assert_eq!(
                render(&again, None, &tools),
                render(&normalise(&list), None, &tools),
                "{:?}",
                list
            );
            Ok(())
        })
        .unwrap();
}

#[test]
fn prompts_grow_with_the_demo_template() {
    if let Some(dir) = fixtures::demo() {
        grows(&dir, 150);
    }
}

#[test]
fn prompts_grow_with_the_published_template() {
    if let Some(dir) = fixtures::published() {
        grows(&dir, 100);
    }
}

/// Claude Code's order: a reminder of the tokens left after each tool result.
#[test]
fn a_reminder_after_each_tool_result_stays_in_its_turn() {
    let dirs = [fixtures::demo(), fixtures::published()];
    for dir in dirs.into_iter().flatten() {
        let tokenizer = Tokenizer::load(&dir).unwrap();
        let template = ChatTemplate::load(&dir).unwrap();
        let mut list = fixtures::messages(json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2 + 2?"},
        ]));
        let mut before = String::new();
        for left in [900, 800, 700] {
            let options = RenderOptions::default();
            let prompt = template.render(&tokenizer, &normalise(&list), &options).unwrap().text;
            let open = "<|im_start|>assistant\n<think>\n";
            assert!(prompt.starts_with(&before) && prompt.ends_with(open), "{prompt}");
            before = prompt.strip_suffix(open).unwrap().to_owned();
            list.extend(fixtures::messages(json!([
                {"role": "assistant", "reasoning_content": "hm", "tool_calls": [{"name": "f"}]},
                {"role": "tool", "content": "4\n"},
                {"role": "system", "content": format!("{left} tokens left")},
            ])));
        }
        assert!(
            before.ends_with(
                "<|im_start|>assistant\n<think>\nhm\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n\
                 <|im_start|>user\n<tool_response>\n4\n\n<system-reminder>\n800 tokens left\n</system-reminder>\n</tool_response><|im_end|>\n"
            ),
            "{before}"
        );
    }
}
