//! Many clients at once, and what they saw.

use crate::client::{End, Streamed, Vanish, stream};
use crate::prompts::{Prompt, prompts, short_requests};
use crate::reply::Reply;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Share of the clients that vanish.
const VANISHING: f64 = 0.25;
/// Share of the requests that find nothing in the cache.
const SALTED: f64 = 0.1;
/// Clients with short requests.
const SHORT_CLIENTS: usize = 16;

/// What is asked, and what is answered when nothing else runs.
pub(crate) struct World {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) replies: Vec<Reply>,
    short_requests: Vec<Value>,
    short_replies: Vec<Value>,
}

/// A crowd's size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    /// Streams at a time.
    pub(crate) streams: usize,
    /// For so long new streams begin.
    pub(crate) time: Duration,
    /// Short requests, which go on beside the streams.
    pub(crate) short_requests: usize,
    pub(crate) seed: u64,
}

/// What a crowd saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Streams that came to their end, and replies in them.
    pub(crate) whole: u64,
    pub(crate) choices: u64,
    pub(crate) vanished: u64,
    /// Of those, the ones that had received text.
    pub(crate) vanished_late: u64,
    /// Streams that were refused, or sent in vain.
    pub(crate) turned_away: u64,
    pub(crate) broken: u64,
    /// Short requests that were answered.
    pub(crate) short: u64,
    /// Tokens of whole streams.
    pub(crate) tokens: u64,
    pub(crate) first_texts: Vec<Duration>,
    pub(crate) short_times: Vec<Duration>,
    /// What came and should not have.
    pub(crate) wrong: Vec<String>,
    /// What refusals and silences said.
    pub(crate) refusals: Vec<String>,
    /// What streams that broke off said at their end.
    pub(crate) breaks: Vec<String>,
    pub(crate) elapsed: Duration,
}

impl World {
    /// Asks everything once, one thing after the other.
    pub(crate) async fn alone(url: &str, prompts_count: usize, short_count: usize) -> Self {
        let client = reqwest::Client::new();
        let prompts = prompts(prompts_count);
        let mut replies = vec![];
        for prompt in &prompts {
            let streamed = stream(&client, url, prompt, None, None).await;
            assert!(matches!(streamed.end, End::Whole), "{:?} to {}", streamed.end, prompt.body);
            assert!(!streamed.reply.parts.is_empty() && streamed.reply.tokens > 0);
            replies.push(streamed.reply);
        }
        let short_requests = short_requests(short_count);
        let mut short_replies = vec![];
        for request in &short_requests {
            short_replies.push(ask(&client, url, request).await.expect("an answer"));
        }
        Self { prompts, replies, short_requests, short_replies }
    }

    /// Asks everything again, several prompts at a time, and checks that the replies are the same.
    pub(crate) async fn again(self: &Arc<Self>, url: &str) {
        let client = reqwest::Client::new();
        let mut asked = JoinSet::new();
        for index in 0..self.prompts.len() {
            let (world, client, url) = (Arc::clone(self), client.clone(), url.to_owned());
            asked.spawn(async move {
                let streamed = stream(&client, &url, &world.prompts[index], None, None).await;
                assert!(matches!(streamed.end, End::Whole), "{:?}", streamed.end);
                assert_eq!(streamed.reply.differs(&world.replies[index]), None);
            });
        }
        asked.join_all().await;
    }
}

/// Sends a short request and gives what its reply is made of.
async fn ask(client: &reqwest::Client, url: &str, request: &Value) -> Result<Value, String> {
    let sent = client.post(url.to_owned() + "/v1/chat/completions").json(request).send().await;
    let answer = sent.map_err(|error| format!("{error:?}"))?;
    let (status, text) = (answer.status(), answer.text().await.map_err(|error| error.to_string())?);
    if status != 200 {
        return Err(format!("{status}: {text}"));
    }
    let answer: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok(answer["choices"].clone())
}

impl Crowd {
    /// Lets the crowd loose and waits until all have what they wanted.
    pub(crate) async fn run(self, world: &Arc<World>, url: &str) -> Seen {
        let start = Instant::now();
        let client = reqwest::Client::new();
        let mut clients = JoinSet::new();
        for number in 0..self.streams {
            let (world, client, url) = (Arc::clone(world), client.clone(), url.to_owned());
            let random = SmallRng::seed_from_u64(self.seed.wrapping_mul(1000) + number as u64);
            clients.spawn(streams(world, client, url, random, start + self.time));
        }
        let left = Arc::new(AtomicUsize::new(self.short_requests));
        for number in 0..SHORT_CLIENTS {
            let (world, client, url) = (Arc::clone(world), client.clone(), url.to_owned());
            let (left, all) = (Arc::clone(&left), self.short_requests);
            clients.spawn(async move {
                let mut seen = Seen::default();
                loop {
                    let before = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
                    let Ok(before) = before else { return seen };
                    // Evenly over the time.
                    let due = self.time.mul_f64((all - before) as f64 / all as f64);
                    tokio::time::sleep_until((start + due).into()).await;
                    seen.short_request(&world, &client, &url, before + number).await;
                }
            });
        }
        let mut seen = Seen::default();
        while let Some(client) = clients.join_next().await {
            seen.add(client.expect("a client does not panic"));
        }
        seen.elapsed = start.elapsed();
        seen.first_texts.sort_unstable();
        seen.short_times.sort_unstable();
        seen
    }
}

/// One client: stream after stream.
async fn streams(
    world: Arc<World>,
    client: reqwest::Client,
    url: String,
    mut random: SmallRng,
    until: Instant,
) -> Seen {
    let mut seen = Seen::default();
    while Instant::now() < until {
        let index = random.random_range(0..world.prompts.len());
        let vanish = random.random_bool(VANISHING).then(|| {
            if random.random_bool(0.5) {
                Vanish::After(Duration::from_millis(random.random_range(0..2000)))
            } else {
                Vanish::AtEvent(random.random_range(1..40))
            }
        });
        let salt = random.random_bool(SALTED).then(|| random.random());
        let prompt = &world.prompts[index];
        let streamed = stream(&client, &url, prompt, salt, vanish).await;
        let failed = matches!(streamed.end, End::Refused(..) | End::Unanswered(_) | End::Broken(_));
        seen.streamed(prompt, streamed, &world.replies[index]);
        if failed {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    seen
}

impl Seen {
    fn streamed(&mut self, prompt: &Prompt, streamed: Streamed, expected: &Reply) {
        let Streamed { reply, end, first_text } = streamed;
        let wrong = match &end {
            End::Whole => reply.differs(expected),
            _ => reply.strays(expected),
        };
        self.wrong.extend(wrong.map(|wrong| format!("{wrong} to {}", prompt.body)));
        self.first_texts.extend(first_text);
        match end {
            End::Whole => {
                self.whole += 1;
                self.choices += prompt.choices();
                self.tokens += reply.tokens;
            }
            End::Vanished => {
                self.vanished += 1;
                self.vanished_late += u64::from(first_text.is_some());
            }
            End::Refused(status, text) => {
                self.turned_away += 1;
                self.refusals.push(format!("{status}: {text}"));
            }
            End::Unanswered(error) => {
                self.turned_away += 1;
                self.refusals.push(error);
            }
            End::Broken(error) => {
                self.broken += 1;
                self.breaks.push(format!("{error} after {:?} to {}", reply.parts, prompt.body));
            }
        }
    }

    async fn short_request(
        &mut self,
        world: &World,
        client: &reqwest::Client,
        url: &str,
        number: usize,
    ) {
        let index = number % world.short_requests.len();
        let start = Instant::now();
        match ask(client, url, &world.short_requests[index]).await {
            Ok(reply) => {
                self.short += 1;
                self.short_times.push(start.elapsed());
                if reply != world.short_replies[index] {
                    let expected = &world.short_replies[index];
                    self.wrong.push(format!("{reply} instead of {expected}"));
                }
            }
            Err(error) => self.refusals.push(error),
        }
    }

    fn add(&mut self, other: Self) {
        self.whole += other.whole;
        self.choices += other.choices;
        self.vanished += other.vanished;
        self.vanished_late += other.vanished_late;
        self.turned_away += other.turned_away;
        self.broken += other.broken;
        self.short += other.short;
        self.tokens += other.tokens;
        self.first_texts.extend(other.first_texts);
        self.short_times.extend(other.short_times);
        self.wrong.extend(other.wrong);
        self.refusals.extend(other.refusals);
        self.breaks.extend(other.breaks);
    }

    /// Checks that nothing was lost or mixed, and nothing refused or broken.
    pub(crate) fn check(&self) {
        self.check_texts();
        for failures in [&self.refusals, &self.breaks] {
            let (count, first) = (failures.len(), failures.first());
            assert!(failures.is_empty(), "{count} failures, such as {first:?}");
        }
    }

    /// Checks that nothing was lost or mixed in what came.
    pub(crate) fn check_texts(&self) {
        let wrong = &self.wrong;
        assert!(wrong.is_empty(), "{} wrong replies, such as {:?}", wrong.len(), wrong.first());
    }
}
