//! Speed of a step by the number of its rows: sequences decoded together, and rows of one sequence.
//!
//! `cargo bench -p calla-cpu --bench batches -- [avx2] [avx512] [demo]`: four layers at full width with
//! random weights (2.3 GB, about a minute to make), or the demo checkpoint. Every round measures every kind
//! of step, one after the other, over as many rows; a ratio is the median over the rounds of the ratios
//! within a round, so that a machine that slows down slows both sides. Keys, values and states before the
//! measured positions are zeros: no time depends on them. Without `--bench` (as a test) one round of the demo
//! runs.

mod bytes_read;
mod measure;

use bytes_read::bytes_read;
use calla_cpu::{Cpu, Isa};
use calla_model::network::CheckpointParts;
use calla_model::{Network, Shape};
use calla_ops::{Batch, CacheSize, Span, SpanKind, forward};
use calla_testkit::weights::{Formats, network};
use calla_testkit::{Random, places};
use measure::{Clock, Seconds, distinct_experts, read_bandwidth};
use std::hint::black_box;

/// Rows of each kind of step in a round, which every kind of step divides.
const ROWS: usize = 24;
/// Sequences that are decoded.
const SEQUENCES: usize = 8;
/// Pages of a sequence.
const PAGES: usize = 9;
const SIZE: CacheSize = CacheSize { pages: SEQUENCES * PAGES, slots: SEQUENCES };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let timed = args.iter().any(|a| a == "--bench");
    let demo = args.iter().any(|a| a == "demo");
    let isas: Vec<Isa> = Isa::available()
        .into_iter()
        .filter(|isa| args.iter().any(|a| *a == format!("{isa:?}").to_lowercase()))
        .collect();
    let isas = if isas.is_empty() { vec![Isa::detect()] } else { isas };
    let (name, shape, network) = if demo || !timed {
        let checkpoint = calla_weights::Checkpoint::open(places::demo()).expect("the demo");
        ("demo", checkpoint.shape().clone(), checkpoint.load().expect("the demo's weights"))
    } else {
        let shape = Shape { mtp_layers: 0, ..Shape::full(4) };
        let network = network(&shape, Formats::Published, 1);
        ("full-4", shape, network)
    };
    if timed {
        println!("floor: {:.1} GB/s read by one thread", read_bandwidth());
    }
    for isa in isas {
        measure_steps(name, &shape, &network, isa, if timed { 3 } else { 1 });
    }
}

/// A kind of step.
#[derive(Clone, Copy)]
enum Step {
    /// One row each of so many sequences.
    Sequences(usize),
    /// So many rows of one sequence.
    Rows(usize),
}

const STEPS: [Step; 8] = [
    Step::Sequences(1),
    Step::Sequences(2),
    Step::Sequences(3),
    Step::Sequences(4),
    Step::Sequences(8),
    Step::Rows(2),
    Step::Rows(3),
    Step::Rows(4),
];

impl Step {
    fn rows(self) -> usize {
        match self {
            Self::Sequences(rows) | Self::Rows(rows) => rows,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Sequences(n) => format!("{n} x 1 row"),
            Self::Rows(n) => format!("1 x {n} rows"),
        }
    }

    /// The step with number `index` among those that take each sequence to about the same position.
    fn batch(self, index: usize, random: &mut Random, vocab_size: usize) -> Batch {
        let (spans, rows_of_span) = match self {
            Self::Sequences(n) => (n, 1),
            Self::Rows(n) => (1, n),
        };
        let first = index * spans;
        let span = |i: usize| {
            let slot = (first + i) % SEQUENCES;
            let rows = i * rows_of_span..(i + 1) * rows_of_span;
            // 200 to 470: sequences of different lengths.
            let position = 200 + 37 * slot + (first + i) / SEQUENCES * rows_of_span;
            let pages = (slot * PAGES..(slot + 1) * PAGES).collect();
            Span::new(SpanKind::Decode, rows, position, slot, pages)
        };
        let tokens = random.tokens(self.rows(), vocab_size);
        let outputs = (0..self.rows()).collect();
        let spans = (0..spans).map(span).collect();
        Batch::new(tokens, spans, outputs, vocab_size, SIZE).expect("a batch")
    }
}

/// Rounds over all steps on 1 and 2 threads, and what they took.
fn measure_steps(
    name: &str,
    shape: &Shape,
    network: &Network<CheckpointParts>,
    isa: Isa,
    rounds: usize,
) {
    let mut random = Random::new(7);
    let mut cpus = [1, 2].map(|threads| {
        Cpu::with_isa(shape.clone(), SIZE, threads, isa).expect("a backend with so many threads")
    });
    // Rounds of [threads][step].
    let mut taken: Vec<[[Seconds; STEPS.len()]; 2]> = vec![];
    // The first round meets cold caches and is dropped.
    for round in 0..=rounds {
        let times = cpus.each_mut().map(|cpu| {
            STEPS.map(|step| {
                let batches: Vec<Batch> = (0..ROWS / step.rows())
                    .map(|index| step.batch(index, &mut random, shape.vocab_size))
                    .collect();
                let clock = Clock::start();
                for batch in &batches {
                    black_box(forward(cpu, network, batch, |_, _| {}));
                }
                clock.passed()
            })
        });
        if round > 0 {
            taken.push(times);
        }
    }
    println!("{name}, {isa:?}, median of {rounds} rounds; times of {ROWS} rows each, divided");
    for threads in 0..2 {
        for (i, step) in STEPS.into_iter().enumerate() {
            let wall = median(taken.iter().map(|round| round[threads][i].wall)) / ROWS as f64;
            let processor = median(taken.iter().map(|round| round[threads][i].processor));
            let processor = processor / ROWS as f64;
            let ratio = |of: fn(Seconds) -> f64| {
                median(taken.iter().map(|round| of(round[threads][0]) / of(round[threads][i])))
            };
            let experts = match step {
                Step::Sequences(n) | Step::Rows(n) => distinct_experts(shape, n),
            };
            let bytes = bytes_read(network, experts) / step.rows() as f64;
            println!(
                "{} thread(s), {}: {:.2} ms a row ({:.1} tokens/s), {:.2} ms of processor; x{:.2} the \
                 tokens/s of one row (x{:.2} by processor); {:.1} GB of weights a processor second",
                threads + 1,
                step.name(),
                1e3 * wall,
                1.0 / wall,
                1e3 * processor,
                ratio(|t| t.wall),
                ratio(|t| t.processor),
                bytes / processor / 1e9,
            );
        }
        let speedup = taken.iter().map(|round| round[0][0].wall / round[threads][0].wall);
        println!("{} thread(s), 1 x 1 row: x{:.2} one thread", threads + 1, median(speedup));
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
