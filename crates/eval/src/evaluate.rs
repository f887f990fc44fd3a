//! Feeds recorded sequences through a runner and compares every position.

use crate::goldens::Golden;
use crate::metrics::{Metrics, Position, Summary};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{Batch, BatchError, Runner, Span, SpanKind, StepError};

/// How to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threshold of [`Metrics::top1_margin`], in nats.
    pub margin: f64,
    /// Rows per step: each has `rows * vocabulary` logits.
    pub slice_rows: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { margin: 0.01, slice_rows: 64 }
    }
}

/// Why an evaluation stopped.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// There is nothing to compare.
    #[error("there are no goldens to compare with")]
    Empty,
    /// The runner's cache cannot hold a sequence.
    #[error("{name} has {tokens} tokens but the cache holds {capacity}; raise the context length")]
    TooLong {
        /// Which golden.
        name: String,
        /// Its length.
        tokens: usize,
        /// Tokens that fit.
        capacity: usize,
    },
    /// The goldens do not belong to this model: a token is not in its vocabulary.
    #[error("{name} does not fit this model: {source}")]
    Batch {
        /// Which golden.
        name: String,
        /// What does not fit.
        source: BatchError,
    },
    /// Logits cannot be compared.
    #[error("{name}, position {position}: {problem}")]
    Logits {
        /// Which golden.
        name: String,
        /// Which position.
        position: usize,
        /// What is wrong.
        problem: String,
    },
    /// The device failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// Compares a runner with all goldens. Uses slot 0 and the first pages of the runner's cache.
///
/// # Errors
/// If a golden does not fit the model or the cache, a logit is not finite, or the device fails.
pub fn evaluate(
    runner: &mut dyn Runner,
    goldens: &[Golden],
    options: Options,
) -> Result<Metrics, EvalError> {
    let mut summary = Summary::new(options.margin);
    for golden in goldens {
        for position in compare(runner, golden, options.slice_rows)? {
            summary.add(&position);
        }
    }
    summary.metrics().ok_or(EvalError::Empty)
}

/// Compares every position of one golden.
///
/// # Errors
/// As [`evaluate`].
pub fn compare(
    runner: &mut dyn Runner,
    golden: &Golden,
    slice_rows: usize,
) -> Result<Vec<Position>, EvalError> {
    let mut positions = Vec::with_capacity(golden.ids.len());
    let mut failure = None;
    replay(runner, &golden.name, &golden.ids, slice_rows, |position, logits| {
        let next = golden.ids.get(position + 1).copied();
        match Position::compare(&golden.reference, position, logits, next) {
            Ok(compared) => positions.push(compared),
            Err(problem) if failure.is_none() => {
                failure = Some(EvalError::Logits { name: golden.name.clone(), position, problem });
            }
            Err(_) => {}
        }
    })?;
    failure.map_or(Ok(positions), Err)
}

/// Feeds one sequence in slices and hands the logits of each position to `see`. `name` is used in errors.
///
/// # Errors
/// If the sequence does not fit the model or the cache, or the device fails.
pub fn replay(
    runner: &mut dyn Runner,
    name: &str,
    ids: &[u32],
    slice_rows: usize,
    mut see: impl FnMut(usize, &[f32]),
) -> Result<(), EvalError> {
    let (vocab_size, cache) = (runner.shape().vocab_size, runner.cache_size());
    let capacity = if cache.slots == 0 { 0 } else { cache.pages * PAGE_TOKENS };
    if ids.len() > capacity {
        return Err(EvalError::TooLong { name: name.to_owned(), tokens: ids.len(), capacity });
    }
    runner.clear_slot(0);
    let mut position = 0;
    for slice in ids.chunks(slice_rows.max(1)) {
        let rows = 0..slice.len();
        let pages = (0..ids.len().div_ceil(PAGE_TOKENS)).collect();
        let span = Span::new(SpanKind::Prefill, rows.clone(), position, 0, pages);
        let batch = Batch::new(slice.to_vec(), vec![span], rows.collect(), vocab_size, cache)
            .map_err(|source| EvalError::Batch { name: name.to_owned(), source })?;
        for (row, logits) in runner.step(&batch)?.iter().enumerate() {
            see(position + row, logits);
        }
        position += slice.len();
    }
    Ok(())
}
