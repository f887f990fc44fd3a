//! Responses as streams of events.

use crate::common::{Setup, TestServer, json_events};
use crate::create::{RESPONSES, add_tool, ask, with};
use serde_json::{Value, json};

/// The events of a streamed request, after what holds for all streams has been checked.
async fn events(server: &TestServer, request: &Value) -> Vec<Value> {
    let raw = server.events(RESPONSES, &with(request.clone(), &json!({"stream": true}))).await;
    assert!(raw.iter().all(|(_, data)| data != "[DONE]"));
    let events = json_events(&raw);
    let named: Vec<&str> =
        raw.iter().filter(|(name, _)| name != ":").map(|(name, _)| name.as_str()).collect();
    for (index, (event, name)) in events.iter().zip(named).enumerate() {
        assert_eq!(
            (event["sequence_number"].as_u64(), &event["type"]),
            (Some(index as u64), &json!(name))
        );
    }
    assert_eq!(events[0]["response"]["status"], "in_progress");
    assert!(events[..events.len() - 1].iter().skip(2).all(|event| event.get("response").is_none()));
    assert_eq!(events[0]["response"]["id"], events.last().unwrap()["response"]["id"]);
    events
}

/// Types, without repetitions.
fn order(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

/// Output without ids, which differ from request to request.
fn without_ids(response: &Value) -> Value {
    let mut output = response["output"].clone();
    for item in output.as_array_mut().unwrap() {
        let item = item.as_object_mut().unwrap();
        item.remove("id");
        item.remove("call_id");
    }
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_and_say_what_the_whole_response_says() {
    let server = TestServer::start(Setup::default());
    let request = ask("12 + 30 = ?");
    let whole = server.ok(RESPONSES, &request).await;
    let events = events(&server, &request).await;
    assert_eq!(
        order(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let last = &events.last().unwrap()["response"];
    assert_eq!(without_ids(last), without_ids(&whole));
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    let deltas = |kind: &str| -> String {
        let events = events.iter().filter(|event| event["type"] == kind);
        events.map(|event| event["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(whole["output"][0]["content"][0]["text"], deltas("response.reasoning_text.delta"));
    assert_eq!(whole["output"][1]["content"][0]["text"], deltas("response.output_text.delta"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_streams_its_arguments() {
    let server = TestServer::start(Setup::default());
    let more = json!({"tools": [add_tool()], "tool_choice": "required", "parallel_tool_calls": false,
                      "reasoning": {"effort": "none"}, "max_output_tokens": 200});
    let events = events(&server, &with(ask("Add 3 and 4."), &more)).await;
    assert_eq!(
        order(&events)[2..],
        [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let item = &events.last().unwrap()["response"]["output"][0];
    let pieces = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(item["arguments"], pieces.collect::<String>());
    assert_eq!(item["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cut_off_is_incomplete() {
    let server = TestServer::start(Setup::default());
    let more = json!({"tools": [add_tool()], "tool_choice": "required", "max_output_tokens": 12,
                      "reasoning": {"effort": "none"}});
    let events = events(&server, &with(ask("Add 3 and 4."), &more)).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    let output = last["response"]["output"].as_array().unwrap();
    assert!(output.iter().all(|item| item["status"] == "incomplete"), "{output:?}");
    assert_eq!(output[0]["type"], "function_call");
    // The conversation goes on without it, whichever way it is sent.
    let id = &last["response"]["id"];
    let referring = with(ask("12 + 30 = ?"), &json!({"previous_response_id": id}));
    let resending = ask(json!([{"role": "user", "content": "Add 3 and 4."}, output[0],
                               {"role": "user", "content": "12 + 30 = ?"}]));
    let more = json!({"max_output_tokens": 4});
    let referring = server.ok(RESPONSES, &with(referring, &more)).await;
    let resending = server.ok(RESPONSES, &with(resending, &more)).await;
    assert_eq!(referring["usage"]["input_tokens"], resending["usage"]["input_tokens"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_long_a_prompt_is_told_in_the_stream() {
    let server = TestServer::start(Setup { context: 512, ..Setup::default() });
    let words: String = (0..700).map(|i| format!("Number {i} follows. ")).collect();
    let events = events(&server, &ask(words.as_str())).await;
    assert_eq!(
        order(&events),
        ["response.created", "response.in_progress", "error", "response.failed"]
    );
    assert_eq!(events[2]["code"], "context_length_exceeded");
    let error = &events[3]["response"]["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(error["message"].as_str().unwrap().contains("512 tokens"), "{error}");

    let (status, answer) = server.post(RESPONSES, &ask(words.as_str())).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(answer["error"]["param"], "input");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_its_work_and_leaves_nothing() {
    let server = TestServer::start(Setup::default());
    let endless =
        json!({"stream": true, "min_p": 0, "max_output_tokens": 6000, "temperature": 1, "seed": 1});
    let request = with(ask("Tell me a long story."), &endless);
    let request = server.client.post(server.url.clone() + RESPONSES).json(&request);
    let mut response = request.send().await.unwrap();
    let first = response.chunk().await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&first).into_owned();
    let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    drop(response);
    server.idle().await;
    let (status, _) = server.get(&format!("{RESPONSES}/{id}")).await;
    assert_eq!(status, 404);
}
