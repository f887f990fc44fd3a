//! Conversations over time on four layers at the published model's widths, with random weights: what is warm,
//! drafted, branched or loaded from disk gives the tokens of a cold run, bit for bit.
//!
//! Fewer experts and a smaller vocabulary than published keep the weights at 0.3 GB.

use calla_cpu::Cpu;
use calla_engine::{
    CacheKey, CutRule, Level, Miss, Output, Request, Speculation, StateNeeds, Usage,
};
use calla_model::Shape;
use calla_ops::{Executor, Runner};
use calla_runtime::{Driver, Limits, PressureLevel, Turn, engine_config, store_sizes};
use calla_store::Store;
use calla_testkit::weights::{Formats, network};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Opens a turn.
const MARKER: u32 = 1;
const VOCAB: usize = 4096;
const CONTEXT: usize = 1024;

fn shape() -> Shape {
    Shape { vocab_size: VOCAB, experts: 32, ..Shape::full(4) }
}

fn driver(depth: usize, disk: Option<&Path>) -> Driver {
    let shape = shape();
    let needs = StateNeeds {
        checkpoint_slots: depth,
        drafting: depth > 0,
        ..StateNeeds::one_sequence(CONTEXT, 4)
    };
    let size = needs.cache_size(&shape, 400 << 20);
    let ops = Cpu::new(shape.clone(), size, 0).unwrap();
    let executor = Executor::new(ops, network(&shape, Formats::Published, 7));
    let executor = if depth > 0 { executor.with_drafts().unwrap() } else { executor };
    let limits = Limits {
        context: CONTEXT,
        running_max: 1,
        queue_max: 1,
        speculation: if depth > 0 { Speculation::Fixed(depth) } else { Speculation::Off },
        fast_cache: false,
    };
    let config = engine_config(&executor, CutRule::new(vec![MARKER]), limits);
    let store = disk.map(|dir| store(dir, &executor));
    let compile = Box::new(|_: &_| Err("no grammars here".to_owned()));
    Driver::new(Box::new(executor), config, compile, store.into()).unwrap()
}

fn store(dir: &Path, runner: &dyn Runner) -> Store {
    let sizes = store_sizes(runner);
    let limits = calla_store::Limits { bytes: 4 << 30, age: Duration::from_secs(3600) };
    Store::open(dir, &runner.arithmetic(), sizes, limits, SystemTime::now()).unwrap()
}

/// The reply to a prompt.
fn run(driver: &mut Driver, key: &str, prompt: &[u32], seed: u64) -> (Vec<u32>, Usage) {
    let key = CacheKey { owner: "tests".to_owned(), name: key.to_owned() };
    let mut request = Request { key, ..Request::new(prompt.to_vec(), 8) };
    if seed > 0 {
        request.sampling.temperature = 1.0;
        request.sampling.seed = seed;
    }
    driver.engine().submit(request).unwrap();
    let mut reply = vec![];
    loop {
        let turn = driver.turn(true);
        while let Some(output) = driver.engine().poll() {
            match output {
                Output::Prefill { .. } => {}
                Output::Token { token, .. } => reply.push(token),
                Output::Finished { usage, .. } => return (reply, usage),
                Output::Failed { failure, .. } => panic!("{failure}"),
            }
        }
        assert_ne!(turn, Turn::Idle, "the request is lost");
    }
}

/// Sessions that remember, and one that does not.
struct Timeline {
    warm: Driver,
    cold: Driver,
    count: u32,
}

impl Timeline {
    /// A turn of `len` tokens that no other has.
    fn turn(&mut self, len: u32) -> Vec<u32> {
        self.count += 1;
        let token = |i| 2 + (self.count * 7919 + i * 104_729) % (VOCAB as u32 - 2);
        std::iter::once(MARKER).chain((0..len).map(token)).collect()
    }

    /// The reply to a prompt, of which at most `new_max` tokens may be computed.
    fn ask(&mut self, prompt: &[u32], new_max: usize, seed: u64) -> (Vec<u32>, Usage) {
        self.ask_as("a", prompt, new_max, seed)
    }

    fn ask_as(
        &mut self,
        key: &str,
        prompt: &[u32],
        new_max: usize,
        seed: u64,
    ) -> (Vec<u32>, Usage) {
        let (warm, usage) = run(&mut self.warm, key, prompt, seed);
        self.cold.engine().forget();
        let (cold, _) = run(&mut self.cold, key, prompt, seed);
        assert_eq!(warm, cold, "{usage:?}");
        let new = prompt.len() - usage.reuse.reused;
        assert!(new <= new_max, "{new} tokens computed: {usage:?}");
        (warm, usage)
    }
}

#[test]
fn warm_replies_are_cold_replies_at_full_width() {
    let dir = tempfile::tempdir().unwrap();
    let warm = driver(2, Some(dir.path()));
    let mut timeline = Timeline { warm, cold: driver(0, None), count: 0 };
    let mut prompt = timeline.turn(90);
    let mut turns = vec![];
    for turn in 0..5_u64 {
        prompt.extend(timeline.turn(30));
        // The opening of the reply.
        prompt.extend([MARKER, 2]);
        turns.push(prompt.clone());
        let new_max = if turn == 0 { prompt.len() } else { 31 + 2 + 1 };
        let (reply, _) = timeline.ask(&prompt, new_max, turn % 2);
        prompt.extend(reply);
    }
    // Regenerate: all but the opening of the reply is there.
    timeline.ask(&turns[4].clone(), 2, 9);
    // Edit the second reply: from its opening on.
    let mut edited = turns[1].clone();
    let edit = timeline.turn(25);
    edited.extend([edit.as_slice(), &[MARKER, 2]].concat());
    timeline.ask(&edited, 2 + 26 + 2, 0);
    // Two branches of that.
    for _ in 0..2 {
        let branch = [edited.as_slice(), &timeline.turn(20), &[MARKER, 2]].concat();
        timeline.ask(&branch, 2 + 21 + 2, 0);
    }
    // Another key shares nothing.
    let (_, usage) = timeline.ask_as("b", &turns[0].clone(), turns[0].len(), 0);
    assert_eq!((usage.reuse.reused, usage.reuse.miss), (0, Some(Miss::OtherKey)));
    // The system part changes at its end: once the first edit has left a snapshot there, only what follows
    // the last multiple of 64 before it is computed.
    for last in [7, 8] {
        let mut changed = turns[0].clone();
        changed[90] = last;
        let new_max = if last == 7 { changed.len() } else { changed.len() - 64 };
        timeline.ask(&changed, new_max, 0);
    }
    // The program starts again.
    timeline.warm.save_all();
    drop(timeline.warm);
    timeline.warm = driver(2, Some(dir.path()));
    prompt.extend([timeline.turn(30).as_slice(), &[MARKER, 2]].concat());
    let (_, usage) = timeline.ask(&prompt, 31 + 2 + 1, 0);
    assert_eq!(usage.reuse.from, Some(Level::Disk), "{usage:?}");
}

/// A prompt of three turns that no other seed gives, which leaves snapshots.
fn three_turns(seed: u32) -> Vec<u32> {
    let turn = |turn: u32| (0..20).map(move |i| 2 + (seed * 997 + turn * 131 + i * 7) % 4000);
    (0..3).flat_map(|i| std::iter::once(MARKER).chain(turn(i))).collect()
}

#[test]
fn pressure_takes_the_least_recently_used_first_and_leaves_replies_alone() {
    let prompts: Vec<Vec<u32>> = (0..3).map(three_turns).collect();
    let mut driver = driver(0, None);
    let cold: Vec<Vec<u32>> =
        prompts.iter().map(|prompt| run(&mut driver, "a", prompt, 0).0).collect();
    let held = driver.view().occupancy().snapshots;
    assert!(held >= 6, "{held} snapshots of {} prompts", prompts.len());

    driver.pressure().raise(PressureLevel::Warning);
    // It is heard by a driver that has nothing to do.
    driver.turn(false);
    assert_eq!(driver.view().occupancy().snapshots, held / 2);
    assert_eq!(driver.turn(false), Turn::Idle);
    // The newest is still there, the oldest is computed in memory that was given back.
    let (reply, usage) = run(&mut driver, "a", &prompts[2], 0);
    assert_eq!(reply, cold[2]);
    assert!(usage.reuse.reused > 0, "{usage:?}");
    let (reply, usage) = run(&mut driver, "a", &prompts[0], 0);
    assert_eq!((reply, usage.reuse.reused), (cold[0].clone(), 0));
    assert_eq!(usage.reuse.miss, Some(Miss::Evicted));

    // Raised before the turn that admits the request, and again before each later one.
    driver.engine().submit(Request::new(prompts[1].clone(), 8)).unwrap();
    let (mut reply, mut is_done) = (vec![], false);
    while !is_done {
        driver.pressure().raise(PressureLevel::Critical);
        driver.turn(true);
        while let Some(output) = driver.engine().poll() {
            match output {
                Output::Prefill { .. } => {}
                Output::Token { token, .. } => reply.push(token),
                Output::Finished { .. } => is_done = true,
                Output::Failed { failure, .. } => panic!("{failure}"),
            }
        }
    }
    assert_eq!(reply, cold[1]);
    driver.pressure().raise(PressureLevel::Critical);
    while driver.turn(true) != Turn::Idle {}
    let occupancy = driver.view().occupancy();
    assert_eq!((occupancy.snapshots, occupancy.pages_used, occupancy.slots_used), (0, 0, 0));
    assert!(driver.view().counts().gave_way > 8);
}
