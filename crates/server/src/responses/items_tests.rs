//! Tests of how the items of a conversation are read.

use super::*;

fn conversation(items: &Value) -> Result<Vec<Message>, ApiError> {
    let mut conversation = Conversation::default();
    for (index, item) in items.as_array().unwrap().iter().enumerate() {
        conversation.add(item, &format!("input[{index}]"))?;
    }
    Ok(conversation.finish().0)
}

/// Each message in a line: role, thinking, text, calls, and whose result it is.
fn sketch(items: &Value) -> Vec<String> {
    let line = |message: &Message| {
        let mut line = message.role.as_str().to_owned();
        if let Some(thinking) = &message.reasoning_content {
            line += &format!(" ({thinking})");
        }
        if message.content != Content::Null {
            line += &format!(" {:?}", message.content.text());
        }
        for call in &message.tool_calls {
            let arguments = Value::Object(call.arguments.clone());
            line += &format!(" {}{arguments}", call.name);
        }
        if let Some(id) = &message.tool_call_id {
            line += &format!(" for {id}");
        }
        line
    };
    conversation(items).unwrap().iter().map(line).collect()
}

#[test]
fn messages_of_all_forms() {
    let items = json!([
        {"role": "developer", "content": "a"},
        {"type": "message", "role": "system", "id": "msg_1", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "text", "text": "d"}, "e"]},
        {"role": "assistant", "content": [
            {"type": "output_text", "text": "f", "annotations": []}, {"type": "refusal", "refusal": "g"}]},
        {"role": "user", "content": null},
        {"type": "input_text", "text": "h"},
        {"type": "agent_message", "author": "x", "recipient": "y",
         "content": [{"type": "input_text", "text": "i"}]},
    ]);
    assert_eq!(
        sketch(&items),
        [
            r#"developer "a""#,
            r#"system "b""#,
            r#"user "cde""#,
            r#"assistant "fg""#,
            r#"user """#,
            r#"user "h""#,
            r#"user "i""#,
        ]
    );
}

#[test]
fn the_items_of_a_turn_become_one_message() {
    let items = json!([
        {"role": "user", "content": "q"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "words"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"b\":1,\"a\":[2]}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "r1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "r2"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "u"}]},
        {"type": "message", "role": "assistant", "content": "done"},
    ]);
    assert_eq!(
        sketch(&items),
        [
            r#"user "q""#,
            r#"assistant (t) "words" f{"b":1,"a":[2]} g{}"#,
            r#"tool "r1" for c1"#,
            r#"tool "r2" for c2"#,
            r#"assistant (u) "done""#,
        ]
    );
}

#[test]
fn a_call_that_was_cut_off_is_left_out() {
    let items = json!([
        {"role": "user", "content": "q"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":", "status": "incomplete"},
        {"role": "user", "content": "go on"},
    ]);
    assert_eq!(sketch(&items), [r#"user "q""#, "assistant (t)", r#"user "go on""#]);
}

#[test]
fn turns_that_follow_each_other_stay_apart() {
    let items = json!([
        {"role": "assistant", "phase": "commentary", "content": "a"},
        {"role": "assistant", "phase": "final_answer", "content": "b"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": {}},
        {"type": "message", "role": "assistant", "content": "said behind the call"},
    ]);
    assert_eq!(
        sketch(&items),
        [r#"assistant "a""#, r#"assistant "b""#, r#"assistant (t) "said behind the call" f{}"#]
    );
}

#[test]
fn results_are_put_in_the_order_of_their_calls() {
    let items = json!([
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "second"},
        {"type": "function_call_output", "call_id": "c1", "output": "first"},
    ]);
    assert_eq!(sketch(&items)[1..], [r#"tool "first" for c1"#, r#"tool "second" for c2"#]);
}

#[test]
fn thinking_is_found_wherever_it_is() {
    let thinking = |item: Value| sketch(&json!([item]));
    let ours = seal("sealed");
    assert_eq!(
        thinking(json!({"type": "reasoning", "summary": [], "encrypted_content": ours})),
        ["assistant (sealed)"]
    );
    // What another server sealed cannot be read: the summary is the next best.
    let foreign = json!({"type": "reasoning", "encrypted_content": "gAAAAB",
                         "summary": [{"type": "summary_text", "text": "s"}]});
    assert_eq!(thinking(foreign), ["assistant (s)"]);
    assert_eq!(thinking(json!({"type": "reasoning", "summary": []})), ["assistant ()"]);
}

#[test]
fn custom_and_foreign_calls_stay_in_the_conversation() {
    let items = json!([
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
        {"type": "function_call", "call_id": "c2", "namespace": "mcp__fs__", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": {"lines": 3}},
        {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c3", "output": "a.txt"},
        {"type": "mcp_call", "id": "m1", "name": "find", "server_label": "s", "arguments": "{\"x\":1}",
         "output": "found"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "compaction", "encrypted_content": "?"},
        {"type": "something_new"},
    ]);
    assert_eq!(
        sketch(&items),
        [
            r#"assistant apply_patch{"input":"*** Begin"}"#,
            r#"tool "ok" for c1"#,
            r#"assistant mcp__fs__read{}"#,
            r#"tool "{\"lines\":3}" for c2"#,
            r#"assistant local_shell{"type":"exec","command":["ls"]}"#,
            r#"tool "a.txt" for c3"#,
            r#"assistant find{"x":1}"#,
            r#"tool "found" for m1"#,
        ]
    );
}

#[test]
fn tools_that_come_as_items_are_gathered() {
    let mut conversation = Conversation::new(Some("be brief"));
    let tools = json!({"type": "additional_tools", "role": "developer", "tools": [{"name": "f"}]});
    conversation.add(&tools, "input[0]").unwrap();
    let (messages, tools) = conversation.finish();
    assert_eq!(messages, [Message::new(Role::System, "be brief")]);
    assert_eq!(tools, [json!({"name": "f"})]);
}

#[test]
fn bad_items_are_refused_with_their_place() {
    for (item, param) in [
        (json!(3), "input[0]"),
        (json!("text"), "input[0]"),
        (json!({}), "input[0]"),
        (json!({"type": 3}), "input[0].type"),
        (json!({"role": "wizard", "content": ""}), "input[0].role"),
        (json!({"role": 123, "content": ""}), "input[0].role"),
        (json!({"type": "message", "content": ""}), "input[0].role"),
        (json!({"role": "user", "content": [{"type": "input_text"}]}), "input[0].content[0]"),
        (json!({"role": "user", "content": ["a", 3]}), "input[0].content[1]"),
        (
            json!({"role": "user", "content": ["a", {"type": "input_image", "image_url": "data:,"}]}),
            "input[0].content[1]",
        ),
        (
            json!({"type": "function_call_output", "call_id": "c",
                   "output": [{"type": "input_image", "image_url": "data:,"}]}),
            "input[0].output[0]",
        ),
        (
            json!({"type": "computer_call_output", "call_id": "c",
                   "output": {"type": "computer_screenshot", "image_url": "data:,"}}),
            "input[0].output",
        ),
        (json!({"type": "input_file", "file_id": "f"}), "input[0]"),
        (json!({"type": "function_call", "call_id": "c", "arguments": "{}"}), "input[0].name"),
        (
            json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a\":"}),
            "input[0].arguments",
        ),
        (
            json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": [1]}),
            "input[0].arguments",
        ),
    ] {
        let error = conversation(&json!([item])).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param), "{item}");
        assert!(!error.message.is_empty());
    }
}

#[test]
fn kept_items_have_ids_types_and_parts() {
    let id = |prefix: &str| format!("{prefix}_new");
    assert_eq!(
        complete(json!({"role": "user", "content": "hello"}), id),
        json!({"role": "user", "content": [{"type": "input_text", "text": "hello"}],
               "type": "message", "id": "msg_new"})
    );
    let output =
        json!({"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "r"});
    assert_eq!(complete(output.clone(), id), output);
}
