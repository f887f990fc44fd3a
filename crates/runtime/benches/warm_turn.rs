//! Time to the first token of a warm turn, against a fresh prompt of as many tokens as the turn computes.
//!
//! `cargo bench -p calla-runtime --bench warm_turn`: the twelfth turn of a chat on the demo checkpoint; one
//! thread; medians of interleaved pairs. Two chats: with turns of 60 tokens before it, and with turns of 220.

use calla_cpu::Cpu;
use calla_engine::{CutRule, Output, Request, Speculation, StateNeeds};
use calla_ops::Executor;
use calla_runtime::{Driver, Limits, engine_config};
use calla_weights::Checkpoint;
use std::time::Instant;

const MARKER: u32 = 4;
const CONTEXT: usize = 8192;
const PAIRS: u32 = 20;
/// Tokens of the turn that is timed.
const NEW: usize = 220;

fn main() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo");
    let checkpoint = Checkpoint::open(dir).expect("the demo checkpoint");
    let shape = checkpoint.config().shape.clone();
    let size = StateNeeds::one_sequence(CONTEXT, 4).cache_size(&shape, 256 << 20);
    let ops = Cpu::new(shape, size, 1).expect("one thread");
    let runner = Executor::new(ops, checkpoint.load().expect("the weights"));
    let limits = Limits {
        context: CONTEXT,
        running_max: 1,
        queue_max: 1,
        speculation: Speculation::Off,
        fast_cache: false,
    };
    let config = engine_config(&runner, CutRule::new(vec![MARKER]), limits);
    let compile = Box::new(|_: &_| Err("no grammars here".to_owned()));
    let mut driver = Driver::new(Box::new(runner), config, compile, None).expect("threads");
    println!("turns before   computed   warm ms   fresh ms   ratio");
    for before in [60, NEW] {
        let (mut warm, mut fresh, mut ratios, mut computed) = (vec![], vec![], vec![], 0);
        for pair in 0..=PAIRS {
            driver.engine().forget();
            let mut chat = turn(pair, 0, 60);
            for i in 1..12 {
                chat.extend(turn(pair, i, before));
                let (_, reply, _) = first_token(&mut driver, &chat, 8);
                chat.extend(reply);
            }
            chat.extend(turn(pair, 12, NEW));
            let (warm_time, _, reused) = first_token(&mut driver, &chat, 1);
            computed = chat.len() - reused;
            driver.engine().forget();
            let (fresh_time, _, nothing) =
                first_token(&mut driver, &turn(pair, 13, computed - 1), 1);
            assert_eq!(nothing, 0, "a fresh prompt");
            // The first pair warms up.
            if pair > 0 {
                warm.push(warm_time);
                fresh.push(fresh_time);
                ratios.push(warm_time / fresh_time);
            }
        }
        println!(
            "{before:>12}{computed:>11}{:>10.1}{:>11.1}{:>8.2}",
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
fn first_token(driver: &mut Driver, prompt: &[u32], max_tokens: usize) -> (f64, Vec<u32>, usize) {
    let start = Instant::now();
    let request = Request::new(prompt.to_vec(), max_tokens);
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
