//! What is written of a request, and what never is.

use crate::toy::{KEY, Toy, access, head};
use calla_server::http::Limits;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// The log's text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The line that contains `part`, once it is there.
    async fn line(&self, part: &str) -> String {
        for _ in 0..500 {
            if let Some(line) = self.text().lines().find(|line| line.contains(part)) {
                return line.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no line has {part:?}:\n{}", self.text());
    }
}

/// All that is logged by this thread, which runs the server too, while the guard lives.
fn capture() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    (log, guard)
}

#[tokio::test]
async fn a_request_has_one_line_without_query_key_or_body() {
    let (log, _guard) = capture();
    let toy = Toy::start_with(access(&[KEY], &[], &[]), Limits::default()).await;
    let wrong = "sk-wrong-0123456789abcdef";
    let body = r#"{"messages": [{"content": "private text"}]}"#;
    let length = format!("Content-Length: {}", body.len());
    for (key, number, status) in [(KEY, "number-1", 200), (wrong, "number-2", 401)] {
        for header in [format!("Authorization: Bearer {key}"), format!("x-api-key: {key}")] {
            let number = format!("X-Request-Id: {number}");
            let path = "/v1/chat/completions?key=sk-in-query";
            let headers = ["Host: localhost", &header, &number, &length];
            let reply = toy.ask(head("POST", path, &headers) + body).await;
            assert_eq!(reply.status(), status);
        }
    }
    let line = log.line("number-1").await;
    assert!(line.contains("INFO") && line.contains("POST /v1/chat/completions 200 "), "{line}");
    assert!(line.contains(" ms"), "{line}");
    assert!(log.line("number-2").await.contains("401"), "{}", log.text());
    // The HTTP library's own traces count what it read, and show none of it.
    for secret in [KEY, wrong, "sk-in-query", "private text"] {
        assert!(!log.text().contains(secret), "{secret}:\n{}", log.text());
    }
    assert!(!format!("{:?}", access(&[KEY], &[], &[])).contains(KEY));
}

#[tokio::test]
async fn clients_cannot_write_lines_or_colours() {
    let (log, _guard) = capture();
    let toy = Toy::start().await;
    // CSI as one character, a line separator, an override of the direction: bytes that a path may hold.
    let path = "/forged\u{9b}31m\u{2028}\u{202e}%0d%0aINFO";
    let reply = toy.get(path, &["Host: localhost", "X-Request-Id: id\tforged"]).await;
    assert_eq!(reply.status(), 404);
    let line = log.line("GET /forged").await;
    assert!(line.contains("/forged\\u{9b}31m\\u{2028}\\u{202e}%0d%0aINFO"), "{line}");
    assert!(!log.text().contains("id\tforged"));
    let reply = toy.get(&format!("/{}", "x".repeat(5000)), &["Host: localhost"]).await;
    assert_eq!(reply.status(), 404);
    assert!(log.line("GET /xxx").await.len() < 500);
    toy.get("/panic", &["Host: localhost"]).await;
    assert!(log.line("panicked").await.contains("on purpose: secret\\u{1b}[31m"));
    let is_control = |c: char| c.is_control() && c != '\n';
    assert!(!log.text().contains(is_control), "{}", log.text());
}

#[tokio::test]
async fn clients_that_go_away_are_told_apart() {
    let (log, _guard) = capture();
    let toy = Toy::start().await;
    for (path, ending) in [("/wait", "client gone"), ("/stream", "cut off")] {
        let mut client = toy.connect().await;
        client.send(head("GET", path, &["Host: localhost"])).await;
        toy.watch.until_running(1).await;
        if path == "/stream" {
            client.read_until("item 0").await;
        }
        drop(client);
        let line = log.line(&format!("GET {path} ")).await;
        assert!(line.contains(&format!(" ms, {ending} request_id=")), "{line}");
    }
    let mut client = toy.connect().await;
    client.send(head("HEAD", "/health", &["Host: localhost", "X-Request-Id: number-3"])).await;
    client.read_until("\r\n\r\n").await;
    assert!(log.line("number-3").await.contains(" ms request_id="), "{}", log.text());
}
