//! Measures decoding on an NVIDIA GPU: how plans are replayed, steps with and without the host, and what takes the time.
//!
//! `cargo run --release -p calla-gpu --example cuda_decode -- MODEL [CONTEXT [SEQUENCES]]`
//!
//! All ways must choose the same tokens, or it fails.

use calla_gpu::{Choice, GpuRunner, RunnerSize, upload};
use calla_gpu_cuda::{CudaDevice, Options, Replay};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::sample::argmax;
use calla_ops::{Batch, CacheSize, Runner, Span, SpanKind};
use std::time::Instant;

type Error = Box<dyn std::error::Error>;

/// Steps that are measured.
const STEPS: usize = 64;
/// Rows of a slice of the prompt.
const SLICE: usize = 2048;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("which model?")?;
    let context: usize = args.next().map_or(Ok(4096), |text| text.parse())?;
    let sequences: usize = args.next().map_or(Ok(1), |text| text.parse())?;
    let start = Instant::now();
    let checkpoint = calla_weights::Checkpoint::open(&model)?;
    let (shape, network) = (checkpoint.config().shape.clone(), checkpoint.load()?);
    let mut device = CudaDevice::new(&Options::from_env())?;
    println!("{}", device.name()?);
    let network = upload(&mut device, &network, &shape)?;
    println!("loaded in {:.1} s", start.elapsed().as_secs_f64());
    let pages = (context + 2 * STEPS).div_ceil(PAGE_TOKENS);
    let cache = CacheSize { pages: pages * sequences, slots: 2 * sequences };
    let size = RunnerSize { cache, sequences, drafting: false };
    let mut runner = GpuRunner::new(device, "CUDA", &shape, network, size)?;
    let pages = |i: usize| (i * pages..(i + 1) * pages).collect::<Vec<_>>();
    let vocab = shape.vocab_size;

    let mut first = vec![];
    for i in 0..sequences {
        let begun = Instant::now();
        let mut at = 0;
        let mut token = 0;
        while at < context {
            let len = SLICE.min(context - at);
            let tokens = (at..at + len).map(|n| ((n * 7919 + i * 104_729) % 100_000) as u32);
            let span = Span::new(SpanKind::Prefill, 0..len, at, i, pages(i));
            let batch = Batch::new(tokens.collect(), vec![span], vec![len - 1], vocab, cache)?;
            token = argmax(runner.step(&batch)?.row(0));
            at += len;
        }
        first.push(token);
        println!("prefill: {:.0} tokens/s", context as f64 / begun.elapsed().as_secs_f64());
    }
    let batch = |tokens: &[u32], at: usize| {
        let spans = (0..sequences)
            .map(|i| Span::new(SpanKind::Decode, i..i + 1, at, sequences + i, pages(i)))
            .collect();
        Batch::new(tokens.to_vec(), spans, (0..sequences).collect(), vocab, cache)
    };
    let rewind = |runner: &mut GpuRunner<CudaDevice>| {
        (0..sequences).for_each(|i| runner.copy_slot(i, sequences + i));
    };
    let rate = |begun: Instant| (STEPS * sequences) as f64 / begun.elapsed().as_secs_f64();

    runner.device().set_replay(Replay::Launches, true);
    for _ in 0..2 {
        rewind(&mut runner);
        runner.device().take_profile();
        runner.generate(&batch(&first, context)?, Choice::MostLikely, vocab, 16)?;
    }
    println!("16 steps:\n{}", runner.device().take_profile());

    let mut expected: Option<Vec<Vec<u32>>> = None;
    let mut same = |found: Vec<Vec<u32>>, what: &str| {
        let expected = expected.get_or_insert_with(|| found.clone());
        if *expected == found { Ok(()) } else { Err(format!("{what}: other tokens")) }
    };
    let ways = [Replay::Launches, Replay::Graph, Replay::Shuffled(1)];
    for round in 0..2 {
        for way in ways {
            runner.device().set_replay(way, false);
            let mut generated = vec![];
            let mut rates = [0.0; 2];
            // Once to warm up.
            for _ in 0..2 {
                rewind(&mut runner);
                let begun = Instant::now();
                generated =
                    runner.generate(&batch(&first, context)?, Choice::MostLikely, vocab, STEPS)?;
                rates[0] = rate(begun);
            }
            same(generated, &format!("{way:?}"))?;
            let mut stepped = vec![vec![]; sequences];
            for measured in [1, STEPS] {
                rewind(&mut runner);
                stepped.iter_mut().for_each(Vec::clear);
                let mut tokens = first.clone();
                let begun = Instant::now();
                for n in 0..measured {
                    let logits = runner.step(&batch(&tokens, context + n)?)?;
                    tokens = logits.iter().map(argmax).collect();
                    stepped.iter_mut().zip(&tokens).for_each(|(all, &token)| all.push(token));
                }
                rates[1] = rate(begun);
            }
            same(stepped, &format!("{way:?}, step by step"))?;
            println!(
                "round {round} {way:?}: {:.1} tokens/s, {:.1} step by step",
                rates[0], rates[1]
            );
        }
    }
    Ok(())
}
