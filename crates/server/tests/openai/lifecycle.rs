//! Start, rest and end of a server.

use crate::chat::{CHAT, ask, with};
use crate::common::{Setup, TestServer, config};
use calla_server::Server;
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_model_is_unloaded_and_comes_back() {
    let setup = Setup { idle_unload: Some(Duration::from_millis(300)), ..Setup::default() };
    let server = TestServer::start(setup);
    let before = server.ok(CHAT, &ask("12 + 30 = ?")).await;
    let start = Instant::now();
    loop {
        let (status, health) = server.get("/health").await;
        if health["status"] == "unloaded" {
            assert_eq!((status, &health["cache"]), (200, &json!(null)));
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{health}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = server.ok(CHAT, &ask("12 + 30 = ?")).await;
    assert_eq!(after["choices"], before["choices"]);
    assert_eq!(after["cache"]["miss"], "cold");
    // Counters go on where they were.
    let metrics = server.text("/metrics").await;
    let total = before["usage"]["prompt_tokens"].as_u64().unwrap() * 2;
    assert!(
        metrics.contains(&format!("vllm:prompt_tokens_total{{model_name=\"demo\"}} {total}")),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prefix_cache_outlives_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { disk: Some(dir.path().to_owned()), ..Setup::default() };
    let words: String = (0..100).map(|i| format!("Number {i} follows. ")).collect();
    let request = with(ask(&words), &json!({"max_tokens": 8}));
    let server = TestServer::start(setup.clone());
    let cold = server.ok(CHAT, &request).await;
    drop(server);
    let server = TestServer::start(setup);
    let warm = server.ok(CHAT, &request).await;
    assert_eq!(warm["choices"], cold["choices"]);
    assert_eq!(warm["cache"]["from_disk"], true);
    assert!(warm["cache"]["cached_tokens"].as_u64().unwrap() > 256, "{warm}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_hears_of_memory_pressure() {
    let mut setup = config(&Setup::default());
    let mut load = std::mem::replace(&mut setup.loader, Box::new(|_| Err("not yet".to_owned())));
    let (tell, told) = std::sync::mpsc::channel();
    setup.loader = Box::new(move |notify| {
        let loaded = load(notify)?;
        tell.send(loaded.driver.pressure()).unwrap();
        Ok(loaded)
    });
    let server = Server::start(setup).await.unwrap();
    let url = format!("http://{}", server.address());
    server.when_loaded().await.unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn(server.run(stop.clone()));
    let client = reqwest::Client::new();
    let reply = async || {
        let answer = client.post(url.clone() + CHAT).json(&ask("12 + 30 = ?")).send().await;
        let answer: serde_json::Value = answer.unwrap().json().await.unwrap();
        (answer["choices"].clone(), answer["cache"].clone())
    };
    let health = async || {
        let answer = client.get(url.clone() + "/health").send().await.unwrap();
        answer.json::<serde_json::Value>().await.unwrap()
    };
    let (before, _) = reply().await;
    assert!(health().await["cache"]["snapshots"].as_u64().unwrap() > 0);

    told.recv().unwrap().raise(calla_runtime::PressureLevel::Critical);
    let start = Instant::now();
    while health().await["cache"]["snapshots"] != 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", health().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let metrics = client.get(url.clone() + "/metrics").send().await.unwrap().text().await.unwrap();
    let counter = "calla_prefix_cache_gave_way_total{model_name=\"demo\"} 1";
    assert!(metrics.contains(counter), "{metrics}");
    let (after, cache) = reply().await;
    assert_eq!((after, &cache["miss"]), (before, &json!("evicted")));
    stop.cancel();
    assert_eq!(serving.await.unwrap(), 0, "no stream was cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_lets_its_streams_finish() {
    let server = TestServer::start(Setup::default());
    let more = json!({"stream": true, "ignore_eos": true, "max_tokens": 100});
    let request =
        server.client.post(server.url.clone() + CHAT).json(&with(ask("12 + 30 = ?"), &more));
    let mut response = request.send().await.unwrap();
    assert!(response.chunk().await.unwrap().is_some());
    server.stop();
    let mut rest = String::new();
    while let Some(bytes) = response.chunk().await.unwrap() {
        rest.push_str(&String::from_utf8_lossy(&bytes));
    }
    assert!(rest.trim_end().ends_with("data: [DONE]"), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_do_not_finish_in_time_are_told_why() {
    let setup = Setup { drain: Duration::from_millis(300), ..Setup::default() };
    let server = TestServer::start(setup);
    let more = json!({"stream": true, "ignore_eos": true});
    let request =
        server.client.post(server.url.clone() + CHAT).json(&with(ask("12 + 30 = ?"), &more));
    let mut response = request.send().await.unwrap();
    assert!(response.chunk().await.unwrap().is_some());
    let start = Instant::now();
    server.stop();
    let mut rest = String::new();
    while let Some(bytes) = response.chunk().await.unwrap() {
        rest.push_str(&String::from_utf8_lossy(&bytes));
    }
    let last = rest.trim_end().rsplit("data: ").next().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["error"]["code"], "shutting_down", "{last}");
    drop(server);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_is_told() {
    let mut setup = config(&Setup::default());
    setup.loader = Box::new(|_| Err("the weights are gone".to_owned()));
    let server = Server::start(setup).await.unwrap();
    let url = format!("http://{}", server.address());
    let error = server.when_loaded().await.unwrap_err();
    assert_eq!(error.to_string(), "the weights are gone");
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = tokio::spawn(server.run(stop.clone()));
    let client = reqwest::Client::new();
    let health = client.get(url.clone() + "/health").send().await.unwrap();
    assert_eq!(health.status(), 503);
    let health: serde_json::Value = health.json().await.unwrap();
    assert_eq!(health["status"], "degraded");
    assert!(health["reason"].as_str().unwrap().contains("the weights are gone"));
    let answer = client.post(url + CHAT).json(&ask("12 + 30 = ?")).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    stop.cancel();
    assert_eq!(serving.await.unwrap(), 0, "no stream was cut");
}
