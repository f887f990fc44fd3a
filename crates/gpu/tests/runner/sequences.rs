//! Sequences of a random network, and steps that feed parts of them.

use crate::common::{TestDevice, network, quantised};
use calla_gpu::{GpuRunner, RunnerSize};
use calla_model::network::CheckpointParts;
use calla_model::shape::PAGE_TOKENS;
use calla_model::{LayerKind, Network, Shape};
use calla_ops::{Batch, CacheSize, Rows, Runner, Span, SpanKind, StepError};
use calla_testkit::{Random, compare, shapes};
use std::ops::Range;

/// A network on the device of tests.
pub(crate) type TestRunner = GpuRunner<TestDevice>;

/// State for all tests of one network.
pub(crate) const SIZE: CacheSize = CacheSize { pages: 24, slots: 12 };

/// A shape and random weights for it, in the format of the published conversion.
pub(crate) struct Model {
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
}

impl Model {
    /// Both kinds of layer, and state that moves through several of them.
    pub(crate) fn small(seed: u64) -> Self {
        let layers = vec![LayerKind::DeltaNet, LayerKind::Attention, LayerKind::DeltaNet];
        Self { shape: Shape { layers, vocab_size: 300, ..shapes::small() }, seed }
    }

    pub(crate) fn network(&self) -> Network<CheckpointParts> {
        quantised::network(&self.shape, self.seed)
    }

    pub(crate) fn runner(&self) -> Option<TestRunner> {
        network::runner(&self.shape, &self.network(), runner_size())
    }

    /// A sequence of random tokens in a slot, over pages in random order from `pages` on.
    pub(crate) fn sequence(&self, slot: usize, first_page: usize, tokens: usize) -> Sequence {
        let mut random = Random::labelled(self.seed, &format!("sequence {slot}"));
        let mut pages: Vec<usize> =
            (first_page..first_page + tokens.div_ceil(PAGE_TOKENS)).collect();
        random.shuffle(&mut pages);
        Sequence { tokens: random.tokens(tokens, self.shape.vocab_size), slot, pages }
    }
}

/// As many sequences a step as there are slots.
pub(crate) fn runner_size() -> RunnerSize {
    RunnerSize { cache: SIZE, sequences: SIZE.slots, drafting: true }
}

/// Tokens of a sequence, and where its state lies.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) slot: usize,
    pub(crate) pages: Vec<usize>,
}

/// Some positions of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    sequence: &'a Sequence,
    kind: SpanKind,
    positions: Range<usize>,
    cuts: Vec<usize>,
    checkpoints: Vec<usize>,
}

impl Part<'_> {
    /// The same, with slots for the states after each row but the last.
    pub(crate) fn with_checkpoints(self, checkpoints: &[usize]) -> Self {
        Self { checkpoints: checkpoints.to_vec(), ..self }
    }
}

impl Sequence {
    /// Positions as a part of a prompt that is cut at `cuts`.
    pub(crate) fn prefill(&self, positions: Range<usize>, cuts: &[usize]) -> Part<'_> {
        let inside = |&cut: &usize| positions.start < cut && cut < positions.end;
        let cuts = cuts.iter().copied().filter(inside).collect();
        let kind = SpanKind::Prefill;
        Part { sequence: self, kind, positions, cuts, checkpoints: vec![] }
    }

    /// Positions as tokens that were chosen.
    pub(crate) fn decode(&self, positions: Range<usize>) -> Part<'_> {
        let kind = SpanKind::Decode;
        Part { sequence: self, kind, positions, cuts: vec![], checkpoints: vec![] }
    }

    /// All bytes of its state.
    pub(crate) fn state(&self, runner: &mut dyn Runner) -> State {
        let mut state = State { slot: vec![], pages: vec![vec![]; self.pages.len()] };
        runner.read_slot(self.slot, &mut state.slot).expect("a slot");
        for (&page, bytes) in self.pages.iter().zip(&mut state.pages) {
            runner.read_page(page, bytes).expect("a page");
        }
        state
    }

    /// Sets its state.
    pub(crate) fn restore(&self, runner: &mut dyn Runner, state: &State) {
        runner.write_slot(self.slot, &state.slot).expect("a slot");
        for (&page, bytes) in self.pages.iter().zip(&state.pages) {
            runner.write_page(page, bytes).expect("a page");
        }
    }

    /// Makes it a sequence without tokens.
    pub(crate) fn forget(&self, runner: &mut dyn Runner) {
        runner.clear_slot(self.slot);
        let zeros = vec![0; runner.page_bytes()];
        for &page in &self.pages {
            runner.write_page(page, &zeros).expect("a page");
        }
    }
}

/// Bytes of a sequence's state.
#[derive(Clone, PartialEq)]
pub(crate) struct State {
    pub(crate) slot: Vec<u8>,
    pub(crate) pages: Vec<Vec<u8>>,
}

impl State {
    /// Requires the same bytes.
    pub(crate) fn require(&self, expected: &Self, what: &str) {
        // `assert_eq` would print all of them.
        assert!(self.slot == expected.slot, "{what}: other bytes in the slot");
        for (i, (a, e)) in self.pages.iter().zip(&expected.pages).enumerate() {
            assert!(a == e, "{what}: other bytes in page {i} of the sequence");
        }
        assert_eq!(self.pages.len(), expected.pages.len(), "{what}");
    }
}

/// Runs parts of sequences as one batch: logits of all rows of each.
pub(crate) fn try_step(
    runner: &mut dyn Runner,
    parts: &[Part<'_>],
) -> Result<Vec<Rows>, StepError> {
    let (mut tokens, mut spans) = (vec![], vec![]);
    for Part { sequence, kind, positions, cuts, checkpoints } in parts {
        let rows = tokens.len()..tokens.len() + positions.len();
        tokens.extend_from_slice(&sequence.tokens[positions.clone()]);
        let pages = sequence.pages[..positions.end.div_ceil(PAGE_TOKENS)].to_vec();
        let span = Span::new(*kind, rows, positions.start, sequence.slot, pages);
        spans.push(Span { cuts: cuts.clone(), checkpoints: checkpoints.clone(), ..span });
    }
    let outputs = (0..tokens.len()).collect();
    let (vocab, cache) = (runner.shape().vocab_size, runner.cache_size());
    let batch = Batch::new(tokens, spans, outputs, vocab, cache).expect("a batch");
    let logits = runner.step(&batch)?;
    let part = |span: &Span| {
        let values = &logits.as_slice()[span.rows.start * vocab..span.rows.end * vocab];
        Rows::from_vec(vocab, values.to_vec())
    };
    Ok(batch.spans().iter().map(part).collect())
}

/// The same where nothing fails.
pub(crate) fn step(runner: &mut dyn Runner, parts: &[Part<'_>]) -> Vec<Rows> {
    try_step(runner, parts).unwrap_or_else(|error| panic!("{error}"))
}

/// Requires the same bits, all finite.
pub(crate) fn require_same(actual: &Rows, expected: &Rows, what: &str) {
    compare::identical(actual, expected).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// All rows of one after those of the other.
pub(crate) fn joined(parts: &[Rows]) -> Rows {
    let values = parts.iter().flat_map(Rows::as_slice).copied().collect();
    Rows::from_vec(parts[0].cols(), values)
}
