//! What a step of a network costs, without device and weights: its plan at given sizes.

use crate::cache::DeviceCache;
use crate::described::Described;
use crate::device::{Device as _, DeviceError};
use crate::limits;
use crate::plan::Plan;
use crate::recorder::{Bindings, record_step};
use crate::rotations::Rotations;
use crate::shape_constants::width;
use crate::step_tables::{TableBuffer, TableCounts, page_entries};
use crate::tensor::{Dtype, Tensor};
use crate::upload::UploadError;
use crate::weights::GpuParts;
use calla_model::shape::PAGE_TOKENS;
use calla_model::{Network, Shape};
use calla_ops::{Batch, CacheSize, Span, SpanKind};

/// Why a step cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// Kernels do not take the shape.
    #[error(transparent)]
    Network(#[from] UploadError),
    /// Its state or tables are beyond what addresses can count.
    #[error(transparent)]
    State(#[from] DeviceError),
}

/// Networks and state of which only addresses exist, to plan steps of a shape.
pub struct Estimate {
    shape: Shape,
    device: Described,
    network: Network<GpuParts>,
    rotations: Rotations,
}

impl Estimate {
    /// For a network in the format of the published MLX conversion.
    ///
    /// # Errors
    /// If kernels do not take the shape.
    pub fn new(shape: &Shape) -> Result<Self, EstimateError> {
        limits::check(shape).map_err(UploadError::from)?;
        let mut device = Described::new(false);
        let network = Network::build(shape, &mut device)?;
        let rotations = Rotations::upload(&mut device, shape)?;
        Ok(Self { shape: shape.clone(), device, network, rotations })
    }

    /// The plan of a step of `sequences` sequences with `rows` rows each, after which each has `context` tokens. The last
    /// row of each has logits.
    ///
    /// # Errors
    /// If state or tables of such a step cannot be counted.
    ///
    /// # Panics
    /// If there is no sequence, or `rows` is none of 1 to `context`.
    pub fn step(
        &mut self,
        kind: SpanKind,
        sequences: usize,
        rows: usize,
        context: usize,
    ) -> Result<Plan, EstimateError> {
        let pages = context.div_ceil(PAGE_TOKENS);
        let size = CacheSize { pages: sequences * pages, slots: sequences };
        let span = |i: usize| {
            let pages = (i * pages..(i + 1) * pages).collect();
            Span::new(kind, i * rows..(i + 1) * rows, context - rows, i, pages)
        };
        let spans: Vec<Span> = (0..sequences).map(span).collect();
        let outputs = spans.iter().map(|span| span.rows.end - 1).collect();
        let tokens = vec![0; sequences * rows];
        let batch = Batch::new(tokens, spans, outputs, self.shape.vocab_size, size)
            .expect("spans side by side");

        let Self { shape, device, network, rotations } = self;
        let cache = DeviceCache::new(device, shape, size, sequences, false)?;
        let counts = TableCounts::of(&batch);
        let bytes = counts.bytes(page_entries(&batch));
        let tables = TableBuffer::new(device, bytes)?;
        let vocab = width(shape.vocab_size);
        let logits_bytes = u64::from(counts.outputs) * u64::from(vocab) * Dtype::F32.size();
        let logits = device.allocate("logits", logits_bytes)?;
        let bindings = Bindings {
            tables: tables.tables(counts).expect("a buffer that was made for these tables"),
            rotations: *rotations,
            attention: cache.attention(),
            delta: cache.delta(),
            kept: None,
            logits: Tensor::whole(logits, counts.outputs, vocab, Dtype::F32),
        };
        Ok(Plan::new(record_step(shape, network, &batch, bindings, width(context))))
    }
}
