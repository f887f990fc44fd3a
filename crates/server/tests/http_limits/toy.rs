//! A server with a few handlers, and a client that writes bytes.

use axum::extract::Request;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use calla_server::http::sse::{SseItem, sse};
use calla_server::http::{
    Access, JsonBody, Limits, Owner, Peer, RequestId, listen, protect, serve,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// No test waits longer for one thing.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) const KEY: &str = "sk-test-0123456789abcdef";

/// A running server. Dropping it stops it.
pub(crate) struct Toy {
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) watch: Arc<Watch>,
    pub(crate) serving: JoinHandle<usize>,
}

/// What handlers do, seen from outside.
#[derive(Default)]
pub(crate) struct Watch {
    /// Handlers and streams that run now.
    pub(crate) running: AtomicUsize,
    /// Lets `/wait` answer and `/stream` end.
    pub(crate) go: Notify,
}

impl Watch {
    /// Waits until so many handlers run.
    pub(crate) async fn until_running(&self, count: usize) {
        let reached = async {
            while self.running.load(Ordering::SeqCst) != count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(PATIENCE, reached).await.expect("handlers neither begin nor end");
    }
}

/// Counts its handler as running until it is dropped.
struct Running(Arc<Watch>);

impl Running {
    fn new(watch: &Arc<Watch>) -> Self {
        watch.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(watch))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    content: String,
}

fn routes(watch: &Arc<Watch>) -> Router {
    let chat = async |JsonBody(chat): JsonBody<Chat>| {
        let contents: Vec<_> = chat.messages.into_iter().map(|message| message.content).collect();
        Json(json!({"contents": contents}))
    };
    let about = async |request: Request| {
        let of = request.extensions();
        Json(json!({
            "owner": of.get::<Owner>().unwrap().0,
            "id": of.get::<RequestId>().unwrap().0,
            "port": of.get::<Peer>().unwrap().local.port(),
        }))
    };
    let waiter = Arc::clone(watch);
    let wait = async move || {
        let _running = Running::new(&waiter);
        waiter.go.notified().await;
        "done"
    };
    let streamer = Arc::clone(watch);
    let stream = async move || {
        let running = Running::new(&streamer);
        let watch = Arc::clone(&streamer);
        let items = futures_util::stream::unfold((0, running), move |(count, running)| {
            let watch = Arc::clone(&watch);
            async move {
                match count {
                    0 => {}
                    1 => watch.go.notified().await,
                    _ => return None,
                }
                Some((SseItem::data(format!("item {count}")), (count + 1, running)))
            }
        });
        sse(items, Duration::from_millis(50))
    };
    let flooder = Arc::clone(watch);
    let flood = async move || {
        let running = Running::new(&flooder);
        let items = futures_util::stream::unfold(running, async |running| {
            tokio::task::yield_now().await;
            Some((SseItem::data("x".repeat(64 << 10)), running))
        });
        sse(items, Duration::from_secs(5))
    };
    let panic = async || -> Response { panic!("on purpose: {}", "secret\u{1b}[31m") };
    Router::new()
        .route("/", get(async || ([("cache-control", "max-age=60")], "page")))
        .route("/health", get(async || Json(json!({"status": "ready", "model": "toy-model"}))))
        .route("/metrics", get(async || "metrics"))
        .route("/v1/models", get(async || Json(json!({"data": []}))).delete(async || "deleted"))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/messages", post(chat))
        .route("/echo", post(async |body: axum::body::Bytes| body))
        .route("/about", get(about))
        .route("/wait", post(wait.clone()).get(wait))
        .route("/stream", get(stream))
        .route("/flood", get(flood))
        .route("/panic", get(panic))
        .route("/v1/messages/panic", get(panic))
}

pub(crate) fn access(keys: &[&str], hosts: &[&str], origins: &[&str]) -> Access {
    Access::new(keys, hosts, origins).unwrap().with_open_paths(&["/", "/health"])
}

impl Toy {
    /// Without keys, with the default limits.
    pub(crate) async fn start() -> Self {
        Self::start_with(access(&[], &[], &[]), Limits::default()).await
    }

    pub(crate) async fn start_with(access: Access, limits: Limits) -> Self {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address();
        let watch = Arc::new(Watch::default());
        let stop = CancellationToken::new();
        let router = protect(routes(&watch), access, &limits, stop.clone());
        let drain = Duration::from_millis(300);
        let serving = tokio::spawn(serve(listener, router, limits, stop.clone(), drain));
        Self { address, stop, watch, serving }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client(timeout(PATIENCE, TcpStream::connect(self.address)).await.unwrap().unwrap())
    }

    /// What the server answers to these bytes on a connection of their own.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Reply {
        let mut client = self.connect().await;
        client.send(request).await;
        client.reply().await
    }

    /// The answer to a GET with these header lines, of which one is `Host`.
    pub(crate) async fn get(&self, path: &str, headers: &[&str]) -> Reply {
        self.ask(head("GET", path, headers)).await
    }

    /// The answer to a chat completion with this body and these header lines.
    pub(crate) async fn chat(&self, headers: &[&str], body: &str) -> Reply {
        let length = format!("Content-Length: {}", body.len());
        let headers: Vec<_> =
            ["Host: localhost", &length].into_iter().chain(headers.iter().copied()).collect();
        self.ask(head("POST", "/v1/chat/completions", &headers) + body).await
    }
}

impl Drop for Toy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A request's head.
pub(crate) fn head(method: &str, path: &str, headers: &[&str]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    for header in headers {
        head += header;
        head += "\r\n";
    }
    head + "\r\n"
}

/// A connection to the server.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        timeout(PATIENCE, self.0.write_all(bytes.as_ref())).await.unwrap().unwrap();
    }

    /// Reads until what was read contains `text`.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        let mut read = Vec::new();
        while !String::from_utf8_lossy(&read).contains(text) {
            let mut chunk = [0; 4096];
            let count = timeout(PATIENCE, self.0.read(&mut chunk)).await;
            let count = count.unwrap_or_else(|_| panic!("{text:?} does not come")).unwrap();
            assert_ne!(count, 0, "closed before {text:?}: {:?}", String::from_utf8_lossy(&read));
            read.extend(&chunk[..count]);
        }
        String::from_utf8(read).unwrap()
    }

    /// Reads one response, with a body of known length.
    pub(crate) async fn reply(&mut self) -> Reply {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = timeout(PATIENCE, self.0.read_u8()).await.expect("no response comes");
            head.push(byte.unwrap_or_else(|error| {
                panic!("{error} after {:?}", String::from_utf8_lossy(&head))
            }));
        }
        let head = String::from_utf8(head).unwrap();
        let mut reply = Reply { head, body: String::new() };
        if reply.status() != 204 {
            let length = reply.header("content-length").expect("a length").parse().unwrap();
            let mut body = vec![0; length];
            timeout(PATIENCE, self.0.read_exact(&mut body)).await.expect("no body comes").unwrap();
            reply.body = String::from_utf8(body).unwrap();
        }
        reply
    }

    /// Reads until the server closes the connection; what it sent until then.
    pub(crate) async fn rest(&mut self) -> String {
        let mut read = Vec::new();
        let ended =
            timeout(PATIENCE, self.0.read_to_end(&mut read)).await.expect("it is not closed");
        // A reset ends it too.
        let _ = ended;
        String::from_utf8_lossy(&read).into_owned()
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// A header; repeated ones joined by commas.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let values: Vec<_> = lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message of an error in OpenAI's shape, or in Anthropic's.
    pub(crate) fn message(&self) -> String {
        assert_eq!(self.header("content-type").as_deref(), Some("application/json"), "{self:?}");
        let message = self.json()["error"]["message"].as_str().map(str::to_owned);
        message.unwrap_or_else(|| panic!("no message: {self:?}"))
    }
}
