//! Responses that are kept: read, continued, referred to and forgotten.

use crate::common::{Setup, TestServer};
use crate::create::{RESPONSES, ask, with};
use serde_json::{Value, json};

async fn delete(server: &TestServer, path: &str) -> (u16, Value) {
    let response = server.client.delete(server.url.clone() + path).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_response_is_read_listed_and_forgotten() {
    let server = TestServer::start(Setup::default());
    let input = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "12 + 30 = ?"}]);
    let response = server.ok(RESPONSES, &ask(input)).await;
    let path = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
    let (status, kept) = server.get(&path).await;
    assert_eq!((status, &kept), (200, &response));

    let (status, list) = server.get(&format!("{path}/input_items?order=asc")).await;
    assert_eq!(status, 200);
    let items = list["data"].as_array().unwrap();
    assert_eq!(items[0]["content"], json!([{"type": "input_text", "text": "Be brief."}]));
    assert_eq!((items.len(), &list["has_more"]), (2, &json!(false)));
    assert_eq!((&list["first_id"], &list["last_id"]), (&items[0]["id"], &items[1]["id"]));
    let (_, page) = server.get(&format!("{path}/input_items?limit=1")).await;
    assert_eq!((&page["data"][0], &page["has_more"]), (&items[1], &json!(true)));
    let after = items[1]["id"].as_str().unwrap();
    let (_, page) = server.get(&format!("{path}/input_items?after={after}")).await;
    assert_eq!(page["data"], json!([items[0]]));
    for bad in ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_0"] {
        let (status, answer) = server.get(&format!("{path}/input_items?{bad}")).await;
        assert_eq!(status, 400, "{bad}: {answer}");
    }

    let (status, answer) = server.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("invalid_request_error")));
    let (status, answer) = delete(&server, &path).await;
    assert_eq!((status, &answer["deleted"]), (200, &json!(true)));
    assert_eq!(server.get(&path).await.0, 404);
    assert_eq!(server.get(&format!("{path}/input_items")).await.0, 404);
    assert_eq!(server.post(&format!("{path}/cancel"), &json!({})).await.0, 404);
    assert_eq!(delete(&server, &path).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_to_be_kept_is_not() {
    let server = TestServer::start(Setup::default());
    let response = server.ok(RESPONSES, &with(ask("12 + 30 = ?"), &json!({"store": false}))).await;
    let id = response["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("{RESPONSES}/{id}")).await.0, 404);
    let next = with(ask("And 8 + 9?"), &json!({"previous_response_id": id}));
    let (status, answer) = server.post(RESPONSES, &next).await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("previous_response_not_found")));
    let reference = json!([{"type": "item_reference", "id": response["output"][1]["id"]}]);
    let (status, answer) = server.post(RESPONSES, &ask(reference)).await;
    assert_eq!((status, &answer["error"]["param"]), (404, &json!("input[0].id")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_from_a_response() {
    let server = TestServer::start(Setup::default());
    let first = server.ok(RESPONSES, &ask("12 + 30 = ?")).await;
    let more = json!({"previous_response_id": first["id"], "stream": true});
    let events = server.events(RESPONSES, &with(ask("8 + 9 = ?"), &more)).await;
    let last: Value = serde_json::from_str(&events.last().unwrap().1).unwrap();
    let second = &last["response"];
    assert_eq!(second["previous_response_id"], first["id"]);
    let tokens = |response: &Value, path: &str| {
        response.pointer(&format!("/usage/{path}")).and_then(Value::as_u64).unwrap()
    };
    assert!(tokens(second, "input_tokens") > tokens(&first, "input_tokens"));
    assert!(tokens(second, "input_tokens_details/cached_tokens") > 0);
    // It was streamed and is kept all the same.
    let (status, kept) =
        server.get(&format!("{RESPONSES}/{}", second["id"].as_str().unwrap())).await;
    assert_eq!((status, &kept), (200, second));
    // The first may go; the conversation stays.
    delete(&server, &format!("{RESPONSES}/{}", first["id"].as_str().unwrap())).await;
    let third = with(ask("5 + 5 = ?"), &json!({"previous_response_id": second["id"]}));
    let third = server.ok(RESPONSES, &third).await;
    assert!(tokens(&third, "input_tokens") > tokens(second, "input_tokens"));
    // Items can be referred to one by one.
    let items = json!([{"role": "user", "content": "5 + 5 = ?"},
        {"type": "item_reference", "id": third["output"][1]["id"]}, {"role": "user", "content": "thanks"}]);
    assert_eq!(server.ok(RESPONSES, &ask(items)).await["status"], "completed");
}
