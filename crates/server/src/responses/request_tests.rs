//! Tests of how a request is translated.

use super::*;
use crate::generate::render;
use crate::generate::task::ToolChoice;
use crate::model::ModelParts;
use crate::responses::store::NewTurn;
use calla_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use std::path::Path;

fn model() -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let defaults = GenerationDefaults::load(&dir).unwrap();
    Model::new(ModelParts {
        name: "demo".into(),
        template: ChatTemplate::load(&dir).unwrap(),
        stop_ids: tokenizer.eos_ids(&[], &defaults),
        vocab_used: tokenizer.vocab_size(),
        context: 8192,
        preserve_thinking: None,
        tokenizer,
        defaults,
    })
    .unwrap()
}

fn plan(body: Value, store: &Store) -> Result<Plan, ApiError> {
    let mut body = body;
    body["model"] = "gpt-5".into();
    serde_json::from_value::<ResponseRequest>(body).unwrap().plan(&model(), store, "")
}

fn chat(body: Value) -> Chat {
    let plan = plan(body, &Store::default()).map_err(|error| error.message);
    match plan.map(|plan| plan.task.prompt) {
        Ok(Prompt::Chat(chat)) => chat,
        other => panic!("{other:?}"),
    }
}

fn error(body: Value) -> ApiError {
    match plan(body.clone(), &Store::default()) {
        Ok(_) => panic!("{body} is accepted"),
        Err(error) => error,
    }
}

#[test]
fn fields_become_the_task() {
    let body = json!({
        "input": "hello", "instructions": "be brief",
        "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
        "tool_choice": "required", "parallel_tool_calls": false,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "max_output_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7, "stop": "x",
        "top_logprobs": 2, "include": ["message.output_text.logprobs", "something.new"],
        "chat_template_kwargs": {"preserve_thinking": true}, "unknown": {"field": 1},
        "truncation": "auto", "background": false, "conversation": null, "prompt": null,
    });
    let plan = plan(body, &Store::default()).unwrap_or_else(|error| panic!("{error}"));
    let Prompt::Chat(chat) = plan.task.prompt else { panic!("no chat") };
    let texts: Vec<_> = chat.messages.iter().map(|m| (m.role.as_str(), m.content.text())).collect();
    assert_eq!(texts, [("system", "be brief".to_owned()), ("user", "hello".to_owned())]);
    assert_eq!(chat.tools.len(), 1);
    assert_eq!((&chat.tool_choice, chat.one_call), (&ToolChoice::Required, true));
    assert_eq!(chat.format, Format::JsonSchema(json!({"type": "object"})));
    assert_eq!((chat.enable_thinking, chat.thinking_budget), (Some(true), Some(1024)));
    assert_eq!(chat.preserve_thinking, Some(true));
    let options = plan.task.options;
    assert_eq!((options.max_tokens, options.top_k, options.seed), (Some(1), Some(3), Some(7)));
    assert_eq!((options.temperature, options.logprobs), (Some(0.5), Some(2)));
    assert_eq!(options.stop, ["x"]);
    assert!(!plan.streams && plan.kept.is_some());
    let response = serde_json::to_value(plan.translator.response()).unwrap();
    assert_eq!(response["tools"][0]["strict"], Value::Null);
    assert_eq!(response["tools"][1], json!({"type": "web_search"}));
    assert_eq!(response["reasoning"], json!({"effort": "low", "summary": "auto"}));
    assert_eq!(response["truncation"], "disabled");
}

#[test]
fn nothing_to_say_is_no_error() {
    for input in [json!(""), json!([])] {
        assert_eq!(chat(json!({"input": input})).messages, []);
        render(&model(), &chat(json!({"input": input}))).unwrap();
    }
}

#[test]
fn formats_of_all_kinds() {
    let format = |format: Value| chat(json!({"input": "x", "text": {"format": format}})).format;
    assert_eq!(chat(json!({"input": "x", "text": {"verbosity": "low"}})).format, Format::Text);
    assert_eq!(format(json!({"type": "text"})), Format::Text);
    assert_eq!(format(json!({"type": "json_object"})), Format::JsonObject);
    let schema = json!({"type": "json_schema", "json_schema": {"schema": true}});
    assert_eq!(format(schema), Format::JsonSchema(json!(true)));
    assert_eq!(format(json!({"type": "regex", "pattern": "a+"})), Format::Regex("a+".into()));
    let lark = json!({"type": "grammar", "definition": "start: /a/"});
    assert_eq!(format(lark), Format::Lark("start: /a/".into()));
}

#[test]
fn bad_values_are_refused_with_their_field() {
    for (field, value, param) in [
        ("background", json!(true), "background"),
        ("conversation", json!("conv_1"), "conversation"),
        ("prompt", json!({"id": "pmpt_1"}), "prompt"),
        ("truncation", json!("middle"), "truncation"),
        ("reasoning", json!({"effort": "much"}), "reasoning.effort"),
        ("reasoning", json!({"summary": "long"}), "reasoning.summary"),
        ("text", json!({"verbosity": "loud"}), "text.verbosity"),
        ("text", json!({"format": {}}), "text.format.type"),
        ("text", json!({"format": {"type": "yaml"}}), "text.format.type"),
        ("text", json!({"format": {"type": "json_schema"}}), "text.format.schema"),
        ("text", json!({"format": {"type": "regex"}}), "text.format.pattern"),
        ("max_output_tokens", json!(0), "max_output_tokens"),
        ("top_logprobs", json!(21), "top_logprobs"),
        ("top_k", json!(-2), "top_k"),
        ("seed", json!(-2), "seed"),
        ("temperature", json!(-1), "temperature"),
        ("top_p", json!(1.5), "top_p"),
        ("tool_choice", json!("sometimes"), "tool_choice"),
        ("tools", json!([{"type": "function"}]), "tools[0].name"),
        (
            "input",
            json!([{"role": "user", "content": [{"type": "input_image"}]}]),
            "input[0].content[0]",
        ),
    ] {
        let mut body = json!({"input": "x"});
        body[field] = value;
        let error = error(body);
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
        assert_eq!(error.kind, ErrorKind::Invalid);
    }
    let many: Vec<Value> = vec![json!({"role": "user", "content": "x"}); ITEMS_MAX + 1];
    assert_eq!(error(json!({"input": many})).param.as_deref(), Some("input"));
    let unknown = error(json!({"input": "x", "previous_response_id": "resp_0"}));
    assert_eq!(unknown.code, Some("previous_response_not_found"));
    let unknown = error(json!({"input": [{"type": "item_reference", "id": "msg_0"}]}));
    assert_eq!(
        (unknown.kind, unknown.param.as_deref()),
        (ErrorKind::NotFound, Some("input[0].id"))
    );
}

/// Keeps a turn with the given output.
fn keep(store: &Store, id: &str, plan: Plan, output: &Value) {
    let Kept { input, before } = plan.kept.unwrap();
    let items = output.as_array().unwrap();
    let item_ids = items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    let response = json!({ "output": output }).to_string();
    let (id, owner) = (id.to_owned(), String::new());
    store.put(NewTurn { id, owner, input, response, item_ids, before });
}

#[test]
fn a_client_that_resends_and_one_that_refers_have_the_same_prompt_which_only_grows() {
    let store = Store::default();
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let question = json!({"role": "user", "content": "12 + 30 = ?"});
    let output = json!([
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "I call f."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f",
         "arguments": "{\"a\":\"12\"}", "status": "completed"},
    ]);
    let result = json!({"type": "function_call_output", "call_id": "c1", "output": "42"});
    let instructions = "be brief";
    let first = json!({"input": [question], "tools": tools, "instructions": instructions});
    let first_plan = plan(first, &store).unwrap_or_else(|error| panic!("{error}"));
    let model = model();
    let ids = |plan: &Plan| match &plan.task.prompt {
        Prompt::Chat(chat) => render(&model, chat).unwrap().0,
        other => panic!("{other:?}"),
    };
    let mut prompt = ids(&first_plan);
    keep(&store, "resp_1", first_plan, &output);

    let referring = json!({"input": [result], "tools": tools, "instructions": instructions,
                           "previous_response_id": "resp_1"});
    let mut all = vec![question];
    all.extend(output.as_array().unwrap().clone());
    all.push(result);
    let resending =
        json!({"input": all, "tools": tools, "instructions": instructions, "store": false});
    let by_items = json!({"tools": tools, "instructions": instructions, "input": [all[0],
        {"type": "item_reference", "id": "rs_1"}, {"type": "item_reference", "id": "fc_1"}, all[3]]});
    let plans = [referring, resending, by_items]
        .map(|body| plan(body, &store).unwrap_or_else(|error| panic!("{error}")));
    let prompts: Vec<_> = plans.iter().map(&ids).collect();
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(prompts[0], prompts[2]);
    // The reply that the model had given stands where it was generated.
    let reply = "I call f.\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n\
                 </function>\n</tool_call><|im_end|>";
    prompt.extend(model.parts().tokenizer.encode_raw(reply).unwrap());
    assert_eq!(prompts[0][..prompt.len()], prompt);

    // The next turn grows it again; instructions do not carry over by themselves.
    let [referring, ..] = plans;
    let answer = json!([{"type": "message", "id": "msg_2", "role": "assistant",
                         "content": [{"type": "output_text", "text": "42", "annotations": []}]}]);
    keep(&store, "resp_2", referring, &answer);
    let third = json!({"input": "thanks", "previous_response_id": "resp_2"});
    let third = plan(third, &store).unwrap_or_else(|error| panic!("{error}"));
    let Prompt::Chat(chat) = third.task.prompt else { panic!("no chat") };
    let roles: Vec<_> = chat.messages.iter().map(|m| m.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"]);
}

#[test]
fn references_are_kept_as_what_they_refer_to() {
    let store = Store::default();
    let first = plan(json!({"input": "hello"}), &store).unwrap_or_else(|error| panic!("{error}"));
    let output = json!([{"type": "message", "id": "msg_1", "role": "assistant", "content": "hi"}]);
    keep(&store, "resp_1", first, &output);
    let body = json!({"input": [{"type": "item_reference", "id": "msg_1"}]});
    let second = plan(body, &store).unwrap_or_else(|error| panic!("{error}"));
    let items = stored_items(&second.kept.unwrap().input).unwrap();
    assert_eq!(items[0]["content"][0]["text"], "hi");
}
