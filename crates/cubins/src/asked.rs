//! Which pipelines a program asks for: what its runner runs, on a device that notes it.
//!
//! Pipelines differ by entry point and function constants: widths and counts of the shape, bits of the matrices. Of these the
//! full network, in the format of the published MLX conversion, and the demo are gone through, with and without the layer for
//! drafts, and what holds a GPU to the reference. Numbers of rows choose entry points; those around each bound are tried.

use crate::noting::{Blank, Noting};
use anyhow::Result;
use calla_conformance::CASES;
use calla_gpu::products::Product;
use calla_gpu::qmm::{RowTile, qmm};
use calla_gpu::qmv::{Input, qmv};
use calla_gpu::{
    Choice, Described, Device, Dispatch, Dtype, GpuMatrix, GpuParts, GpuRunner, RunnerSize, Tensor,
};
use calla_model::shape::PAGE_TOKENS;
use calla_model::{Network, Shape};
use calla_ops::sample::Sampling;
use calla_ops::{
    Batch, CacheSize, Draft, Drafts, MultiStep, RowSampler, Runner as _, Span, SpanKind,
};
use std::collections::HashSet;

/// Layers of each kind: one period of the schedule.
const LAYERS: usize = 4;
/// Tokens of the vocabulary, whose number is no function constant: few, as the runner reads logits.
const VOCABULARY: usize = 4096;
/// Most sequences of a step that are tried, and rows of each: the pending token and the deepest drafts.
const SEQUENCES: usize = 16;
const DECODE_ROWS: usize = 9;
/// Most rows of a slice.
const SLICE: usize = 2048;
/// Pages of a sequence: a slice behind as much.
const PAGES: usize = 2 * SLICE / PAGE_TOKENS;

/// A dispatch for each pipeline that is asked for.
///
/// # Errors
/// If a shape is none that the runner takes.
pub fn asked() -> Result<Vec<Dispatch>> {
    let mut all = vec![];
    for shape in [Shape::full(LAYERS), Shape::demo()] {
        for drafting in [false, true] {
            all.extend(by_model(&shape, drafting)?);
        }
    }
    all.extend(by_checks());
    all.extend(by_measurements()?);
    let mut seen = HashSet::new();
    all.retain(|dispatch| seen.insert((dispatch.entry, dispatch.constants.clone())));
    Ok(all)
}

/// What a model of a shape asks for, in the format of the published MLX conversion.
///
/// # Errors
/// If the runner does not take the shape.
pub fn by_model(shape: &Shape, drafting: bool) -> Result<Vec<Dispatch>> {
    let shape = Shape { vocab_size: VOCABULARY, ..shape.clone() };
    let network = Network::build(&shape, &mut Described::new(drafting))?;
    by_network(&shape, network, Noting::new(Blank::new()))
}

/// What a network asks for that lies on a device.
///
/// # Errors
/// If the runner does not take it.
pub fn by_network(
    shape: &Shape,
    network: Network<GpuParts>,
    device: Noting<Blank>,
) -> Result<Vec<Dispatch>> {
    // Two slots more than sequences, to copy to; and for a sequence the checkpoints before its drafts.
    let slots = SEQUENCES * DECODE_ROWS + 2;
    let cache = CacheSize { pages: SEQUENCES * PAGES, slots };
    let size = RunnerSize { cache, sequences: SEQUENCES, drafting: network.mtp.is_some() };
    let vocab_size = shape.vocab_size;
    let mut run =
        Run { runner: GpuRunner::new(device, "none", shape, network, size)?, cache, vocab_size };
    run.state()?;
    for rows in slices() {
        // Logits of none, of one as a prompt has, and of more, as an evaluation wants.
        for outputs in [0, 1, 2, 3, 4, 8, 9] {
            run.step(SpanKind::Prefill, 1, rows, outputs.min(rows))?;
        }
    }
    for sequences in 1..=SEQUENCES {
        run.step(SpanKind::Prefill, sequences, SLICE / SEQUENCES, 1)?;
        for rows in 1..=DECODE_ROWS {
            run.step(SpanKind::Decode, sequences, rows, rows)?;
        }
        run.generate(sequences)?;
        if size.drafting {
            run.draft(sequences)?;
        }
    }
    Ok(run.runner.device().take())
}

/// Rows of slices: few, and around the powers of two.
fn slices() -> impl Iterator<Item = usize> {
    let powers = (0..=SLICE.ilog2()).map(|power| 1_usize << power);
    powers.flat_map(|rows| [rows - 1, rows, rows + 1]).filter(|rows| (1..=SLICE).contains(rows))
}

/// What is run on a device that has no memory.
struct Run {
    runner: GpuRunner<Noting<Blank>>,
    cache: CacheSize,
    vocab_size: usize,
}

impl Run {
    /// Moves of state.
    fn state(&mut self) -> Result<()> {
        self.runner.clear_slot(0);
        self.runner.copy_slot(0, 1);
        self.runner.copy_page(0, 1);
        Ok(self.runner.check_moves()?)
    }

    fn pages(sequence: usize) -> Vec<usize> {
        (sequence * PAGES..(sequence + 1) * PAGES).collect()
    }

    /// Spans of `rows` rows each, with logits for the last `outputs` of each; decodes keep the state before each row.
    fn batch(
        &self,
        kind: SpanKind,
        sequences: usize,
        rows: usize,
        outputs: usize,
    ) -> Result<Batch> {
        let span = |i: usize| {
            let span = Span::new(kind, i * rows..(i + 1) * rows, SLICE, i, Self::pages(i));
            let first = SEQUENCES + i * (DECODE_ROWS - 1);
            let kept = if kind == SpanKind::Decode { rows - 1 } else { 0 };
            Span { checkpoints: (first..first + kept).collect(), ..span }
        };
        let outputs = (0..sequences).flat_map(|i| (i + 1) * rows - outputs..(i + 1) * rows);
        let tokens = vec![0; sequences * rows];
        let spans = (0..sequences).map(span).collect();
        Ok(Batch::new(tokens, spans, outputs.collect(), self.vocab_size, self.cache)?)
    }

    fn step(
        &mut self,
        kind: SpanKind,
        sequences: usize,
        rows: usize,
        outputs: usize,
    ) -> Result<()> {
        let batch = self.batch(kind, sequences, rows, outputs)?;
        self.runner.step(&batch)?;
        Ok(())
    }

    /// Steps without the host, with draws and without.
    fn generate(&mut self, sequences: usize) -> Result<()> {
        let (steps, vocab_used) = (3, self.vocab_size - 1);
        let batch = self.batch(SpanKind::Decode, sequences, 1, 1)?;
        self.runner.generate(&batch, Choice::MostLikely, vocab_used, steps)?;
        let sampler = RowSampler { sampling: Sampling::greedy(), generated: 0 };
        let samplers = vec![sampler; sequences];
        self.runner.multi_step(&MultiStep { batch, samplers, vocab_used, steps })?;
        Ok(())
    }

    fn draft(&mut self, sequences: usize) -> Result<()> {
        let draft = |slot: usize| Draft {
            token: 0,
            position: SLICE,
            slot,
            pages: Self::pages(slot),
            depth: 2,
            vocab_used: self.vocab_size - 1,
        };
        let drafts = (0..sequences).map(draft).collect();
        self.runner.draft(&Drafts::new(drafts, self.vocab_size, self.cache)?)?;
        Ok(())
    }
}

/// What a GPU is held to the reference with: by `calla doctor`, and when it is opened anew after a failure.
#[must_use]
pub fn by_checks() -> Vec<Dispatch> {
    let mut device = Noting::new(Blank::new());
    for case in CASES {
        // Nothing is computed, so that results differ; a case runs to its end all the same.
        calla_conformance::run(&mut device, case);
    }
    device.take()
}

/// The two products whose rates `calla doctor` measures.
fn by_measurements() -> Result<Vec<Dispatch>> {
    const WIDTH: u32 = 2048;
    let mut blank = Blank::new();
    let mut tensor = |rows, cols, dtype: Dtype| {
        let bytes = u64::from(rows) * u64::from(cols) * dtype.size();
        Ok::<_, anyhow::Error>(Tensor::whole(blank.allocate("", bytes)?, rows, cols, dtype))
    };
    let rows = 64;
    let packed = tensor(rows, WIDTH / 8, Dtype::U32)?.range;
    let scales = tensor(rows, WIDTH / 64, Dtype::Bf16)?.range;
    let biases = tensor(rows, WIDTH / 64, Dtype::Bf16)?.range;
    let weight = GpuMatrix { rows, cols: WIDTH, bits: 4, packed, scales, biases };
    let (one, out) = (tensor(1, WIDTH, Dtype::F32)?, tensor(1, rows, Dtype::F32)?);
    let read = qmv(Input::Plain(one), &[Product { weight: &weight, out }], false);
    let (many, out) = (tensor(512, WIDTH, Dtype::Bf16)?, tensor(512, rows, Dtype::F32)?);
    let product = qmm(many, &[Product { weight: &weight, out }], false, RowTile::R64);
    Ok(vec![read, product])
}
