//! A server with the demo checkpoint on a free port, and a client for it.
#![allow(dead_code, unreachable_pub, missing_docs)]

use calla_cpu::Cpu;
use calla_engine::{CutRule, Speculation, StateNeeds};
use calla_ops::{Executor, Runner};
use calla_runtime::{Driver, Notify, engine_config, store_sizes};
use calla_server::{Access, Limits, LoadedModel, Loader, Model, ModelParts, Server, ServerConfig};
use calla_store::Store;
use calla_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use calla_weights::Checkpoint;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tokio_util::sync::CancellationToken;

pub const CONTEXT: usize = 8192;

pub fn demo_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo"))
}

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct Setup {
    pub context: usize,
    pub parallel: usize,
    pub queue: usize,
    pub keep_alive: Duration,
    pub drain: Duration,
    pub idle_unload: Option<Duration>,
    pub disk: Option<PathBuf>,
    pub preserve_thinking: Option<bool>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            context: CONTEXT,
            parallel: 4,
            queue: 64,
            keep_alive: Duration::from_millis(200),
            drain: Duration::from_secs(10),
            idle_unload: None,
            disk: None,
            preserve_thinking: None,
        }
    }
}

/// A running server; dropping it stops it.
pub struct TestServer {
    pub url: String,
    pub client: reqwest::Client,
    stop: CancellationToken,
    serving: Option<std::thread::JoinHandle<()>>,
}

impl TestServer {
    /// Starts a server and waits until it is ready. It has threads of its own, so that it does not depend on
    /// the test's.
    pub fn start(setup: Setup) -> Self {
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        let serving = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let server = Server::start(config(&setup)).await.expect("a free port");
                server.when_loaded().await.expect("the demo loads");
                sender.send(server.address()).expect("the test waits");
                server.run(stopping).await;
            });
        });
        let address = receiver.recv().expect("the server starts");
        Self {
            url: format!("http://{address}"),
            client: reqwest::Client::new(),
            stop,
            serving: Some(serving),
        }
    }

    /// Tells the server to end, without waiting for it.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Sends JSON; gives the status and the answer's JSON.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.client.post(self.url.clone() + path).json(body).send().await;
        let response = response.expect("an answer");
        let status = response.status().as_u16();
        let text = response.text().await.expect("a whole answer");
        let value = serde_json::from_str(&text);
        (status, value.unwrap_or_else(|error| panic!("{error} in {text}")))
    }

    /// Sends JSON, expects success and gives the answer's JSON.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.client.get(self.url.clone() + path).send().await.expect("an answer");
        let status = response.status().as_u16();
        (status, response.json().await.expect("JSON"))
    }

    pub async fn text(&self, path: &str) -> String {
        let response = self.client.get(self.url.clone() + path).send().await.expect("an answer");
        response.text().await.expect("text")
    }

    /// Sends JSON and gives the events of the answer: name and data, and comments as name `:`.
    pub async fn events(&self, path: &str, body: &Value) -> Vec<(String, String)> {
        let response = self.client.post(self.url.clone() + path).json(body).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().expect("ASCII").to_owned();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        read_events(&response.text().await.expect("a whole stream"))
    }

    /// Waits until nothing runs and nothing waits.
    pub async fn idle(&self) {
        let start = Instant::now();
        loop {
            let (_, health) = self.get("/health").await;
            if health["running"] == 0 && health["waiting"] == 0 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "still busy: {health}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            let ended = serving.join();
            if !std::thread::panicking() {
                ended.expect("the server ends in order");
            }
        }
    }
}

/// Events of a stream: name (`message` without one) and data. Comments have the name `:`.
pub fn read_events(text: &str) -> Vec<(String, String)> {
    let mut events = vec![];
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let (mut name, mut data) = ("message".to_owned(), Vec::new());
        for line in block.lines() {
            match line.split_once(':') {
                Some(("event", value)) => name = value.trim_start().to_owned(),
                Some(("data", value)) => data.push(value.strip_prefix(' ').unwrap_or(value)),
                Some(("", value)) => {
                    name = ":".to_owned();
                    data.push(value.trim_start());
                }
                _ => panic!("an odd line in a stream: {line:?}"),
            }
        }
        events.push((name, data.join("\n")));
    }
    events
}

/// The data of all events that are JSON.
pub fn json_events(events: &[(String, String)]) -> Vec<Value> {
    let data = events.iter().filter(|(name, data)| name != ":" && data != "[DONE]");
    data.map(|(_, data)| serde_json::from_str(data).expect("JSON")).collect()
}

/// The demo's text side.
pub fn demo_parts(setup: &Setup) -> ModelParts {
    let dir = demo_dir();
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let defaults = GenerationDefaults::load(&dir).unwrap();
    let mut stop_ids = tokenizer.eos_ids(&[], &defaults);
    stop_ids.extend(tokenizer.token_id("<|im_start|>"));
    ModelParts {
        name: "demo".to_owned(),
        template: ChatTemplate::load(&dir).unwrap(),
        vocab_used: tokenizer.vocab_size(),
        context: setup.context,
        preserve_thinking: setup.preserve_thinking,
        tokenizer,
        defaults,
        stop_ids,
    }
}

pub fn config(setup: &Setup) -> ServerConfig {
    let model = Model::new(demo_parts(setup)).unwrap();
    ServerConfig {
        loader: loader(setup.clone(), model.clone()),
        model,
        idle_unload: setup.idle_unload,
        address: ([127, 0, 0, 1], 0).into(),
        access: Access::new::<&str>(&[], &[], &[]).unwrap(),
        limits: Limits::default(),
        keep_alive: setup.keep_alive,
        drain: setup.drain,
    }
}

pub fn loader(setup: Setup, model: Model) -> Loader {
    Box::new(move |notify| Ok(load(&setup, &model, notify)))
}

fn load(setup: &Setup, model: &Model, notify: Notify) -> LoadedModel {
    let checkpoint = Checkpoint::open(demo_dir()).unwrap();
    let shape = checkpoint.config().shape.clone();
    let needs =
        StateNeeds { sequences: setup.parallel, ..StateNeeds::one_sequence(setup.context, 4) };
    let ops = Cpu::new(shape.clone(), needs.cache_size(&shape, 256 << 20), 1).unwrap();
    let runner = Executor::new(ops, checkpoint.load().unwrap());
    let limits = calla_runtime::Limits {
        context: setup.context,
        running_max: setup.parallel,
        queue_max: setup.queue,
        speculation: Speculation::Off,
        fast_cache: false,
    };
    let tokenizer = &model.parts().tokenizer;
    let markers = ["<|im_start|>", "<tool_response>"];
    let rule = CutRule::new(markers.iter().filter_map(|m| tokenizer.token_id(m)).collect());
    let engine = engine_config(&runner, rule, limits);
    let store = setup.disk.as_deref().map(|dir| store(dir, &runner));
    let driver =
        Driver::with_notify(Box::new(runner), engine, model.compile(), store.into(), notify)
            .unwrap();
    LoadedModel { driver, device: "CPU, 1 thread".to_owned() }
}

fn store(dir: &Path, runner: &dyn Runner) -> Store {
    let limits = calla_store::Limits { bytes: 1 << 30, age: Duration::from_secs(3600) };
    Store::open(dir, "tests", store_sizes(runner), limits, SystemTime::now()).unwrap()
}
