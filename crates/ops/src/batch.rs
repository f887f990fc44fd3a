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
    /// One token that was just chosen, or several of which the later are drafts: each row is computed
    /// exactly as it would be alone, one decode row after the other.
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
    /// Slots that receive the recurrent state as it is after each row but the last, for rows that may be
    /// taken back: none, or one fewer than rows. `slot` itself gets the state after the last row. If row i
    /// turns out to be the last that counts, its checkpoint is the sequence's state from then on.
    pub checkpoints: Vec<usize>,
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

    /// The rows in pieces that the recurrence runs one after the other, each with the checkpoint that
    /// receives the state after it: rows of a decode one by one, those of a prefill together.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
        let len = match self.kind {
            SpanKind::Prefill => self.rows.len(),
            SpanKind::Decode => 1,
        };
        let starts = self.rows.clone().step_by(len.max(1)).enumerate();
        starts.map(move |(i, row)| (row..row + len, self.checkpoints.get(i).copied()))
    }
}

/// A checked batch. Holding one proves: the spans cover the rows in order, tokens are below the vocabulary,
/// slots and pages exist, no slot (checkpoints included) appears twice, and no page that a span writes is
/// used by another.
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
    /// There are not as many checkpoints as rows before the last, or the span is no decode.
    #[error(
        "span {span} of {rows} rows ({kind:?}) has {checkpoints} checkpoints; only a decode has any, and then \
         one for each row but the last"
    )]
    Checkpoints {
        /// Index of the span.
        span: usize,
        /// Its kind.
        kind: SpanKind,
        /// Its number of rows.
        rows: usize,
        /// Its number of checkpoints.
        checkpoints: usize,
    },
    /// A slot does not exist or appears twice.
    #[error("slot {slot} of span {span} is used twice or is not below {slots}")]
    Slot {
        /// Index of the span.
        span: usize,
        /// Its slot, or that of a checkpoint.
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
        check_checkpoints(&spans)?;
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

    /// A batch of parts of one that was checked.
    pub(crate) fn part_of_checked(tokens: Vec<u32>, spans: Vec<Span>) -> Self {
        Self { tokens, spans, outputs: vec![] }
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

fn check_checkpoints(spans: &[Span]) -> Result<(), BatchError> {
    for (span, Span { kind, rows, checkpoints, .. }) in spans.iter().enumerate() {
        let fits = *kind == SpanKind::Decode && checkpoints.len() + 1 == rows.len();
        if !checkpoints.is_empty() && !fits {
            let (rows, checkpoints) = (rows.len(), checkpoints.len());
            return Err(BatchError::Checkpoints { span, kind: *kind, rows, checkpoints });
        }
    }
    Ok(())
}

fn check_cache(spans: &[Span], cache: CacheSize) -> Result<(), BatchError> {
    let mut slot_used = vec![false; cache.slots];
    let mut readers = vec![0_u32; cache.pages];
    for (i, span) in spans.iter().enumerate() {
        for &slot in std::iter::once(&span.slot).chain(&span.checkpoints) {
            if slot >= cache.slots || std::mem::replace(&mut slot_used[slot], true) {
                return Err(BatchError::Slot { span: i, slot, slots: cache.slots });
            }
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
        let (kind, pages) = (SpanKind::Prefill, pages.to_vec());
        Span { kind, rows, position, slot, pages, checkpoints: vec![] }
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
    fn checkpoints_are_slots_of_their_own_for_all_rows_but_the_last() {
        let cache = CacheSize { pages: 4, slots: 5 };
        let check = |kind, checkpoints: &[usize]| {
            let drafted =
                Span { kind, checkpoints: checkpoints.to_vec(), ..span(0..3, 0, 1, &[0]) };
            let spans = vec![drafted, span(3..4, 0, 4, &[1])];
            Batch::new(vec![1; 4], spans, vec![], 10, cache).map(|_| ())
        };
        assert_eq!(check(SpanKind::Decode, &[]), Ok(()));
        assert_eq!(check(SpanKind::Decode, &[3, 0]), Ok(()));
        for (kind, wrong) in [
            (SpanKind::Decode, &[3][..]),
            (SpanKind::Decode, &[3, 0, 2]),
            (SpanKind::Prefill, &[3, 0]),
        ] {
            assert!(matches!(check(kind, wrong), Err(BatchError::Checkpoints { span: 0, .. })));
        }
        // Beyond the cache, twice, the span's own, another span's.
        for wrong in [[3, 5], [3, 3], [1, 3], [3, 4]] {
            assert!(matches!(check(SpanKind::Decode, &wrong), Err(BatchError::Slot { .. })));
        }
    }

    #[test]
    fn a_decode_is_run_row_by_row() {
        let pieces = |kind, checkpoints: Vec<usize>| -> Vec<_> {
            Span { kind, checkpoints, ..span(2..5, 0, 0, &[0]) }.pieces().collect()
        };
        assert_eq!(pieces(SpanKind::Prefill, vec![]), [(2..5, None)]);
        let rows = [(2..3, Some(7)), (3..4, Some(8)), (4..5, None)];
        assert_eq!(pieces(SpanKind::Decode, vec![7, 8]), rows);
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
