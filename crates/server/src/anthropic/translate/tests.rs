//! What requests become, and what the refused ones are told.

use super::*;
use crate::generate::render;
use crate::model::{Model, ModelParts};
use calla_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use serde_json::from_value;
use std::path::Path;

/// A request that says nothing but hello, with other fields over it.
fn request(fields: &Value) -> Value {
    let mut request = json!({
        "model": "claude-opus-4-6",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Hello"}],
    });
    for (name, value) in fields.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

fn task_of(fields: &Value) -> Task {
    task(from_value(request(fields)).unwrap()).unwrap()
}

fn chat_of(fields: &Value) -> Chat {
    chat(from_value(request(fields)).unwrap()).unwrap()
}

/// What a request with these fields is told; the field's path stands in front, as the body's reader puts it there.
fn refusal(fields: &Value) -> String {
    match serde_path_to_error::deserialize::<_, MessagesRequest>(request(fields)) {
        Err(error) => error.to_string(),
        Ok(request) => task(request).unwrap_err().message,
    }
}

/// A message as `role: text`, with its thinking in braces and its calls behind arrows.
fn sketch(message: &Message) -> String {
    let mut line = message.role.as_str().to_owned();
    if let Some(id) = &message.tool_call_id {
        line += &format!("[{id}]");
    }
    line += ": ";
    if let Some(thinking) = &message.reasoning_content {
        line += &format!("{{{thinking}}}");
    }
    line += &message.content.text();
    for call in &message.tool_calls {
        let arguments = Value::Object(call.arguments.clone());
        line += &format!(" -> {}#{}{arguments}", call.name, call.id.as_deref().unwrap());
    }
    line
}

fn sketches(fields: &Value) -> Vec<String> {
    chat_of(fields).messages.iter().map(sketch).collect()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}})
}

#[test]
fn messages_become_those_of_the_core() {
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "add", "input": {"a": 1}});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "2"});
    let thinking = json!({"type": "thinking", "thinking": "Hm.", "signature": "x"});
    let redacted = json!({"type": "redacted_thinking", "data": "x"});
    let cases = [
        (json!([{"role": "user", "content": "Hi"}]), vec!["user: Hi"]),
        (json!([{"role": "user", "content": [text("Hi"), text(" you")]}]), vec!["user: Hi you"]),
        (json!([{"role": "user", "content": []}]), vec!["user: "]),
        (
            json!([
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": "Go"},
            ]),
            vec!["user: Hi", "assistant: Yes?", "user: Go"],
        ),
        (
            json!([
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [redacted, thinking, text("So"), text(" be it"), call("t1"), call("t2")]},
                {"role": "user", "content": [result("t1"), result("t2"), text("And?")]},
            ]),
            vec![
                "user: Hi",
                r#"assistant: {Hm.}So be it -> add#t1{"a":1} -> add#t2{"a":1}"#,
                "tool[t1]: 2",
                "tool[t2]: 2",
                "user: And?",
            ],
        ),
        // A result without a call, and texts around it.
        (
            json!([{"role": "user", "content": [text("a"), text("b"), result("x"), text("c")]}]),
            vec!["user: ab", "tool[x]: 2", "user: c"],
        ),
        // Contents of results.
        (
            json!([{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a"},
                {"type": "tool_result", "tool_use_id": "b", "content": []},
                {"type": "tool_result", "tool_use_id": "c", "content": [text("x"), text("y")]},
                {"type": "tool_result", "tool_use_id": "d", "content": "no such file", "is_error": true},
                {"type": "tool_result", "tool_use_id": "e", "content": "fine", "is_error": false},
            ]}]),
            vec![
                "tool[a]: ",
                "tool[b]: ",
                "tool[c]: xy",
                "tool[d]: Error: no such file",
                "tool[e]: fine",
            ],
        ),
        // Instructions within the conversation.
        (
            json!([
                {"role": "user", "content": "Hi"},
                {"role": "system", "content": [text("s")]},
                {"role": "developer", "content": "d"},
                {"role": "user", "content": [text("u"), {"type": "mid_conv_system", "content": [text("m")]}]},
            ]),
            vec!["user: Hi", "system: s", "developer: d", "user: u", "system: m"],
        ),
    ];
    for (messages, expected) in cases {
        assert_eq!(sketches(&json!({"messages": messages})), expected);
    }
}

#[test]
fn each_block_of_the_system_prompt_is_a_message() {
    assert_eq!(sketches(&json!({"system": "Be brief."})), ["system: Be brief.", "user: Hello"]);
    let blocks = [text("x-anthropic-billing-header: cch=1;"), text("You are Claude Code.")];
    assert_eq!(
        sketches(&json!({"system": blocks})),
        [
            "system: x-anthropic-billing-header: cch=1;",
            "system: You are Claude Code.",
            "user: Hello"
        ]
    );
    for none in [json!(null), json!([])] {
        assert_eq!(sketches(&json!({"system": none})), ["user: Hello"]);
    }
}

#[test]
fn options_are_carried_over() {
    let options = task_of(&json!({
        "temperature": 0.5, "top_k": 7, "top_p": 0.9, "max_tokens": 32_000, "stop_sequences": ["a", "b"],
        "metadata": {"user_id": "u"}, "service_tier": "auto", "container": null, "betas": ["x"], "inference_geo": 7,
        "cache_control": {"type": "ephemeral"}, "speed": "fast",
    }))
    .options;
    assert_eq!((options.temperature, options.top_p), (Some(0.5), Some(0.9)));
    assert_eq!((options.top_k, options.max_tokens), (Some(7), Some(32_000)));
    assert_eq!(options.stop, ["a", "b"]);
    let options = task_of(&json!({"temperature": null, "stop_sequences": null})).options;
    assert_eq!((options.temperature, options.top_k, options.top_p), (None, None, None));
    assert_eq!(options.choices, 1);
}

#[test]
fn tools_get_the_form_that_the_template_prints() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let chat = chat_of(&json!({"tools": [
        {"name": "add", "description": "Adds.", "input_schema": schema, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "sub", "input_schema": {}, "eager_input_streaming": true},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"type": "of_tomorrow", "name": "mul", "input_schema": {"type": "object"}},
    ]}));
    // As texts, since the order of keys counts.
    let tools: Vec<String> = chat.tools.iter().map(Value::to_string).collect();
    assert_eq!(
        tools,
        [
            r#"{"type":"function","function":{"name":"add","description":"Adds.","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}"#,
            r#"{"type":"function","function":{"name":"sub","parameters":{}}}"#,
            r#"{"type":"function","function":{"name":"mul","parameters":{"type":"object"}}}"#,
        ]
    );
    assert_eq!(chat_of(&json!({"tools": null})).tools, Vec::<Value>::new());
}

#[test]
fn tool_choices() {
    use task::ToolChoice::{Auto, Named, None, Required};
    for (choice, expected) in [
        (json!(null), (Auto, false)),
        (json!({"type": "auto"}), (Auto, false)),
        (json!({"type": "auto", "disable_parallel_tool_use": true}), (Auto, true)),
        (json!({"type": "any", "disable_parallel_tool_use": false}), (Required, false)),
        (json!({"type": "tool", "name": "add"}), (Named("add".into()), false)),
        (json!({"type": "none"}), (None, false)),
    ] {
        let chat = chat_of(&json!({"tool_choice": choice}));
        assert_eq!((chat.tool_choice, chat.one_call), expected, "{choice}");
    }
}

#[test]
fn thinking_and_effort() {
    for (fields, expected) in [
        (json!({}), (false, None)),
        (json!({"thinking": null}), (false, None)),
        (json!({"output_config": {"effort": "high"}}), (false, None)),
        (json!({"thinking": {"type": "disabled"}}), (false, None)),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 31_999, "display": "updates"}}),
            (true, Some(31_999)),
        ),
        (json!({"thinking": {"type": "enabled"}}), (true, None)),
        (json!({"thinking": {"type": "adaptive", "display": "omitted"}}), (true, None)),
        (
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
            (true, None),
        ),
        (
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
            (true, Some(1_024)),
        ),
    ] {
        let chat = chat_of(&fields);
        assert_eq!(chat.enable_thinking, Some(expected.0), "{fields}");
        assert_eq!(chat.thinking_budget, expected.1, "{fields}");
    }
}

#[test]
fn clients_that_keep_all_thinking_keep_it_in_the_prompt() {
    let edits =
        |edits: Value| chat_of(&json!({"context_management": {"edits": edits}})).preserve_thinking;
    let edit = |keep: Value| json!([{"type": "clear_thinking_20251015", "keep": keep}]);
    assert_eq!(edits(edit(json!("all"))), Some(true));
    assert_eq!(edits(edit(json!({"type": "all"}))), Some(true));
    assert_eq!(edits(edit(json!({"type": "thinking_turns", "value": 2}))), None);
    assert_eq!(edits(json!([{"type": "clear_thinking_20251015"}])), None);
    assert_eq!(edits(json!([{"type": "clear_tool_uses_20250919", "keep": "all"}])), None);
    assert_eq!(edits(json!(null)), None);
}

#[test]
fn structured_output_in_its_three_places() {
    let (a, b) = (json!({"type": "object"}), json!({"type": "array"}));
    let format = |schema: &Value| json!({"type": "json_schema", "schema": schema});
    let chat =
        chat_of(&json!({"output_config": {"format": format(&a)}, "output_format": format(&b)}));
    assert_eq!(chat.format, Format::JsonSchema(a));
    assert_eq!(chat_of(&json!({"output_format": format(&b)})).format, Format::JsonSchema(b));
    assert_eq!(chat_of(&json!({"output_config": {}})).format, Format::Text);
}

#[test]
fn refusals_name_the_field_the_bound_and_the_value() {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let with = |messages: Value| json!({"messages": messages});
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    for (fields, parts) in [
        (json!({"messages": []}), ["messages: ", "at least one"]),
        (json!({"messages": null}), ["messages: ", "expected a sequence"]),
        (json!({"messages": "Hi"}), ["messages: ", "expected a sequence"]),
        (with(json!([123])), ["messages[0]: ", "an object with `role` and `content`"]),
        (with(json!([{}])), ["messages[0]: ", "missing field `role`"]),
        (with(json!([{"role": "user"}])), ["messages[0]: ", "missing field `content`"]),
        (with(json!([{"role": 5, "content": ""}])), ["messages[0].role: ", "integer `5`"]),
        (with(json!([{"role": "tool", "content": ""}])), ["messages[0].role: ", "`tool`"]),
        (
            with(json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])),
            ["messages[1]: ", "cannot be prefilled"],
        ),
        (user(json!(7)), ["messages[0].content: ", "a text or a list of content blocks"]),
        (user(json!(null)), ["messages[0].content: ", "a text or a list of content blocks"]),
        (user(json!([7])), ["messages[0].content[0]: ", "expected a map"]),
        (user(json!([{}])), ["messages[0].content[0]: ", "missing field `type`"]),
        (user(json!([{"type": 1}])), ["messages[0].content[0]: ", "type: it is not a string"]),
        (user(json!([{"type": "text"}])), ["messages[0].content[0]: ", "missing field `text`"]),
        (
            user(json!([{"type": "text", "text": 5}])),
            ["messages[0].content[0]: text: ", "integer `5`"],
        ),
        (
            user(json!([text("a"), image])),
            ["messages[0].content[1]: ", "type \"image\" is not supported"],
        ),
        (user(json!([{"type": "document"}])), ["messages[0].content[0]: ", "type \"document\""]),
        (
            user(
                json!([{"type": "tool_result", "tool_use_id": "x", "content": [text("a"), image]}]),
            ),
            ["messages[0].content[0].content[1]: ", "type \"image\""],
        ),
        (
            user(
                json!([{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text"}]}]),
            ),
            ["messages[0].content[0]: content[0]: ", "missing field `text`"],
        ),
        (user(json!([{"type": "tool_result"}])), ["messages[0].content[0]: ", "`tool_use_id`"]),
        (
            user(json!([{"type": "tool_use", "id": "x", "name": "add", "input": {}}])),
            [
                "messages[0].content[0]: ",
                "a block of type tool_use: it cannot stand in a message whose role is user",
            ],
        ),
        (
            with(
                json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "", "input": {}}]},
                {"role": "user", "content": ""}]),
            ),
            ["messages[0].content[0].name: ", "it is empty"],
        ),
        (
            with(
                json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "a", "input": "{}"}]}]),
            ),
            ["messages[0].content[0]: input: ", "expected a map"],
        ),
        (json!({"system": [image]}), ["system[0]: ", "type \"image\""]),
        (json!({"system": [{"type": "redacted_thinking"}]}), ["system[0]: ", "only text blocks"]),
        (json!({"system": 5}), ["system: ", "a text or a list"]),
        (json!({"model": null}), ["model: ", "expected a string"]),
        (json!({"max_tokens": null}), ["max_tokens: ", "required"]),
        (json!({"max_tokens": 0}), ["max_tokens: ", "at least 1 but is 0"]),
        (json!({"max_tokens": -1}), ["max_tokens: ", "at least 1 but is -1"]),
        (json!({"max_tokens": 1.5}), ["max_tokens: ", "`1.5`"]),
        (json!({"max_tokens": "9"}), ["max_tokens: ", "string \"9\""]),
        (json!({"top_k": -1}), ["top_k: ", "at least 0 but is -1"]),
        (json!({"temperature": "hot"}), ["temperature: ", "string \"hot\""]),
        (json!({"stop_sequences": "a"}), ["stop_sequences: ", "expected a sequence"]),
        (json!({"stop_sequences": [1]}), ["stop_sequences[0]: ", "integer `1`"]),
        (json!({"stream": "yes"}), ["stream: ", "expected a boolean"]),
        (json!({"thinking": {"type": "on"}}), ["thinking.type: ", "`on`"]),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 0}}),
            ["thinking.budget_tokens: ", "at least 1 but is 0"],
        ),
        (json!({"output_config": {"effort": "huge"}}), ["output_config.effort: ", "\"huge\""]),
        (
            json!({"output_config": {"format": {"type": "xml"}}}),
            ["output_config.format.type: ", "`xml`"],
        ),
        (
            json!({"output_format": {"type": "json_schema"}}),
            ["output_format: ", "missing field `schema`"],
        ),
        (json!({"tool_choice": "any"}), ["tool_choice: ", "string \"any\""]),
        (json!({"tool_choice": {"type": "some"}}), ["tool_choice.type: ", "`some`"]),
        (json!({"tool_choice": {"type": "tool"}}), ["tool_choice.name: ", "required"]),
        (json!({"tools": {}}), ["tools: ", "expected a sequence"]),
        (json!({"tools": [5]}), ["tools[0]: ", "an object with `name` and `input_schema`"]),
        (json!({"tools": [{"name": "add"}]}), ["tools[0].input_schema: ", "required"]),
        (json!({"tools": [{"input_schema": {}}]}), ["tools[0].name: ", "required"]),
        (json!({"tools": [{"name": "", "input_schema": {}}]}), ["tools[0].name: ", "required"]),
        (
            json!({"tools": [{"name": "add", "input_schema": "x"}]}),
            ["tools[0].input_schema: ", "string \"x\""],
        ),
    ] {
        let message = refusal(&fields);
        assert!(message.starts_with(parts[0]), "{fields}: {message}");
        assert!(message.contains(parts[1]), "{fields}: {message}");
    }
}

#[test]
fn errors_of_the_core_name_the_fields_of_this_dialect() {
    let own = |param: &str, message: &str| in_own_words(ApiError::invalid(param, message)).message;
    assert_eq!(own("stop", "too many"), "stop_sequences: too many");
    assert_eq!(own("response_format", "bad schema"), "output_config.format: bad schema");
    assert_eq!(own("temperature", "temperature must be"), "temperature must be");
    let too_long = ApiError::invalid("messages", "prompt is too long: 9 tokens > 8 maximum")
        .with_code("context_length_exceeded");
    assert!(in_own_words(too_long).message.starts_with("prompt is too long: 9 tokens > 8 maximum"));
}

#[test]
fn counting_takes_any_last_speaker_and_needs_no_length() {
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    assert_eq!(
        sketches(&json!({"messages": messages, "max_tokens": null})),
        ["user: a", "assistant: b"]
    );
}

#[test]
fn the_prompt_of_a_growing_conversation_only_grows() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let model = Model::new(ModelParts {
        name: "demo".into(),
        template: ChatTemplate::load(&dir).unwrap(),
        defaults: GenerationDefaults::load(&dir).unwrap(),
        stop_ids: tokenizer.token_id("<|im_end|>").into_iter().collect(),
        vocab_used: tokenizer.vocab_size(),
        context: 8192,
        preserve_thinking: None,
        tokenizer,
    })
    .unwrap();
    let call =
        json!({"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"b": 2, "a": 1}});
    let thinking = json!({"type": "thinking", "thinking": "I add.", "signature": "Y2FsbGE="});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("3")]});
    let history = json!([
        {"role": "user", "content": [text("Add 1 and 2.")]},
        {"role": "assistant", "content": [thinking, text("Let me see."), call]},
        {"role": "user", "content": [result]},
        {"role": "system", "content": "Tokens left: 900"},
        {"role": "assistant", "content": [thinking, text("It is 3.")]},
        {"role": "user", "content": [text("Thank you.")]},
    ]);
    let history = history.as_array().unwrap();
    let ids = |turns: usize| {
        let attribution =
            format!("x-anthropic-billing-header: cc_version=2.1.{turns}; cch={turns:05x};");
        let chat = chat_of(&json!({
            "system": [text(&attribution), text("You are an agent."), text("Be brief.")],
            "tools": [{"name": "add", "input_schema": {"type": "object"}}],
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "messages": history[..turns],
        }));
        render(&model, &chat).unwrap().0
    };
    let opening = model.parts().tokenizer.encode_raw("<|im_start|>assistant\n<think>\n").unwrap();
    let prompts = [ids(1), ids(4), ids(6)];
    for pair in prompts.windows(2) {
        assert!(pair[0].ends_with(&opening));
        // The reply's turn begins alike, whether it is to be made or was.
        assert!(pair[1].starts_with(&pair[0]) && pair[1].len() > pair[0].len());
    }
}
