//! Memory that snapshots took goes back to the system when they give way, and works as before when it is used again.
//!
//! Alone in its process, whose memory it measures.

#![cfg(target_os = "linux")]

use calla_cpu::Cpu;
use calla_engine::{CutRule, Level, Output, Request, Speculation, StateNeeds, Usage};
use calla_model::Shape;
use calla_ops::{Executor, Runner};
use calla_runtime::{Driver, Limits, PressureLevel, Turn, engine_config, store_sizes};
use calla_store::Store;
use calla_testkit::weights::{Formats, network};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Opens a turn.
const MARKER: u32 = 1;
const CONTEXT: usize = 1024;

/// Four layers at the published widths, with few experts and a small vocabulary. Returns the bytes of a slot too.
fn driver(disk: &Path) -> (Driver, u64) {
    let shape = Shape { vocab_size: 512, experts: 8, ..Shape::full(4) };
    let size = StateNeeds::one_sequence(CONTEXT, 4).cache_size(&shape, 400 << 20);
    let ops = Cpu::new(shape.clone(), size, 0).unwrap();
    let runner = Executor::new(ops, network(&shape, Formats::Published, 7));
    let limits = Limits {
        context: CONTEXT,
        running_max: 1,
        queue_max: 1,
        speculation: Speculation::Off,
        fast_cache: false,
    };
    let config = engine_config(&runner, CutRule::new(vec![MARKER]), limits);
    let bounds = calla_store::Limits { bytes: 4 << 30, age: Duration::from_secs(3600) };
    let (sizes, now) = (store_sizes(&runner), SystemTime::now());
    let store = Store::open(disk, &runner.arithmetic(), sizes, bounds, now).unwrap();
    let compile = Box::new(|_: &_| Err("no grammars here".to_owned()));
    let slot_bytes = runner.slot_bytes() as u64;
    (Driver::new(Box::new(runner), config, compile, Some(store).into()).unwrap(), slot_bytes)
}

fn run(driver: &mut Driver, prompt: &[u32]) -> (Vec<u32>, Usage) {
    driver.engine().submit(Request::new(prompt.to_vec(), 4)).unwrap();
    let (mut reply, mut usage) = (vec![], None);
    while driver.turn(true) != Turn::Idle {
        while let Some(output) = driver.engine().poll() {
            match output {
                Output::Prefill { .. } => {}
                Output::Token { token, .. } => reply.push(token),
                Output::Finished { usage: counts, .. } => usage = Some(counts),
                Output::Failed { failure, .. } => panic!("{failure}"),
            }
        }
    }
    (reply, usage.expect("the request has ended"))
}

/// Bytes of anonymous memory of this process that are resident or swapped out.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kb = |key| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    1024 * (kb("RssAnon:") + kb("VmSwap:"))
}

/// Three turns, the first of which is long enough for a file.
fn prompt(seed: u32) -> Vec<u32> {
    let turn = |len: u32| (0..len).map(move |i| 2 + (seed * 97 + len * 131 + i * 7) % 500);
    [259, 9, 8].into_iter().flat_map(|len| std::iter::once(MARKER).chain(turn(len))).collect()
}

#[test]
fn what_snapshots_took_goes_back_to_the_system() {
    let disk = tempfile::tempdir().unwrap();
    let (mut driver, slot_bytes) = driver(disk.path());
    let prompts: Vec<Vec<u32>> = (0..3).map(prompt).collect();
    let cold: Vec<Vec<u32>> = prompts.iter().map(|prompt| run(&mut driver, prompt).0).collect();
    let held = driver.view().occupancy().snapshots as u64;
    assert!(held >= 8, "{held} snapshots");

    let before = anonymous_bytes();
    driver.pressure().raise(PressureLevel::Critical);
    // What is saved to files is held until it is written.
    while driver.turn(true) != Turn::Idle {}
    let after = anonymous_bytes();
    assert_eq!(driver.view().occupancy().snapshots, 0);
    let expected = held * slot_bytes;
    // The allocator keeps some of the buffers through which state went to files: some 10 MB of 60.
    assert!(
        before.saturating_sub(after) > expected / 2,
        "{before} bytes of memory before, {after} after; the states alone were {expected}"
    );

    // What was read out for files was read before it went, and pages that went serve again.
    for (prompt, cold) in prompts.iter().zip(&cold) {
        let (reply, usage) = run(&mut driver, prompt);
        assert_eq!(&reply, cold);
        assert!(usage.reuse.from == Some(Level::Disk) && usage.reuse.reused >= 260, "{usage:?}");
    }
    // Nothing of them is left: computed anew.
    driver.engine().forget();
    let (reply, usage) = run(&mut driver, &prompts[0]);
    assert_eq!((&reply, usage.reuse.reused), (&cold[0], 0));
}
