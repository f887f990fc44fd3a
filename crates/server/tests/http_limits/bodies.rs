//! Lengths, sizes, pace and JSON of bodies.

use crate::toy::{Toy, access, head};
use calla_server::http::Limits;
use std::time::{Duration, Instant};

const JSON: &str = "Content-Type: application/json";

/// 1,000 bytes of a body at most, which may be silent for 0.2 s and take 1.5 s.
fn tight() -> Limits {
    Limits {
        body_bytes: 1000,
        bodies_bytes: 1500,
        body_idle: Duration::from_millis(200),
        body_time: Duration::from_millis(1500),
        ..Limits::default()
    }
}

async fn tight_toy() -> Toy {
    Toy::start_with(access(&[], &[], &[]), tight()).await
}

#[tokio::test]
async fn lengths_that_are_none_are_refused() {
    let toy = tight_toy().await;
    let bad = [
        "Content-Length: -1",
        "Content-Length: +5",
        "Content-Length: abc",
        "Content-Length: 0x10",
        "Content-Length: 99999999999999999999999999",
        "Content-Length: 18446744073709551615",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 6",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked, gzip",
    ];
    for length in bad {
        let mut client = toy.connect().await;
        client.send(head("POST", "/echo", &["Host: localhost", length]) + "12345").await;
        let rest = client.rest().await;
        let is_refused = rest.starts_with("HTTP/1.1 400 ")
            || rest.starts_with("HTTP/1.1 413 ")
            || rest.starts_with("HTTP/1.1 431 ");
        assert!(is_refused && rest.matches("HTTP/1.1").count() == 1, "{length}: {rest}");
        assert!(rest.contains("connection: close\r\n"), "{length}: {rest}");
    }
    let reply = toy.ask(head("POST", "/echo", &["Host: localhost", "Content-Length: 1001"])).await;
    assert_eq!(reply.status(), 413);
    assert!(reply.message().contains("1001 bytes; the limit is 1000"), "{reply:?}");
    assert_eq!(reply.header("connection").as_deref(), Some("close"));

    // The same length twice is one length; none is an empty body.
    let twice = ["Host: localhost", "Content-Length: 5", "Content-Length: 5"];
    assert_eq!(toy.ask(head("POST", "/echo", &twice) + "12345").await.body, "12345");
    let reply = toy.ask(head("POST", "/echo", &["Host: localhost"])).await;
    assert_eq!((reply.status(), reply.body.as_str()), (200, ""));
    // Which of both holds is what smugglers count on: the chunks do, and nothing follows.
    let both = ["Host: localhost", "Content-Length: 5", "Transfer-Encoding: chunked"];
    let reply =
        toy.ask(head("POST", "/echo", &both) + "3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(
        (reply.body.as_str(), reply.header("connection").as_deref()),
        ("abc", Some("close"))
    );
}

#[tokio::test]
async fn chunks_add_up_to_the_limit() {
    let toy = tight_toy().await;
    let chunked = head("POST", "/echo", &["Host: localhost", "Transfer-Encoding: chunked"]);
    let chunk = format!("1f4\r\n{}\r\n", "x".repeat(500));
    let reply = toy.ask(format!("{chunked}{chunk}{chunk}0\r\n\r\n")).await;
    assert_eq!((reply.status(), reply.body.len()), (200, 1000));
    let reply = toy.ask(format!("{chunked}{chunk}{chunk}1\r\nx\r\n0\r\n\r\n")).await;
    assert_eq!(reply.status(), 413);
    assert!(reply.message().contains("more than 1000 bytes"), "{reply:?}");
    for bad in ["zz\r\nabc\r\n", "-1\r\n", "fffffffffffffffff\r\nabc", "3\r\nabcdef\r\n0\r\n\r\n"] {
        let reply = toy.ask(format!("{chunked}{bad}")).await;
        assert_eq!(reply.status(), 400, "{bad:?}");
        assert!(reply.message().contains("malformed"), "{reply:?}");
    }
}

#[tokio::test]
async fn a_client_that_goes_on_sending_still_gets_the_answer() {
    let toy = tight_toy().await;
    let mut client = toy.connect().await;
    let size = 4 << 20;
    client
        .send(head("POST", "/echo", &["Host: localhost", &format!("Content-Length: {size}")]))
        .await;
    client.send(vec![b'x'; size]).await;
    assert_eq!(client.reply().await.status(), 413);
}

#[tokio::test]
async fn a_client_that_asks_first_is_answered_before_it_sends() {
    let toy = tight_toy().await;
    let expect = ["Host: localhost", "Expect: 100-continue", "Content-Length: 2000"];
    assert_eq!(toy.ask(head("POST", "/echo", &expect)).await.status(), 413);
    let mut client = toy.connect().await;
    let expect = ["Host: localhost", "Expect: 100-continue", "Content-Length: 3"];
    client.send(head("POST", "/echo", &expect)).await;
    client.read_until("HTTP/1.1 100 Continue\r\n\r\n").await;
    client.send("abc").await;
    assert_eq!(client.reply().await.body, "abc");
}

#[tokio::test]
async fn all_bodies_together_are_bounded() {
    let toy = tight_toy().await;
    let send = head("POST", "/echo", &["Host: localhost", "Content-Length: 900"]);
    let mut first = toy.connect().await;
    first.send(format!("{send}{}", "x".repeat(800))).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let reply = toy.ask(format!("{send}{}", "x".repeat(900))).await;
    assert_eq!((reply.status(), reply.header("retry-after").as_deref()), (503, Some("1")));
    first.send("x".repeat(100)).await;
    assert_eq!(first.reply().await.status(), 200);
    assert_eq!(toy.ask(format!("{send}{}", "x".repeat(900))).await.status(), 200);
}

#[tokio::test]
async fn slow_bodies_time_out() {
    let toy = tight_toy().await;
    let send = head("POST", "/v1/messages", &["Host: localhost", JSON, "Content-Length: 900"]);
    let begun = Instant::now();
    let reply = toy.ask(format!("{send}{{")).await;
    assert_eq!((reply.status(), &reply.json()["error"]["type"]), (408, &"timeout_error".into()));
    assert!(reply.message().contains("1 bytes came"), "{reply:?}");
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    assert!(
        begun.elapsed() >= Duration::from_millis(200)
            && begun.elapsed() < Duration::from_millis(1400)
    );

    // Never silent, never done.
    let mut client = toy.connect().await;
    let begun = Instant::now();
    client.send(&send).await;
    let (mut reading, mut writing) = client.0.split();
    let trickle = async {
        loop {
            tokio::io::AsyncWriteExt::write_all(&mut writing, b" ").await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = tokio::io::AsyncReadExt::read_u8(&mut reading);
    tokio::select! {
        () = trickle => unreachable!(),
        byte = answer => assert_eq!(byte.unwrap(), b'H'),
    }
    assert!(
        begun.elapsed() >= Duration::from_millis(1500) && begun.elapsed() < Duration::from_secs(5)
    );
}

#[tokio::test]
async fn a_byte_at_a_time_is_fast_enough() {
    let toy = tight_toy().await;
    let body = r#"{"messages": [{"content": "é"}]}"#;
    let length = format!("Content-Length: {}", body.len());
    let request = head("POST", "/v1/chat/completions", &["Host: localhost", JSON, &length]) + body;
    let mut client = toy.connect().await;
    client.0.set_nodelay(true).unwrap();
    for byte in request.as_bytes() {
        client.send([*byte]).await;
        tokio::task::yield_now().await;
    }
    let reply = client.reply().await;
    assert_eq!((reply.status(), &reply.json()["contents"][0]), (200, &"é".into()));
}

#[tokio::test]
async fn json_is_what_it_says() {
    let toy = Toy::start().await;
    let body = r#"{"messages": [{"content": "a"}]}"#;
    for kind in [JSON, "Content-Type: application/json; charset=utf-8", "Accept: */*"] {
        assert_eq!(toy.chat(&[kind], body).await.status(), 200, "{kind}");
    }
    // What a form of any page can send.
    let own = "Origin: http://localhost";
    let forms = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
    for kind in forms.map(|kind| format!("Content-Type: {kind}")) {
        for headers in [&[kind.as_str()][..], &[kind.as_str(), own]] {
            let reply = toy.chat(headers, body).await;
            assert_eq!(reply.status(), 415, "{headers:?}");
            assert!(reply.message().contains("application/json"), "{reply:?}");
        }
    }
    assert_eq!(toy.chat(&[own], body).await.status(), 415);
    assert_eq!(toy.chat(&[own, JSON], body).await.status(), 200);
}

#[tokio::test]
async fn bad_json_is_refused_where_it_is_bad() {
    let toy = Toy::start().await;
    let deep = format!("{{\"a\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let cases = [
        ("", None, "empty"),
        ("[]", None, "must be a JSON object"),
        ("\"x\"", None, "must be a JSON object"),
        ("{\"messages\": [\n}", None, "line 2 column 1"),
        (&deep, None, "deeper than 127 levels"),
        (r#"{"messages": [{"content": "\ud800"}]}"#, None, "not valid JSON"),
        ("{\"messages\": \"\0\"}", None, "control character"),
        (r#"{"messages": [], "temperature": 1e400}"#, None, "number out of range"),
        (r#"{"messages": [], "temperature": NaN}"#, None, "not valid JSON"),
        (r#"{"messages": [], "messages": []}"#, Some("messages"), "twice"),
        (
            r#"{"messages": [{"content": "a"}, {"content": 5}]}"#,
            Some("messages[1].content"),
            "expected a string",
        ),
        (r#"{"messages": [{}]}"#, Some("messages[0].content"), "missing field"),
        ("{}", Some("messages"), "missing field"),
    ];
    for (body, param, expected) in cases {
        let reply = toy.chat(&[JSON], body).await;
        assert_eq!(reply.status(), 400, "{body:.80}");
        assert!(reply.message().contains(expected), "{body:.80}: {reply:?}");
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["type"], error["param"].as_str()),
            (&"invalid_request_error".into(), param)
        );
    }
    // Nothing else is disturbed.
    let reply = toy.chat(&[JSON], r#"{"messages": [{"content": "a\u0000"}], "max": -0}"#).await;
    assert_eq!((reply.status(), &reply.json()["contents"][0]), (200, &"a\0".into()));
}
