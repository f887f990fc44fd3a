//! A watch on `/health`: asked every 20 ms from a thread of its own, whether or not earlier answers have come.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_millis(20);
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The watch while it runs.
pub(crate) struct HealthWatch {
    stop: CancellationToken,
    thread: JoinHandle<Vec<Duration>>,
}

impl HealthWatch {
    pub(crate) fn start(url: &str) -> Self {
        let (url, stop) = (url.to_owned() + "/health", CancellationToken::new());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(watch(&url, &stopped))
        });
        Self { stop, thread }
    }

    /// Ends the watch and gives the time of each answer, from the least to the greatest.
    pub(crate) fn end(self) -> Vec<Duration> {
        self.stop.cancel();
        let mut times = self.thread.join().expect("every answer comes and is 200");
        times.sort_unstable();
        times
    }
}

async fn watch(url: &str, stop: &CancellationToken) -> Vec<Duration> {
    let client = reqwest::Client::builder().timeout(ANSWER_TIME).build().expect("a client");
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut asked = JoinSet::new();
    let mut times = vec![];
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(time) = asked.join_next() => times.push(time.expect("an answer")),
            _ = ticks.tick() => {
                let request = client.get(url);
                asked.spawn(async move {
                    let start = Instant::now();
                    let answer = request.send().await.expect("an answer");
                    assert_eq!(answer.status(), 200);
                    answer.bytes().await.expect("a whole answer");
                    start.elapsed()
                });
            }
        }
    }
    times.extend(asked.join_all().await);
    times
}
