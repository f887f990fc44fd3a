//! The unit of work: a ragged batch of rows, checked.
//!
//! A row is one token of one sequence, and consecutive rows of one sequence form a [`Span`]. Spans of many
//! sequences share a batch, and no row's result depends on which others it is batched with.

use crate::cache::CacheSize;
use crate::span::{Span, SpanKind};
use calla_model::shape::PAGE_TOKENS;
use std::ops::Range;

/// A checked batch. Holding one proves: the spans cover the rows in order, tokens are below the vocabulary,
/// slots and pages exist, no slot (checkpoints included) appears twice, no page that a span writes is used by
/// another, and cuts lie inside the spans that name them, in order.
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
    /// A cut is not inside its span, cuts are not in increasing order, or the span is no prefill.
    #[error(
        "cut {cut} of span {span} ({kind:?}) is not increasing or not inside positions {positions:?}; only a \
         prefill has any, each after its first position"
    )]
    Cut {
        /// Index of the span.
        span: usize,
        /// Its kind.
        kind: SpanKind,
        /// The cut.
        cut: usize,
        /// Positions of the span.
        positions: Range<usize>,
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
        check_cuts(&spans)?;
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

    /// The spans of one kind as a batch of their own, and for each of its outputs which of [`Batch::outputs`] it
    /// is; `None` if there is no such span. Rows are numbered anew, all else about a span stays as it is.
    #[must_use]
    pub fn part(&self, kind: SpanKind) -> Option<(Self, Vec<usize>)> {
        let (mut tokens, mut spans) = (vec![], vec![]);
        let (mut outputs, mut origins) = (vec![], vec![]);
        let mut seen = 0;
        for span in &self.spans {
            let of_span = self.outputs[seen..].partition_point(|&row| row < span.rows.end);
            let its_outputs = seen..seen + of_span;
            seen = its_outputs.end;
            if span.kind != kind {
                continue;
            }
            let start = tokens.len();
            tokens.extend_from_slice(&self.tokens[span.rows.clone()]);
            let rows = self.outputs[its_outputs.clone()].iter();
            outputs.extend(rows.map(|row| start + row - span.rows.start));
            origins.extend(its_outputs);
            spans.push(Span { rows: start..tokens.len(), ..span.clone() });
        }
        (!spans.is_empty()).then_some((Self { tokens, spans, outputs }, origins))
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

fn check_cuts(spans: &[Span]) -> Result<(), BatchError> {
    for (i, span) in spans.iter().enumerate() {
        let positions = span.position..span.position + span.rows.len();
        let mut last = span.position;
        for &cut in &span.cuts {
            if span.kind != SpanKind::Prefill || cut <= last || cut >= positions.end {
                return Err(BatchError::Cut { span: i, kind: span.kind, cut, positions });
            }
            last = cut;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: CacheSize = CacheSize { pages: 4, slots: 2 };

    fn span(rows: Range<usize>, position: usize, slot: usize, pages: &[usize]) -> Span {
        Span::new(SpanKind::Prefill, rows, position, slot, pages.to_vec())
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
    fn cuts_lie_inside_a_prefill_in_order() {
        let check = |kind, cuts: &[usize]| {
            let cut = Span { kind, cuts: cuts.to_vec(), ..span(0..70, 30, 0, &[0, 1]) };
            check(70, &[cut], &[])
        };
        assert_eq!(check(SpanKind::Prefill, &[31, 64, 99]), Ok(()));
        // At the start, at the end, twice, backwards.
        for (wrong, bad) in [(&[30][..], 30), (&[31, 100], 100), (&[40, 40], 40), (&[40, 39], 39)] {
            let error =
                BatchError::Cut { span: 0, kind: SpanKind::Prefill, cut: bad, positions: 30..100 };
            assert_eq!(check(SpanKind::Prefill, wrong), Err(error), "{wrong:?}");
        }
        let decode = check(SpanKind::Decode, &[64]);
        assert!(matches!(decode, Err(BatchError::Cut { kind: SpanKind::Decode, .. })));
    }

    #[test]
    fn a_part_has_the_spans_of_one_kind() {
        let cache = CacheSize { pages: 8, slots: 8 };
        let batch = |tokens: &[u32], spans: &[Span], outputs: &[usize]| {
            Batch::new(tokens.to_vec(), spans.to_vec(), outputs.to_vec(), 100, cache).unwrap()
        };
        let decode = |rows, slot, checkpoints: &[usize]| Span {
            kind: SpanKind::Decode,
            checkpoints: checkpoints.to_vec(),
            ..span(rows, 5, slot, &[slot])
        };
        let prefill = |rows: Range<usize>, slot, cuts: &[usize]| Span {
            cuts: cuts.to_vec(),
            ..span(rows, 3, slot, &[slot])
        };
        let mixed = batch(
            &[10, 20, 21, 22, 30, 31, 40, 41, 50],
            &[
                decode(0..1, 0, &[]),
                prefill(1..4, 1, &[4]),
                decode(4..6, 2, &[6]),
                prefill(6..8, 3, &[]),
                prefill(8..9, 4, &[]),
            ],
            &[0, 3, 4, 5, 8],
        );
        let decodes =
            batch(&[10, 30, 31], &[decode(0..1, 0, &[]), decode(1..3, 2, &[6])], &[0, 1, 2]);
        let prefills = batch(
            &[20, 21, 22, 40, 41, 50],
            &[prefill(0..3, 1, &[4]), prefill(3..5, 3, &[]), prefill(5..6, 4, &[])],
            &[2, 5],
        );
        assert_eq!(mixed.part(SpanKind::Decode), Some((decodes.clone(), vec![0, 2, 3])));
        assert_eq!(mixed.part(SpanKind::Prefill), Some((prefills, vec![1, 4])));
        assert_eq!(decodes.part(SpanKind::Decode), Some((decodes.clone(), vec![0, 1, 2])));
        assert_eq!(decodes.part(SpanKind::Prefill), None);
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
