//! The long haul: everything at once against one server, which then is as it was before.

use crate::crowd::{Crowd, Seen, World};
use crate::figures::Figures;
use crate::health::HealthWatch;
use crate::idle::IdleConnections;
use crate::server::Server;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory that may be held more than before: what the allocator keeps, and the store of responses.
const MEMORY_SLACK: u64 = 64 << 20;
/// Files that may be open more than before.
const FILES_SLACK: usize = 4;

/// How much is asked of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    pub(crate) streams: usize,
    pub(crate) short_requests: usize,
    pub(crate) idle_connections: usize,
    pub(crate) seed: u64,
    /// Greatest 99th percentile and maximum of the times that `/health` takes.
    pub(crate) health_max: (Duration, Duration),
}

/// What a server holds while it is idle.
struct Level {
    resident: Option<u64>,
    files: Option<usize>,
}

impl Level {
    async fn of(server: &Server) -> Self {
        let health = server.idle().await;
        let cache = &health["cache"];
        assert_eq!(cache["slots_used"], cache["snapshots"], "a slot leaked: {health}");
        assert_eq!(
            (&health["status"], &health["faults"]),
            (&Value::from("ready"), &Value::from(0))
        );
        Self { resident: server.resident(), files: server.files() }
    }

    /// The level once connections that were dropped are closed on the server's side too.
    async fn settled(server: &Server, files_idle: Option<usize>) -> Self {
        let start = Instant::now();
        loop {
            let level = Self::of(server).await;
            let settled =
                level.files.zip(files_idle).is_none_or(|(now, before)| now <= before + FILES_SLACK);
            if settled || start.elapsed() > Duration::from_secs(10) {
                return level;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Runs the load and checks what can be seen of it from outside.
pub(crate) async fn run(server: &Server, world: &Arc<World>, size: Size) -> Figures {
    let crowd = Crowd {
        streams: size.streams,
        time: size.warm_up,
        short_requests: size.streams,
        seed: size.seed + 1,
    };
    let files_idle = server.files();
    // Until all memory that is reserved has been touched.
    let seen = crowd.run(world, &server.url).await;
    println!("warm-up: {:.1} s", seen.elapsed.as_secs_f64());
    seen.check();
    let before = Level::settled(server, files_idle).await;
    let counters = Counters::read(server).await;

    let idle = IdleConnections::open(server.port, size.idle_connections).await;
    let files = server.files();
    assert!(files.is_none_or(|files| files >= size.idle_connections), "{files:?} open files");
    let health = HealthWatch::start(&server.url);
    let crowd =
        Crowd { time: size.time, short_requests: size.short_requests, seed: size.seed, ..crowd };
    let seen = crowd.run(world, &server.url).await;
    let health = health.end();
    let (open, closed) = idle.counts();
    assert!(open + open / 10 >= size.idle_connections, "only {open} idle connections are left");
    drop(idle);

    let after = Level::settled(server, before.files).await;
    let counted = Counters::read(server).await.since(&counters);
    let figures = Figures {
        idle_connections: size.idle_connections,
        idle_closed: closed,
        generated: counted.generated,
        prompt: counted.prompt,
        reused: counted.reused,
        health,
        resident: before.resident.zip(after.resident),
        files: before.files.zip(after.files),
        seen,
    };
    // Before anything is judged: figures help to see why.
    println!("{figures}");
    check(&figures, &counted, size);
    server.check_log();
    figures
}

fn check(figures: &Figures, counted: &Counters, size: Size) {
    let seen = &figures.seen;
    seen.check();
    assert!(seen.vanished > 0 && seen.vanished < seen.whole, "a quarter should vanish");
    assert_eq!(seen.short, size.short_requests as u64);
    counted.check(seen);
    match figures.resident {
        Some((before, after)) => assert!(
            after <= before + MEMORY_SLACK,
            "resident memory was {before} bytes before the load and is {after} after it"
        ),
        None => println!("skipped: memory and open files, which only Linux tells"),
    }
    if let Some((before, after)) = figures.files {
        assert!(after <= before + FILES_SLACK, "{before} open files before, {after} after");
    }
    let (p99, max) = size.health_max;
    assert!(
        figures.health_percentile(0.99) <= p99,
        "the 99th percentile of /health exceeds {p99:?}"
    );
    assert!(figures.health_percentile(1.0) <= max, "an answer of /health took more than {max:?}");
}

/// What `/metrics` counts.
struct Counters {
    succeeded: u64,
    failed: u64,
    generated: u64,
    prompt: u64,
    reused: u64,
}

impl Counters {
    async fn read(server: &Server) -> Self {
        for gauge in ["vllm:num_requests_running", "vllm:num_requests_waiting"] {
            assert_eq!(server.counter(gauge).await, Some(0), "{gauge}");
        }
        let count = async |name| server.counter(name).await.expect("a counter without labels");
        Self {
            // Those with labels are not there before they count.
            succeeded: server.counter("vllm:request_success_total").await.unwrap_or(0),
            failed: server.counter("calla_requests_failed_total").await.unwrap_or(0),
            generated: count("vllm:generation_tokens_total").await,
            prompt: count("vllm:prompt_tokens_total").await,
            reused: count("vllm:prefix_cache_hits_total").await,
        }
    }

    fn since(self, before: &Self) -> Self {
        Self {
            succeeded: self.succeeded - before.succeeded,
            failed: self.failed - before.failed,
            generated: self.generated - before.generated,
            prompt: self.prompt - before.prompt,
            reused: self.reused - before.reused,
        }
    }

    /// Checks that all is accounted for. A reply whose client vanished may have been complete.
    fn check(&self, seen: &Seen) {
        let (least, most) =
            (seen.choices + seen.short, seen.choices + seen.short + 2 * seen.vanished);
        let succeeded = self.succeeded;
        assert!(
            (least..=most).contains(&succeeded),
            "{succeeded} successes, {least} to {most} seen"
        );
        assert_eq!(self.failed, 0);
        assert!(self.generated >= seen.tokens + seen.short, "{} tokens", self.generated);
    }
}
