//! Slow, idle, vanishing and too many clients; a port that is taken; the end.

use crate::toy::{Toy, access, head};
use calla_server::http::{Limits, ListenError, listen};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const LOCAL: &str = "Host: localhost";

fn get(path: &str) -> String {
    head("GET", path, &[LOCAL])
}

async fn toy_with(limits: Limits) -> Toy {
    Toy::start_with(access(&[], &[], &[]), limits).await
}

#[tokio::test]
async fn a_slow_head_times_out() {
    let toy = toy_with(Limits { head_time: Duration::from_millis(300), ..Limits::default() }).await;
    let mut client = toy.connect().await;
    client.send(get("/health")).await;
    assert_eq!(client.reply().await.status(), 200);
    // Once more on the same connection, and then without an end.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let begun = Instant::now();
    client.send("GET /health HTTP/1.1\r\n").await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.send("X-Slow: 1\r\n").await;
    }
    let reply = client.reply().await;
    assert_eq!(reply.status(), 408);
    assert!(reply.message().contains("0.3 s"), "{reply:?}");
    assert!(
        begun.elapsed() >= Duration::from_millis(300) && begun.elapsed() < Duration::from_secs(2)
    );
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let toy = toy_with(Limits { idle: Duration::from_millis(200), ..Limits::default() }).await;
    let mut fresh = toy.connect().await;
    let mut used = toy.connect().await;
    used.send(get("/health")).await;
    used.reply().await;
    let begun = Instant::now();
    assert_eq!((used.rest().await, fresh.rest().await), (String::new(), String::new()));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // One that waits for its answer is not idle.
    let mut busy = toy.connect().await;
    busy.send(get("/wait")).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    toy.watch.go.notify_one();
    assert_eq!(busy.reply().await.body, "done");
}

#[tokio::test]
async fn a_thousand_idle_connections_do_not_slow_a_request() {
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    let toy = Toy::start().await;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(toy.connect().await);
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let begun = Instant::now();
        assert_eq!(toy.ask(get("/health")).await.status(), 200);
        slowest = slowest.max(begun.elapsed());
    }
    println!("slowest of 50 requests beside 1,000 idle connections: {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let mut last = idle.pop().unwrap();
    last.send(get("/health")).await;
    assert_eq!(last.reply().await.status(), 200);
}

#[tokio::test]
async fn too_many_connections_are_turned_away() {
    let toy = toy_with(Limits { connections: 2, ..Limits::default() }).await;
    let mut first = toy.connect().await;
    first.send(get("/health")).await;
    assert_eq!(first.reply().await.status(), 200);
    let _second = toy.connect().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let rest = toy.connect().await.rest().await;
    assert!(rest.starts_with("HTTP/1.1 503 ") && rest.contains("as many connections"), "{rest:?}");
    drop(first);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(toy.ask(get("/health")).await.status(), 200);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_dropped() {
    let toy =
        toy_with(Limits { write_stall: Duration::from_millis(300), ..Limits::default() }).await;
    let mut client = toy.connect().await;
    client.send(get("/flood")).await;
    client.read_until("data: xxx").await;
    toy.watch.until_running(1).await;
    let begun = Instant::now();
    toy.watch.until_running(0).await;
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
}

/// Reads that it is noticed within 100 ms, with as much again for a busy machine, that a client is gone.
async fn check_gone(path: &str, wait_for: &str) {
    let toy = Toy::start().await;
    for is_reset in [false, true] {
        let mut client = toy.connect().await;
        client.send(get(path)).await;
        if !wait_for.is_empty() {
            client.read_until(wait_for).await;
        }
        toy.watch.until_running(1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(toy.watch.running.load(Ordering::SeqCst), 1);
        let begun = Instant::now();
        if is_reset {
            client.0.set_zero_linger().unwrap();
        }
        drop(client);
        toy.watch.until_running(0).await;
        println!("{path}: noticed after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_millis(200), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_stream_whose_client_is_gone_is_dropped() {
    check_gone("/stream", "data: item 0").await;
}

#[tokio::test]
async fn a_handler_whose_client_is_gone_is_dropped() {
    check_gone("/wait", "").await;
}

#[tokio::test]
async fn a_client_gone_in_the_middle_of_its_body_leaves_nothing() {
    let toy = Toy::start().await;
    let mut client = toy.connect().await;
    client.send(head("POST", "/wait", &[LOCAL, "Content-Length: 10"]) + "123").await;
    drop(client);
    let mut client = toy.connect().await;
    client.send(head("POST", "/wait", &[LOCAL, "Content-Length: 3"]) + "123").await;
    toy.watch.until_running(1).await;
}

#[tokio::test]
async fn silence_in_a_stream_is_filled() {
    let toy = Toy::start().await;
    let mut client = toy.connect().await;
    client.send(get("/stream")).await;
    let read = client.read_until(": keep-alive\n\n").await;
    assert!(read.contains("content-type: text/event-stream; charset=utf-8\r\n"), "{read}");
    assert!(
        read.contains("x-accel-buffering: no\r\n") && read.contains("cache-control: no-store\r\n")
    );
    assert!(read.contains("data: item 0\n\n"));
    toy.watch.go.notify_one();
    let rest = client.read_until("\r\n0\r\n\r\n").await;
    assert!(rest.contains("data: item 1\n\n"), "{rest}");
    // The connection can be used again.
    client.send(get("/health")).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn requests_may_be_sent_ahead() {
    let toy = Toy::start().await;
    let mut client = toy.connect().await;
    client.send(get("/about") + &get("/health")).await;
    assert!(client.reply().await.body.contains("owner"));
    assert!(client.reply().await.body.contains("ready"));
}

#[tokio::test]
async fn a_stop_lets_streams_finish_and_takes_nothing_new() {
    let mut toy = Toy::start().await;
    let mut idle = toy.connect().await;
    idle.send(get("/health")).await;
    idle.reply().await;
    let mut begun = toy.connect().await;
    begun.send("GET /v1/models HTTP/1.1\r\n").await;
    let mut stream = toy.connect().await;
    stream.send(get("/stream")).await;
    stream.read_until("data: item 0").await;
    tokio::time::sleep(Duration::from_millis(50)).await;

    toy.stop.cancel();
    assert_eq!(idle.rest().await, "");
    assert!(tokio::net::TcpStream::connect(toy.address).await.is_err());
    begun.send("Host: localhost\r\n\r\n").await;
    let reply = begun.reply().await;
    assert_eq!((reply.status(), &reply.json()["error"]["code"]), (503, &"shutting_down".into()));
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    assert!(reply.header("retry-after").is_some());
    assert_eq!(begun.rest().await, "");

    toy.watch.go.notify_one();
    let rest = stream.rest().await;
    assert!(rest.contains("data: item 1\n\n") && rest.ends_with("0\r\n\r\n"), "{rest:?}");
    drop((idle, begun, stream));
    assert_eq!((&mut toy.serving).await.unwrap(), 0);
}

#[tokio::test]
async fn a_stop_cuts_what_does_not_finish() {
    let mut toy = Toy::start().await;
    let mut stream = toy.connect().await;
    stream.send(get("/stream")).await;
    stream.read_until("data: item 0").await;
    let begun = Instant::now();
    toy.stop.cancel();
    assert_eq!((&mut toy.serving).await.unwrap(), 1);
    assert!(
        begun.elapsed() >= Duration::from_millis(300) && begun.elapsed() < Duration::from_secs(2)
    );
    assert!(!stream.rest().await.contains("item 1"));
    toy.watch.until_running(0).await;
}

#[tokio::test]
async fn a_taken_port_says_by_what() {
    let toy = Toy::start().await;
    let error = listen(toy.address).await.unwrap_err();
    assert!(
        matches!(&error, ListenError::AlreadyServing { model: Some(model), .. } if model == "toy-model")
    );
    let text = error.to_string();
    assert!(
        text.contains("calla is already serving toy-model") && text.contains("--port"),
        "{text}"
    );

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let begun = Instant::now();
    let error = listen(silent.local_addr().unwrap()).await.unwrap_err();
    assert!(matches!(error, ListenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("another program") && error.to_string().contains("--port"));
    assert!(begun.elapsed() < Duration::from_secs(3));

    let error = listen("192.0.2.1:0".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, ListenError::NoSuchAddress { .. }), "{error}");
}
