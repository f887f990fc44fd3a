//! Tests of the order and the content of events.

use super::super::response::{ReasoningEcho, TextEcho};
use super::*;
use crate::generate::{ContentLogprob, LogprobToken};
use calla_engine::Usage as EngineUsage;
use calla_text::Reply;
use serde_json::{Map, Value, json};

fn response() -> ResponseObject {
    ResponseObject {
        id: "resp_1".into(),
        object: "response",
        created_at: 1,
        completed_at: None,
        status: Status::InProgress,
        background: false,
        error: None,
        incomplete_details: None,
        instructions: None,
        max_output_tokens: None,
        max_tool_calls: None,
        model: "gpt-5".into(),
        output: vec![],
        parallel_tool_calls: true,
        previous_response_id: None,
        prompt_cache_key: None,
        reasoning: ReasoningEcho::default(),
        safety_identifier: None,
        service_tier: "default",
        store: true,
        temperature: 0.7,
        top_p: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        top_logprobs: 0,
        text: TextEcho { format: json!({"type": "text"}), verbosity: None },
        tool_choice: json!("auto"),
        tools: vec![],
        truncation: "disabled",
        usage: None,
        user: None,
        metadata: Map::new(),
        timings: None,
        cache: None,
    }
}

fn translator(thinking: ThinkingForm) -> Translator {
    let tools = [
        json!({"type": "function", "name": "f"}),
        json!({"type": "custom", "name": "patch"}),
        json!({"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "g"}]}),
    ];
    let mut translator = Translator::new(response(), Offer::read(&tools).unwrap(), thinking);
    translator.start();
    translator
}

fn ended(end: End) -> Ended {
    Ended {
        end,
        reply: Reply::default(),
        call_ids: vec![],
        logprobs: None,
        usage: EngineUsage::default(),
        reasoning_tokens: 0,
    }
}

fn content(text: &str) -> Delta {
    Delta::Content(text.into(), vec![])
}

fn call(index: usize, name: &str, pieces: &[&str]) -> Vec<Delta> {
    let id = format!("call_{index}");
    let mut deltas = vec![Delta::CallStart { index, id, name: name.into() }];
    deltas.extend(pieces.iter().map(|piece| Delta::CallArguments { index, json: (*piece).into() }));
    deltas
}

/// All events of a reply.
fn run(thinking: ThinkingForm, deltas: Vec<Delta>, end: End) -> Vec<Value> {
    let mut translator = translator(thinking);
    for delta in deltas {
        translator.delta(delta);
    }
    let summary = Summary { prompt_tokens: 5, completion_tokens: 3, ..Summary::default() };
    translator.finish(&ended(end), &summary);
    let events = translator.take_events();
    let values: Vec<Value> =
        events.iter().map(|event| serde_json::to_value(event).unwrap()).collect();
    check_order(&values);
    values
}

/// What holds for every stream.
fn check_order(events: &[Value]) {
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], index, "{event}");
    }
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(events[1]["type"], "response.in_progress");
    let last = events.last().unwrap();
    let added = events.iter().filter(|event| event["type"] == "response.output_item.added");
    let done: Vec<_> = events.iter().filter(|e| e["type"] == "response.output_item.done").collect();
    assert_eq!(added.count(), done.len());
    let output = last["response"]["output"].as_array().unwrap();
    assert_eq!(output.len(), done.len());
    for (index, (item, done)) in output.iter().zip(done).enumerate() {
        assert_eq!((item, done["output_index"].as_u64()), (&done["item"], Some(index as u64)));
    }
    // Deltas, joined, are what the item says in the end.
    for (index, item) in output.iter().enumerate() {
        let deltas = events.iter().filter(|event| event["output_index"] == index);
        let joined: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
        let whole = match item["type"].as_str().unwrap() {
            "message" => &item["content"][0]["text"],
            "function_call" => &item["arguments"],
            "custom_tool_call" => &item["input"],
            _ if item["summary"][0].is_object() => &item["summary"][0]["text"],
            _ => &item["content"][0]["text"],
        };
        assert_eq!(whole, joined.as_str(), "{item}");
    }
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[test]
fn thinking_answer_and_call_come_in_order() {
    let mut deltas = vec![
        Delta::Reasoning("let ".into()),
        Delta::Reasoning("me see".into()),
        content("It "),
        content("is."),
    ];
    deltas.extend(call(0, "f", &["{\"a\":", "1}"]));
    deltas.push(Delta::CallEnd { index: 0, complete: true });
    let events = run(ThinkingForm::default(), deltas, End::ToolCalls);
    assert_eq!(
        kinds(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["status"], "completed");
    assert_eq!(response["usage"]["total_tokens"], 8);
    let [thinking, message, call] = response["output"].as_array().unwrap().as_slice() else {
        panic!("{response}")
    };
    assert_eq!(thinking["content"], json!([{"type": "reasoning_text", "text": "let me see"}]));
    assert_eq!(thinking["summary"], json!([]));
    assert!(thinking.get("encrypted_content").is_none());
    assert_eq!(message["content"][0]["text"], "It is.");
    assert_eq!(
        (&call["call_id"], &call["name"], &call["arguments"], &call["status"]),
        (&json!("call_0"), &json!("f"), &json!("{\"a\":1}"), &json!("completed"))
    );
}

#[test]
fn thinking_stands_for_a_summary_where_one_is_asked_for() {
    let form = ThinkingForm { is_summary: true, is_sealed: true };
    let deltas = vec![Delta::Reasoning("hm".into()), content("Yes.")];
    let events = run(form, deltas, End::Stop);
    assert_eq!(
        kinds(&events)[2..8],
        [
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
        ]
    );
    let thinking = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(thinking["summary"], json!([{"type": "summary_text", "text": "hm"}]));
    assert!(thinking.get("content").is_none());
    assert_eq!(thinking["encrypted_content"], seal("hm"));
}

#[test]
fn several_calls_and_what_is_said_behind_them_are_items_of_their_own() {
    let mut deltas = call(0, "f", &["{}"]);
    deltas.push(Delta::CallEnd { index: 0, complete: true });
    deltas.extend(call(1, "ns__g", &["{}"]));
    deltas.push(Delta::CallEnd { index: 1, complete: true });
    deltas.push(content("Behind."));
    let events = run(ThinkingForm::default(), deltas, End::ToolCalls);
    let output = events.last().unwrap()["response"]["output"].clone();
    let kinds: Vec<_> =
        output.as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["function_call", "function_call", "message"]);
    assert_eq!((&output[1]["namespace"], &output[1]["name"]), (&json!("ns"), &json!("g")));
    assert!(output[0].get("namespace").is_none());
}

#[test]
fn custom_tools_are_given_their_text() {
    let mut deltas = call(0, "patch", &["{\"input\":", "\"a\\nb\"}"]);
    deltas.push(Delta::CallEnd { index: 0, complete: true });
    let events = run(ThinkingForm::default(), deltas, End::ToolCalls);
    assert_eq!(
        kinds(&events)[2..],
        [
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!((&item["type"], &item["input"]), (&json!("custom_tool_call"), &json!("a\nb")));
}

#[test]
fn what_is_cut_off_is_incomplete() {
    let events = run(ThinkingForm::default(), vec![content("It is")], End::Length);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    let response = &last["response"];
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(response["output"][0]["status"], "incomplete");

    // A call inside of which tokens ran out, and one that was whole by then.
    for (complete, status) in [(false, "incomplete"), (true, "completed")] {
        let mut deltas = call(0, "f", &["{\"a\":", "1}"]);
        deltas.push(Delta::CallEnd { index: 0, complete });
        let events = run(ThinkingForm::default(), deltas, End::Length);
        let response = &events.last().unwrap()["response"];
        assert_eq!(response["status"], "incomplete");
        let item = &response["output"][0];
        assert_eq!((&item["arguments"], &item["status"]), (&json!("{\"a\":1}"), &json!(status)));
    }
}

#[test]
fn a_reply_without_words_is_an_empty_message() {
    let events = run(ThinkingForm::default(), vec![], End::Stop);
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(output[0]["type"], "message");
    assert_eq!(output[0]["content"][0]["text"], "");
}

#[test]
fn log_probabilities_come_with_their_text() {
    let token = LogprobToken { bytes: b"Yes".to_vec(), logprob: -0.5 };
    let logprob = ContentLogprob { token: token.clone(), top: vec![token] };
    let deltas = vec![Delta::Content("Yes".into(), vec![logprob])];
    let events = run(ThinkingForm::default(), deltas, End::Stop);
    let entry = json!({"token": "Yes", "logprob": -0.5, "bytes": [89, 101, 115],
                       "top_logprobs": [{"token": "Yes", "logprob": -0.5, "bytes": [89, 101, 115]}]});
    let delta = events.iter().find(|e| e["type"] == "response.output_text.delta").unwrap();
    assert_eq!(delta["logprobs"], json!([entry]));
    let part = &events.last().unwrap()["response"]["output"][0]["content"][0];
    assert_eq!(part["logprobs"], json!([entry]));
}

#[test]
fn a_failure_closes_what_is_open_and_is_told_twice() {
    let mut translator = translator(ThinkingForm::default());
    translator.delta(content("It"));
    translator.fail(&ApiError::new(ErrorKind::Server, "the device failed"));
    let events: Vec<Value> =
        translator.take_events().iter().map(|e| serde_json::to_value(e).unwrap()).collect();
    check_order(&events);
    let [.., error, failed] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("server_error")));
    assert_eq!(error["error"]["message"], "the device failed");
    assert_eq!(failed["type"], "response.failed");
    assert_eq!(failed["response"]["status"], "failed");
    assert_eq!(failed["response"]["error"]["code"], "server_error");

    for (error, code) in [
        (ApiError::new(ErrorKind::QueueFull, ""), "rate_limit_exceeded"),
        (
            ApiError::invalid("input", "").with_code("context_length_exceeded"),
            "context_length_exceeded",
        ),
        (ApiError::invalid("text.format", ""), "invalid_prompt"),
        (ApiError::new(ErrorKind::Unavailable, ""), "server_error"),
    ] {
        assert_eq!(error_code(&error), code);
    }
}

#[test]
fn numbers_are_written_as_they_were_given() {
    let text = serde_json::to_string(&response()).unwrap();
    assert!(text.contains("\"temperature\":0.7,"), "{text}");
}
