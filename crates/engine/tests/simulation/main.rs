//! Random schedules of requests on a toy backend, each reproducible from its seed.
//!
//! Arrivals, cancels, branches, edits, evictions and device faults at random; after each, the engine's
//! promises are checked: every reply equals that of a cold run, no token is lost or doubled, pages and
//! slots balance to zero, progress is made. `CALLA_SIMULATIONS=1000000` runs a long campaign.

mod toy;

use calla_engine::cuts::CutRule;
use calla_engine::engine::{Engine, EngineConfig, Output, SubmitError, Usage};
use calla_engine::prefix_cache::CacheKey;
use calla_engine::sequence::{FinishReason, Request, RequestId};
use calla_engine::step::Arithmetic;
use calla_ops::CacheSize;
use calla_ops::sample::Sampling;
use std::collections::HashMap;
use toy::{MARKERS, STOP, Toy, VOCAB, mix};

/// A counter-based source of choices.
struct Random {
    seed: u64,
    count: u64,
}

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        (mix(self.seed, self.count) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// One simulated world.
struct World {
    random: Random,
    engine: Engine,
    toy: Toy,
    arithmetic: Arithmetic,
    context: usize,
    /// Conversations that later requests extend, edit and branch from.
    histories: Vec<Vec<u32>>,
    live: HashMap<RequestId, Live>,
    tallies: Tallies,
}

/// A request that has not ended.
struct Live {
    request: Request,
    reply: Vec<u32>,
    cancelled: bool,
}

#[derive(Default)]
struct Tallies {
    finished: usize,
    reused_tokens: usize,
    failed: usize,
    cancelled: usize,
    refused: usize,
    steps: usize,
}

fn config(random: &mut Random, arithmetic: Arithmetic) -> EngineConfig {
    let running_max = 1 + random.below(4);
    let context = 128 + 64 * random.below(6);
    EngineConfig {
        cache: CacheSize {
            pages: context.div_ceil(64) + random.below(30),
            slots: running_max + random.below(8),
        },
        vocab_size: VOCAB,
        context,
        running_max,
        queue_max: 1 + random.below(6),
        slice_rows: [1, 16, 64, 100, 256][random.below(5)],
        rule: CutRule::new(MARKERS.to_vec()),
        arithmetic,
        snapshot_interval: [64, 128, 1024][random.below(3)],
        remembered_tokens_max: [200, 5000][random.below(2)],
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random { seed, count: 0 };
        let arithmetic = if random.one_in(2) { Arithmetic::Uniform } else { Arithmetic::Split };
        let config = config(&mut random, arithmetic);
        Self {
            toy: Toy::new(config.cache, arithmetic),
            context: config.context,
            engine: Engine::new(config),
            random,
            arithmetic,
            histories: vec![],
            live: HashMap::new(),
            tallies: Tallies::default(),
        }
    }

    fn run(mut self, arrivals: usize) -> Tallies {
        let mut left = arrivals;
        let mut idle = 0;
        while left > 0 || !self.live.is_empty() {
            if left > 0 && self.random.one_in(3) {
                self.arrive();
                left -= 1;
            }
            if self.random.one_in(40) {
                self.cancel();
            }
            if self.random.one_in(200) {
                self.engine.drop_cache();
            }
            let progressed = self.step();
            self.drain();
            idle = if progressed || left > 0 { 0 } else { idle + 1 };
            assert!(idle < 3, "requests wait but the engine has nothing to run");
        }
        self.engine.drop_cache();
        // State operations may be left over; nothing else.
        if let Some(step) = self.engine.next_step() {
            assert!(step.batch.is_none());
        }
        let occupancy = self.engine.occupancy();
        assert_eq!((occupancy.pages_used, occupancy.slots_used, occupancy.snapshots), (0, 0, 0));
        assert_eq!((self.engine.running(), self.engine.waiting()), (0, 0));
        self.tallies
    }

    /// A request on a new, an extended, an edited or a branched conversation.
    fn arrive(&mut self) {
        let mut prompt = match self.random.below(4) {
            _ if self.histories.is_empty() => vec![],
            0 => vec![],
            1 => {
                // An edit: cut somewhere and go on differently.
                let mut history = self.pick_history();
                history.truncate(self.random.below(history.len()).max(1));
                history
            }
            _ => self.pick_history(),
        };
        for _ in 0..1 + self.random.below(3) {
            prompt.push(MARKERS[self.random.below(2)]);
            for _ in 0..self.random.below(90) {
                prompt.push(3 + self.random.below(VOCAB - 3) as u32);
            }
        }
        let request = Request {
            prompt,
            key: CacheKey { owner: "o".into(), name: self.random.below(2).to_string() },
            sampling: Sampling {
                temperature: if self.random.one_in(2) { 0.0 } else { 1.0 },
                seed: self.random.below(1000) as u64,
                ..Sampling::greedy()
            },
            max_tokens: self.random.below(40),
            stop_ids: vec![STOP],
            vocab_used: VOCAB - 3,
        };
        match self.engine.submit(request.clone()) {
            Ok(id) => {
                self.live.insert(id, Live { request, reply: vec![], cancelled: false });
            }
            Err(SubmitError::ContextLength { .. } | SubmitError::QueueFull { .. }) => {
                self.tallies.refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn pick_history(&mut self) -> Vec<u32> {
        let i = self.random.below(self.histories.len());
        self.histories[i].clone()
    }

    fn cancel(&mut self) {
        let mut ids: Vec<RequestId> = self.live.keys().copied().collect();
        ids.sort_unstable();
        if !ids.is_empty() {
            let id = ids[self.random.below(ids.len())];
            self.live.get_mut(&id).unwrap().cancelled = true;
            self.engine.cancel(id);
        }
    }

    fn step(&mut self) -> bool {
        let Some(step) = self.engine.next_step() else { return false };
        self.tallies.steps += 1;
        let fail = self.random.one_in(150);
        // A cancel may arrive while the step is on the device.
        if step.batch.is_some() && self.random.one_in(30) {
            self.cancel();
        }
        if let Some(result) = self.toy.run(&step, fail) {
            self.engine.complete(result);
        }
        true
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll() {
            match output {
                Output::Prefill { id, done, total } => {
                    assert!(done <= total && self.live.contains_key(&id));
                }
                Output::Token { id, token } => {
                    self.live.get_mut(&id).expect("a live request").reply.push(token);
                }
                Output::Finished { id, reason, usage } => self.finished(id, reason, usage),
                Output::Failed { id, .. } => {
                    self.live.remove(&id).expect("a live request");
                    self.tallies.failed += 1;
                }
            }
        }
    }

    fn finished(&mut self, id: RequestId, reason: FinishReason, usage: Usage) {
        let live = self.live.remove(&id).expect("a live request");
        assert_eq!(usage.completion_tokens, live.reply.len());
        assert_eq!(usage.prompt_tokens, live.request.prompt.len());
        assert!(usage.reuse.reused < live.request.prompt.len());
        assert!(usage.reuse.reused <= usage.reuse.common);
        assert_eq!(reason == FinishReason::Cancelled, live.cancelled);
        let (cold, cold_reason) = cold_run(&live.request, self.arithmetic);
        if reason == FinishReason::Cancelled {
            self.tallies.cancelled += 1;
            assert!(
                cold.starts_with(&live.reply),
                "{reason:?} {usage:?} {:?} {cold:?} {:?}",
                live.reply,
                live.request
            );
        } else if reason == FinishReason::ContextFull {
            // The cold world has a larger context.
            assert!(
                cold.starts_with(&live.reply),
                "{reason:?} {usage:?} {:?} {cold:?} {:?}",
                live.reply,
                live.request
            );
            assert!(live.request.prompt.len() + live.reply.len() > self.context);
        } else {
            self.tallies.finished += 1;
            assert_eq!(live.reply, cold, "warm and cold replies differ: {usage:?}");
            assert_eq!(reason, cold_reason);
        }
        self.tallies.reused_tokens += usage.reuse.reused;
        let mut history = live.request.prompt;
        history.extend(live.reply);
        self.histories.push(history);
    }
}

/// The reply of a request alone, in a world without history.
fn cold_run(request: &Request, arithmetic: Arithmetic) -> (Vec<u32>, FinishReason) {
    let cache = CacheSize { pages: 40, slots: 1 };
    let mut toy = Toy::new(cache, arithmetic);
    let mut engine = Engine::new(EngineConfig {
        cache,
        vocab_size: VOCAB,
        context: 40 * 64,
        running_max: 1,
        queue_max: 1,
        slice_rows: 64,
        rule: CutRule::new(MARKERS.to_vec()),
        arithmetic,
        snapshot_interval: 1 << 20,
        remembered_tokens_max: 0,
    });
    engine.submit(request.clone()).unwrap();
    let mut reply = vec![];
    loop {
        if let Some(result) = engine.next_step().and_then(|step| toy.run(&step, false)) {
            engine.complete(result);
        }
        while let Some(output) = engine.poll() {
            match output {
                Output::Token { token, .. } => reply.push(token),
                Output::Finished { reason, .. } => return (reply, reason),
                _ => {}
            }
        }
    }
}

#[test]
fn random_schedules_keep_every_promise() {
    let count: u64 =
        std::env::var("CALLA_SIMULATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let first: u64 =
        std::env::var("CALLA_SIMULATION_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut total = Tallies::default();
    for seed in first..first + count {
        let result = std::panic::catch_unwind(|| World::new(seed).run(20));
        let tallies = match result {
            Ok(tallies) => tallies,
            Err(cause) => {
                eprintln!("CALLA_SIMULATION_SEED={seed} CALLA_SIMULATIONS=1 repeats this");
                std::panic::resume_unwind(cause);
            }
        };
        total.finished += tallies.finished;
        total.reused_tokens += tallies.reused_tokens;
        total.failed += tallies.failed;
        total.cancelled += tallies.cancelled;
        total.refused += tallies.refused;
        total.steps += tallies.steps;
    }
    println!(
        "{count} schedules: {} steps, {} finished, {} tokens reused, {} failed, {} cancelled, {} refused",
        total.steps,
        total.finished,
        total.reused_tokens,
        total.failed,
        total.cancelled,
        total.refused
    );
    // A simulation that never reaches a case proves nothing about it.
    for reached in
        [total.finished, total.reused_tokens, total.failed, total.cancelled, total.refused]
    {
        assert!(reached as u64 >= count / 10);
    }
}
