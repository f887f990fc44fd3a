//! Ends of a server in the middle of its work: `kill -9`, SIGTERM, and what the next one finds on disk.

use crate::crowd::{Crowd, World};
use crate::server::Server;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The server's default time for streams to end is 30 s.
const END_TIME: Duration = Duration::from_secs(60);

/// Kills a server under load, starts it again in its place, ends it in order under load, and starts it once
/// more.
pub(crate) async fn run(world: &Arc<World>, crowd: Crowd) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(0, Some(dir.path()));
    let port = server.port;
    let loaded = {
        let (world, url) = (Arc::clone(world), server.url.clone());
        tokio::spawn(async move { crowd.run(&world, &url).await })
    };
    tokio::time::sleep(crowd.time / 2).await;
    server.kill();
    let seen = loaded.await.expect("the crowd does not panic");
    // What came before the end was right all the same.
    seen.check_texts();
    assert!(seen.broken > 0, "it was killed in the middle of streams");
    let (whole, broken) = (seen.whole, seen.broken);
    println!(
        "kill -9: {whole} streams came to their end before it, {broken} broke off, no wrong text"
    );

    let mut server = Server::start(port, Some(dir.path()));
    assert_eq!(server.port, port);
    let start = Instant::now();
    world.again(&server.url).await;
    let (asked, seconds) = (world.prompts.len(), start.elapsed().as_secs_f64());
    println!("restart after kill -9: {asked} replies as before, in {seconds:.1} s");

    let loaded = {
        let (world, url) = (Arc::clone(world), server.url.clone());
        tokio::spawn(async move { crowd.run(&world, &url).await })
    };
    tokio::time::sleep(crowd.time / 2).await;
    let start = Instant::now();
    server.terminate();
    // Waiting blocks, and the crowd needs the threads.
    let (server, status) = tokio::task::spawn_blocking(move || {
        let status = server.wait(END_TIME);
        (server, status)
    })
    .await
    .expect("the server ends");
    let seconds = start.elapsed().as_secs_f64();
    let seen = loaded.await.expect("the crowd does not panic");
    seen.check_texts();
    let (whole, away, broken) = (seen.whole, seen.turned_away, seen.broken);
    println!(
        "SIGTERM: status {status} after {seconds:.1} s, {whole} streams whole, {broken} cut, {away} turned away"
    );
    assert!(status.success(), "{status}: {}", server.said());
    assert_eq!(broken, 0, "streams that had begun were cut, such as {:?}", seen.breaks.first());
    server.check_log();
    drop(server);

    let server = Server::start(port, Some(dir.path()));
    let health = server.idle().await;
    let files = health["cache"]["files"].as_u64().expect("a number of files");
    assert!(files > 0, "no prefix was saved: {health}");
    let (cached, from_disk) = recalled(world, &server.url).await;
    println!(
        "restart after SIGTERM: {files} saved prefixes, {cached} tokens of long prompts reused"
    );
    assert!(from_disk, "nothing came back from the disk");
    server.check_log();
}

/// Asks the longest prompts for a first token; gives how many tokens of them were reused, and whether any came
/// from the disk.
async fn recalled(world: &World, url: &str) -> (u64, bool) {
    let client = reqwest::Client::new();
    let long =
        world.prompts.iter().filter(|prompt| prompt.body["messages"].to_string().len() > 4000);
    let (mut cached, mut from_disk) = (0, false);
    for prompt in long {
        let mut body = prompt.body.clone();
        body["stream"] = Value::from(false);
        let sent = client.post(url.to_owned() + prompt.dialect.path()).json(&body).send().await;
        let answer: Value = sent.expect("an answer").json().await.expect("JSON");
        cached += answer["cache"]["cached_tokens"].as_u64().unwrap_or_default();
        from_disk |= answer["cache"]["from_disk"] == true;
    }
    (cached, from_disk)
}
