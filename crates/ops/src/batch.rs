//! The unit of work: a ragged batch of rows, with page tables and state slots.
//!
//! A row is one token of one sequence. Consecutive rows of one sequence form a [`Span`]: a prefill slice has
//! many rows, a decode step one. Spans of many sequences share a batch, and no row's result depends on
//! which others it is batched with.

use crate::cache::CacheSize;
use calla_model::shape::PAGE_TOKENS;
use std::ops::Range;

/// Which arithmetic a span's rows are computed with, where a backend has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Prompt tokens. The span starts at a cut of the prompt (see `calla-engine`'s cut rule), so a backend
    /// that computes in chunks can start a chunk there.
    Prefill,
    /// One token that was just chosen.
    Decode,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// How the rows are computed.
    pub kind: SpanKind,
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Position in the sequence of the first of them: the number of tokens already in its state.
    pub position: usize,
    /// Slot that holds the sequence's recurrent state.
    pub slot: usize,
    /// KV pages of the sequence in order; page i holds positions `64 i ..`. They cover the span's rows.
    pub pages: Vec<usize>,
}

impl Span {
    /// Position in the sequence of batch row `row`.
    #[must_use]
    pub fn position_of(&self, row: usize) -> usize {
        self.position + row - self.rows.start
    }

    /// Where the KV pool keeps position `position`: index of a token slot over all pages.
    #[must_use]
    pub fn kv_index(&self, position: usize) -> usize {
        self.pages[position / PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
    }
}

/// A checked batch. Holding one proves: the spans cover the rows in order, tokens are below the vocabulary,
/// slots and pages exist, no slot appears twice, and no page that a span writes is used by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    outputs: Vec<usize>,
}

/// Why spans and tokens do not form a batch. Each is a bug of the caller, found before a device runs it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// There is nothing to do.
    #[error("a batch needs at least one row")]
    Empty,
    /// The spans do not cover the rows in order.
    #[error("span {span} covers rows {rows:?}; expected a non-empty range from row {expected}")]
    Rows {
        /// Index of the span.
        span: usize,
        /// Its rows.
        rows: Range<usize>,
        /// Where it has to start.
        expected: usize,
    },
    /// The spans cover fewer rows than there are tokens.
    #[error("the spans cover {covered} rows but there are {tokens} tokens")]
    Uncovered {
        /// Rows in spans.
        covered: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} of row {row} is not below the vocabulary size {vocab_size}")]
    Token {
        /// The row.
        row: usize,
        /// Its token.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A slot does not exist or appears twice.
    #[error("slot {slot} of span {span} is used twice or is not below {slots}")]
    Slot {
        /// Index of the span.
        span: usize,
        /// Its slot.
        slot: usize,
        /// Slots of the cache.
        slots: usize,
    },
    /// A page does not exist, or is written by one span and used by another.
    #[error("page {page} of span {span} is shared while written, or is not below {pages}")]
    Page {
        /// Index of the span.
        span: usize,
        /// The page.
        page: usize,
        /// Pages of the cache.
        pages: usize,
    },
    /// The page table is too short for the span.
    #[error("span {span} ends at position {end} but its {count} pages hold {capacity}")]
    Pages {
        /// Index of the span.
        span: usize,
        /// One past its last position.
        end: usize,
        /// Pages in its table.
        count: usize,
        /// Tokens they hold.
        capacity: usize,
    },
    /// Logits are wanted of a row that does not exist, or rows are not in increasing order.
    #[error("output row {row} is not increasing or not below {rows}")]
    Output {
        /// The row.
        row: usize,
        /// Rows in the batch.
        rows: usize,
    },
}

impl Batch {
    /// Checks spans and tokens against a cache and a vocabulary. `outputs` are the rows, in increasing
    /// order, whose logits are wanted.
    ///
    /// # Errors
    /// If anything that a [`Batch`] proves does not hold.
    pub fn new(
        tokens: Vec<u32>,
        spans: Vec<Span>,
        outputs: Vec<usize>,
        vocab_size: usize,
        cache: CacheSize,
    ) -> Result<Self, BatchError> {
        check_rows(&tokens, &spans)?;
        for (row, &token) in tokens.iter().enumerate() {
            if token as usize >= vocab_size {
                return Err(BatchError::Token { row, token, vocab_size });
            }
        }
        check_cache(&spans, cache)?;
        let mut next = 0;
        for &row in &outputs {
            if row < next || row >= tokens.len() {
                return Err(BatchError::Output { row, rows: tokens.len() });
            }
            next = row + 1;
        }
        Ok(Self { tokens, spans, outputs })
    }

    /// Token of each row.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The sequences' rows, in order.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Rows whose logits are wanted, in increasing order.
    #[must_use]
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }
}

fn check_rows(tokens: &[u32], spans: &[Span]) -> Result<(), BatchError> {
    let mut expected = 0;
    for (i, span) in spans.iter().enumerate() {
        if span.rows.start != expected || span.rows.is_empty() {
            return Err(BatchError::Rows { span: i, rows: span.rows.clone(), expected });
        }
        expected = span.rows.end;
    }
    if expected != tokens.len() {
        return Err(BatchError::Uncovered { covered: expected, tokens: tokens.len() });
    }
    if tokens.is_empty() { Err(BatchError::Empty) } else { Ok(()) }
}

fn check_cache(spans: &[Span], cache: CacheSize) -> Result<(), BatchError> {
    let mut slot_used = vec![false; cache.slots];
    let mut readers = vec![0_u32; cache.pages];
    for (i, span) in spans.iter().enumerate() {
        if span.slot >= cache.slots || std::mem::replace(&mut slot_used[span.slot], true) {
            return Err(BatchError::Slot { span: i, slot: span.slot, slots: cache.slots });
        }
        let (end, count) = (span.position + span.rows.len(), span.pages.len());
        if end > count * PAGE_TOKENS {
            let capacity = count * PAGE_TOKENS;
            return Err(BatchError::Pages { span: i, end, count, capacity });
        }
        for &page in &span.pages {
            if page >= cache.pages {
                return Err(BatchError::Page { span: i, page, pages: cache.pages });
            }
            readers[page] += 1;
        }
    }
    for (i, span) in spans.iter().enumerate() {
        let end = span.position + span.rows.len();
        for &page in &span.pages[span.position / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS)] {
            if readers[page] > 1 {
                return Err(BatchError::Page { span: i, page, pages: cache.pages });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: CacheSize = CacheSize { pages: 4, slots: 2 };

    fn span(rows: Range<usize>, position: usize, slot: usize, pages: &[usize]) -> Span {
        Span { kind: SpanKind::Prefill, rows, position, slot, pages: pages.to_vec() }
    }

    fn check(rows: usize, spans: &[Span], outputs: &[usize]) -> Result<(), BatchError> {
        Batch::new(vec![1; rows], spans.to_vec(), outputs.to_vec(), 10, CACHE).map(|_| ())
    }

    #[test]
    fn a_ragged_batch_is_accepted() {
        // A prefill slice over two pages, and a decode row that shares the first page read-only.
        let spans = [span(0..70, 64, 0, &[0, 1, 2]), span(70..71, 64, 1, &[0, 3])];
        assert_eq!(check(71, &spans, &[69, 70]), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let one = |position, slot, pages: &[usize]| [span(0..1, position, slot, pages)];
        assert_eq!(check(0, &[], &[]), Err(BatchError::Empty));
        assert!(matches!(check(1, &[], &[]), Err(BatchError::Uncovered { .. })));
        assert!(matches!(check(1, &[span(0..0, 0, 0, &[0])], &[]), Err(BatchError::Rows { .. })));
        assert!(matches!(check(1, &one(0, 2, &[0]), &[]), Err(BatchError::Slot { .. })));
        assert!(matches!(check(1, &one(64, 0, &[0]), &[]), Err(BatchError::Pages { .. })));
        assert!(matches!(check(1, &one(0, 0, &[4]), &[]), Err(BatchError::Page { .. })));
        assert!(matches!(check(1, &one(0, 0, &[0]), &[1]), Err(BatchError::Output { .. })));
        let twice = [span(0..1, 0, 0, &[0]), span(1..2, 0, 0, &[1])];
        assert!(matches!(check(2, &twice, &[]), Err(BatchError::Slot { .. })));
        let shared = [span(0..1, 0, 0, &[0]), span(1..2, 64, 1, &[0, 1])];
        assert!(matches!(check(2, &shared, &[]), Err(BatchError::Page { page: 0, .. })));
        let repeated = one(64, 0, &[1, 1]);
        assert!(matches!(check(1, &repeated, &[]), Err(BatchError::Page { page: 1, .. })));
        let token = Batch::new(vec![10], one(0, 0, &[0]).to_vec(), vec![], 10, CACHE);
        assert!(matches!(token, Err(BatchError::Token { token: 10, .. })));
    }
}
