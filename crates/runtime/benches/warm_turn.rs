//! Time to the first token of a warm turn, against a fresh prompt of as many tokens as the turn computes.
//!
//! `cargo bench -p calla-runtime --bench warm_turn -- [full] [demo]`: the twelfth turn of a chat, on four layers
//! at the published model's widths with random weights (the vocabulary cut to 4,096: one row of logits is wanted
//! in either case), and on the demo checkpoint; one thread; medians of interleaved pairs. Two chats: with turns of 60 tokens before the
//! last, and with turns of 220.

use calla_cpu::Cpu;
use calla_engine::{CacheKey, CutRule, Output, Request, Speculation, StateNeeds};
use calla_model::network::CheckpointParts;
use calla_model::{Network, Shape};
use calla_ops::Executor;
use calla_runtime::{Driver, Limits, engine_config};
use calla_testkit::weights::{Formats, network};
use calla_weights::Checkpoint;
use std::time::Instant;

const MARKER: u32 = 4;
const CONTEXT: usize = 4096;
const PAIRS: u32 = 20;
/// Tokens of the turn that is timed.
const NEW: usize = 220;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| {
        let named = wanted.iter().any(|arg| arg == name);
        named || !wanted.iter().any(|arg| arg == "full" || arg == "demo")
    };
    println!("model    turns before   computed   warm ms   fresh ms   ratio");
    if is_wanted("full") {
        let shape = Shape { vocab_size: 4096, mtp_layers: 0, ..Shape::full(4) };
        let weights = network(&shape, Formats::Published, 7);
        measure("full-4", shape, weights);
    }
    if is_wanted("demo") {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo");
        let checkpoint = Checkpoint::open(dir).expect("the demo checkpoint");
        let shape = checkpoint.config().shape.clone();
        measure("demo", shape, checkpoint.load().expect("the weights"));
    }
}

fn measure(name: &str, shape: Shape, weights: Network<CheckpointParts>) {
    let size = StateNeeds::one_sequence(CONTEXT, 4).cache_size(&shape, 1 << 30);
    let ops = Cpu::new(shape, size, 1).expect("one thread");
    let runner = Executor::new(ops, weights);
    let limits = Limits {
        context: CONTEXT,
        running_max: 1,
        queue_max: 1,
        speculation: Speculation::Off,
        fast_cache: false,
    };
    let config = engine_config(&runner, CutRule::new(vec![MARKER]), limits);
    let compile = Box::new(|_: &_| Err("no grammars here".to_owned()));
    let mut driver = Driver::new(Box::new(runner), config, compile, None.into()).expect("threads");
    for before in [60, NEW] {
        // Eleven turns; then the twelfth again and again, each time another.
        let mut chat = turn(0, 0, 60);
        for i in 1..12 {
            chat.extend(turn(0, i, before));
            chat.extend(first_token(&mut driver, "chat", &chat, 8).1);
        }
        let (mut warm, mut fresh, mut ratios, mut computed) = (vec![], vec![], vec![], 0);
        for pair in 0..=PAIRS {
            let prompt = [chat.as_slice(), &turn(1 + pair, 12, NEW)].concat();
            let (warm_time, _, reused) = first_token(&mut driver, "chat", &prompt, 1);
            computed = prompt.len() - reused;
            let prompt = turn(1 + pair, 13, computed - 1);
            let key = format!("fresh {before} {pair}");
            let (fresh_time, _, nothing) = first_token(&mut driver, &key, &prompt, 1);
            assert!(nothing == 0 && reused >= chat.len() - 1, "{reused} of {}", chat.len());
            // The first pair warms up.
            if pair > 0 {
                warm.push(warm_time);
                fresh.push(fresh_time);
                ratios.push(warm_time / fresh_time);
            }
        }
        println!(
            "{name:<9}{before:>12}{computed:>11}{:>10.1}{:>11.1}{:>8.2}",
            1e3 * median(&mut warm),
            1e3 * median(&mut fresh),
            median(&mut ratios)
        );
    }
}

/// A turn of `1 + len` tokens that no other pair has.
fn turn(pair: u32, number: u32, len: usize) -> Vec<u32> {
    let token = |i: u32| 8 + (pair * 7919 + number * 613 + i * 104_729) % 4000;
    std::iter::once(MARKER).chain((0..len as u32).map(token)).collect()
}

/// Seconds to the first token, the reply, and the tokens that were reused.
fn first_token(
    driver: &mut Driver,
    key: &str,
    prompt: &[u32],
    max_tokens: usize,
) -> (f64, Vec<u32>, usize) {
    let start = Instant::now();
    let key = CacheKey { owner: String::new(), name: key.to_owned() };
    let request = Request { key, ..Request::new(prompt.to_vec(), max_tokens) };
    driver.engine().submit(request).expect("a good request");
    let (mut first, mut reply) = (None, vec![]);
    loop {
        driver.turn(true);
        while let Some(output) = driver.engine().poll() {
            match output {
                Output::Prefill { .. } => {}
                Output::Token { token, .. } => {
                    first.get_or_insert_with(|| start.elapsed().as_secs_f64());
                    reply.push(token);
                }
                Output::Finished { usage, .. } => {
                    return (first.expect("a token"), reply, usage.reuse.reused);
                }
                Output::Failed { failure, .. } => panic!("{failure}"),
            }
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
