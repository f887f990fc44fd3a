//! Sequences on a runner: the demo's recorded prompts, fed and decoded.

use super::TestDevice;
use calla_gpu::{GpuRunner, RunnerSize};
use calla_ops::{Batch, CacheSize, Rows, Runner, Span, SpanKind};
use calla_testkit::goldens::read_goldens;
use calla_testkit::places;

/// Pages of each sequence: room for 128 tokens.
const PAGES: usize = 2;

/// Where a sequence lies.
#[derive(Clone, Debug)]
pub struct Home {
    pub slot: usize,
    pub pages: Vec<usize>,
}

/// A place for each of so many sequences, and the cache that has them.
pub fn homes(count: usize) -> (Vec<Home>, CacheSize) {
    // Slots and pages in another order than sequences.
    let home = |i| Home {
        slot: count - 1 - i,
        pages: (0..PAGES).map(|page| page * count + (i + 1) % count).collect(),
    };
    ((0..count).map(home).collect(), CacheSize { pages: PAGES * count, slots: count })
}

/// The demo on the device of tests, with `size`; `None`, with the reason printed, where there is none.
pub fn demo(size: RunnerSize) -> Option<GpuRunner<TestDevice>> {
    let (shape, network) = super::network::checkpoint(&places::demo());
    super::network::runner(&shape, &network, size)
}

/// Recorded sequences of the demo: prompts with how they go on, and the prompts' lengths.
pub fn recorded(count: usize) -> Vec<(Vec<u32>, usize)> {
    let goldens = read_goldens(&places::demo().join("goldens.npz")).expect("recorded sequences");
    let mut short: Vec<_> = goldens.into_iter().filter(|g| g.ids.len() <= PAGES * 64).collect();
    assert!(short.len() >= count, "{} short sequences", short.len());
    short.truncate(count);
    short.into_iter().map(|golden| (golden.ids, golden.prompt_len)).collect()
}

/// A span of a sequence, with all of its pages.
pub fn span(kind: SpanKind, rows: std::ops::Range<usize>, position: usize, home: &Home) -> Span {
    Span::new(kind, rows, position, home.slot, home.pages.clone())
}

/// A batch with a token of each sequence, from `(home, token, position)`; all logits are wanted.
pub fn decode_batch(runner: &dyn Runner, rows: &[(&Home, u32, usize)]) -> Batch {
    let spans = (0..)
        .zip(rows)
        .map(|(row, &(home, _, position))| span(SpanKind::Decode, row..row + 1, position, home));
    let tokens = rows.iter().map(|&(_, token, _)| token).collect();
    let outputs = (0..rows.len()).collect();
    let (vocab, cache) = (runner.shape().vocab_size, runner.cache_size());
    Batch::new(tokens, spans.collect(), outputs, vocab, cache).expect("a batch")
}

/// Runs a step of one token each.
pub fn decode(runner: &mut dyn Runner, rows: &[(&Home, u32, usize)]) -> Rows {
    let batch = decode_batch(runner, rows);
    runner.step(&batch).unwrap_or_else(|error| panic!("{error}"))
}

/// Feeds prompts: logits of the last token of each.
pub fn prefill(runner: &mut dyn Runner, prompts: &[(&Home, &[u32])]) -> Rows {
    let (mut tokens, mut spans, mut outputs) = (vec![], vec![], vec![]);
    for (home, prompt) in prompts {
        let start = tokens.len();
        tokens.extend_from_slice(prompt);
        spans.push(span(SpanKind::Prefill, start..tokens.len(), 0, home));
        outputs.push(tokens.len() - 1);
    }
    let (vocab, cache) = (runner.shape().vocab_size, runner.cache_size());
    let batch = Batch::new(tokens, spans, outputs, vocab, cache).expect("a batch");
    runner.step(&batch).unwrap_or_else(|error| panic!("{error}"))
}

/// Makes a sequence a copy of another.
pub fn copy(runner: &mut dyn Runner, from: &Home, to: &Home) {
    runner.copy_slot(from.slot, to.slot);
    for (&from, &to) in from.pages.iter().zip(&to.pages) {
        runner.copy_page(from, to);
    }
}

/// The bytes of a sequence's state: its slot, then its pages.
pub fn state(runner: &mut dyn Runner, home: &Home) -> Vec<Vec<u8>> {
    let mut all = vec![vec![]];
    runner.read_slot(home.slot, &mut all[0]).unwrap_or_else(|error| panic!("{error}"));
    for &page in &home.pages {
        let mut bytes = vec![];
        runner.read_page(page, &mut bytes).unwrap_or_else(|error| panic!("{error}"));
        all.push(bytes);
    }
    all
}
