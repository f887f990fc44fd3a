//! Decode and prefill speed of whole networks, next to this machine's floors.
//!
//! `cargo bench -p calla-cpu -- [demo] [full] [linear] [portable] [avx2] [avx512]`: the demo checkpoint; four layers at full width with
//! random weights (2.3 GB, about a minute to make); single products. Without `--bench` (as a test) each runs
//! once at a small size. Each figure is the best of several runs: noise only ever slows down. With one
//! thread, time is what the kernel says the thread ran for (Linux), so that other programs weigh less.

mod bytes_read;

use bytes_read::bytes_read;
use calla_cpu::{Cpu, Isa};
use calla_model::network::CheckpointParts;
use calla_model::shape::PAGE_TOKENS;
use calla_model::{AffineFormat, Network, Shape};
use calla_ops::runner::HostOps;
use calla_ops::{Batch, CacheSize, Ops, Rows, Span, SpanKind, forward};
use calla_testkit::weights::{Formats, Stored, matrix, network};
use calla_testkit::{Random, places};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let timed = args.iter().any(|a| a == "--bench");
    let names = ["demo", "full", "linear"];
    let wanted: Vec<&str> = args.iter().map(String::as_str).filter(|a| names.contains(a)).collect();
    let all = wanted.is_empty();
    let runs = if timed { 5 } else { 1 };
    let mut isas = Isa::available();
    let chosen = |isa: &Isa| args.iter().any(|a| *a == format!("{isa:?}").to_lowercase());
    if isas.iter().any(chosen) {
        isas.retain(chosen);
    }
    if timed {
        println!("floors: {:.1} GB/s read by one thread", read_bandwidth());
    }
    if all || wanted.contains(&"linear") {
        linear(&isas, runs);
    }
    if all || wanted.contains(&"demo") {
        let checkpoint = calla_weights::Checkpoint::open(places::demo()).expect("the demo");
        let network = checkpoint.load().expect("the demo's weights");
        let (decode, prefill) = if timed { (128, 512) } else { (2, 8) };
        for &isa in &isas {
            for threads in [1, 2] {
                speed("demo", checkpoint.shape(), &network, isa, threads, [decode, prefill], runs);
            }
        }
    }
    if wanted.contains(&"full") {
        let shape = Shape { mtp_layers: 0, ..Shape::full(4) };
        let network = network(&shape, Formats::Published, 1);
        for &isa in isas.iter().filter(|&&isa| isa != Isa::Portable) {
            for threads in [1, 2] {
                speed("full-4", &shape, &network, isa, threads, [8, 128], runs.min(2));
            }
        }
    }
}

/// Seconds that the main thread has run for, or, with more threads, that have passed.
fn seconds(threads: usize, since: Instant) -> f64 {
    // First field: nanoseconds on a processor.
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    match schedule.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()) {
        Some(nanoseconds) if threads == 1 => nanoseconds / 1e9,
        _ => since.elapsed().as_secs_f64(),
    }
}

/// Seconds of the best of several runs, each repeated long enough for the scheduler's clock, which moves
/// in milliseconds.
fn best(threads: usize, runs: usize, mut run: impl FnMut()) -> f64 {
    let since = Instant::now();
    let long_enough = if runs > 1 { 0.2 } else { 0.0 };
    let once = |_| {
        let start = seconds(threads, since);
        let mut repeats = 0;
        let mut passed = 0.0;
        while repeats == 0 || passed < long_enough {
            run();
            repeats += 1;
            passed = seconds(threads, since) - start;
        }
        passed / f64::from(repeats)
    };
    (0..runs).map(once).fold(f64::INFINITY, f64::min)
}

/// GB/s of one thread that reads far more than the caches hold.
fn read_bandwidth() -> f64 {
    let words = vec![1_u64; 1 << 27];
    let seconds = best(1, 3, || {
        black_box(words.iter().fold(0_u64, |sum, &word| sum.wrapping_add(word)));
    });
    (words.len() * 8) as f64 / seconds / 1e9
}

/// Tokens per second after a prompt, and of the prompt itself.
fn speed(
    name: &str,
    shape: &Shape,
    network: &Network<CheckpointParts>,
    isa: Isa,
    threads: usize,
    [decode, prefill]: [usize; 2],
    runs: usize,
) {
    let size = CacheSize::one_sequence(prefill + decode);
    let mut cpu = Cpu::with_isa(shape.clone(), size, threads, isa).expect("threads");
    let tokens = Random::new(1).tokens(prefill + decode, shape.vocab_size);
    let pages: Vec<usize> = (0..(prefill + decode).div_ceil(PAGE_TOKENS)).collect();
    let step = |cpu: &mut Cpu, start: usize, end: usize| {
        let span = Span::new(SpanKind::Prefill, 0..end - start, start, 0, pages.clone());
        let (part, output) = (tokens[start..end].to_vec(), vec![end - start - 1]);
        let batch = Batch::new(part, vec![span], output, shape.vocab_size, size).expect("a batch");
        black_box(forward(cpu, network, &batch, |_, _| {}));
    };
    let prefill_seconds = best(threads, runs, || {
        cpu.clear_slot(0);
        step(&mut cpu, 0, prefill);
    });
    let decode_seconds = best(threads, runs, || {
        for position in prefill..prefill + decode {
            step(&mut cpu, position, position + 1);
        }
    }) / decode as f64;
    let bytes = bytes_read(network, shape.top_k as f64);
    println!(
        "{name}, {isa:?}, {threads} thread(s): decode {:.0} tokens/s ({:.1} GB/s of weights), \
         prefill of {prefill} {:.0} tokens/s",
        1.0 / decode_seconds,
        bytes / decode_seconds / 1e9,
        prefill as f64 / prefill_seconds,
    );
}

/// One product, by one row (bandwidth) and by many (arithmetic).
fn linear(isas: &[Isa], runs: usize) {
    let mut random = Random::new(2);
    let (outputs, cols) = (4096, 2048);
    for (bits, group) in [(4, 64), (8, 64), (4, 32), (3, 64), (6, 64)] {
        let format = AffineFormat::new(bits, group).expect("a format");
        let weight = matrix(&mut random, outputs, cols, Stored::Affine(format), 1.0);
        for &isa in isas {
            let shape = Shape::demo();
            let size = CacheSize::one_sequence(1);
            let mut cpu = Cpu::with_isa(shape, size, 1, isa).expect("one thread");
            let mut time = |rows: usize| {
                let x = Rows::from_vec(cols, vec![0.5; rows * cols]);
                best(1, 2 * runs, || {
                    black_box(cpu.linear(&x, &weight));
                })
            };
            let one = weight.size_bytes() as f64 / time(1) / 1e9;
            let gflops =
                |rows: usize, seconds: f64| 2.0 * (rows * outputs * cols) as f64 / seconds / 1e9;
            let (few, many) = (gflops(4, time(4)), gflops(120, time(120)));
            println!(
                "linear [{outputs}, {cols}] {bits} bits, group {group}, {isa:?}: 1 row {one:.1} GB/s, \
                 4 rows {few:.0} GFLOP/s, 120 rows {many:.0} GFLOP/s"
            );
        }
    }
}
