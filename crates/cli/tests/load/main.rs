//! The server under load: 64 streams at a time, short requests, idle connections, clients that vanish, and ends
//! in the middle of it all. Every text is compared with what the same request gets when nothing else runs.
//!
//! The short form takes 10 seconds of load. `CALLA_LOAD_SECONDS=600` is the long form, with the bounds that hold on
//! a machine with nothing else to do.

#![cfg(unix)]

mod client;
mod crowd;
mod figures;
mod health;
mod idle;
mod prompts;
mod reply;
mod restart;
mod server;
mod steady;

use crowd::{Crowd, World};
use server::Server;
use std::sync::Arc;
use std::time::{Duration, Instant};
use steady::Size;

/// From this many seconds on it is the long form.
const LONG_SECONDS: u64 = 300;
/// Files that this process has open beside its connections.
const FILES_SPARE: u64 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_mixed_under_load() {
    let setting = |name: &str, usual: u64| {
        let text = std::env::var(name).ok();
        text.map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}")))
    };
    let time = Duration::from_secs(setting("CALLA_LOAD_SECONDS", 10));
    let is_long = time.as_secs() >= LONG_SECONDS;
    let seed = setting("CALLA_LOAD_SEED", 1);
    println!("CALLA_LOAD_SECONDS={} CALLA_LOAD_SEED={seed}", time.as_secs());

    let files = rlimit::increase_nofile_limit(1 << 16).expect("a limit of open files");
    let ms = Duration::from_millis;
    let size = Size {
        // Until the memory that the server reserves has been touched: a second was too short for that.
        warm_up: Duration::from_secs(if is_long { 120 } else { 8 }),
        time,
        streams: 64,
        short_requests: if is_long { 5000 } else { 300 },
        idle_connections: usize::try_from(files.saturating_sub(FILES_SPARE)).unwrap().min(1000),
        seed,
        // Machines that CI rents are small and have busy neighbours.
        health_max: if is_long { (ms(50), ms(250)) } else { (ms(250), ms(1000)) },
    };
    let server = Server::start(0, None);
    let start = Instant::now();
    let world = World::alone(&server.url, if is_long { 64 } else { 24 }, 16).await;
    println!("each request alone: {:.1} s", start.elapsed().as_secs_f64());
    let world = Arc::new(world);
    steady::run(&server, &world, size).await;
    drop(server);
    let crowd = Crowd {
        streams: size.streams,
        time: Duration::from_secs(if is_long { 20 } else { 3 }),
        short_requests: size.streams,
        seed: seed + 2,
    };
    restart::run(&world, crowd).await;
}
