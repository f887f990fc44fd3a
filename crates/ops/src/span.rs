//! Consecutive rows of one sequence: its place in the batch, in the sequence and in the cache.
//!
//! A prefill slice has many rows, a decode step one, or several of which the later are drafts.

use calla_model::shape::PAGE_TOKENS;
use std::ops::Range;

/// Which arithmetic a span's rows are computed with, where a backend has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// Prompt tokens. The span starts at a cut of the prompt (see `calla-engine`'s cut rule) and names those
    /// inside it, so a backend that computes in chunks can start a chunk at each ([`Span::chunks`]).
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
    /// Positions in the sequence, in increasing order, where the prompt is cut inside the span: after its first
    /// position and before its end. A decode has none.
    pub cuts: Vec<usize>,
}

impl Span {
    /// A span without checkpoints and without cuts.
    #[must_use]
    pub fn new(
        kind: SpanKind,
        rows: Range<usize>,
        position: usize,
        slot: usize,
        pages: Vec<usize>,
    ) -> Self {
        Self { kind, rows, position, slot, pages, checkpoints: vec![], cuts: vec![] }
    }

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

    /// The rows of a prefill in chunks, for a backend whose results depend on which rows it computes together. A
    /// chunk starts at the first row, at each cut, and every [`PAGE_TOKENS`] rows after these. A decode has none.
    ///
    /// The chunks of a prompt are then the same however it is divided into spans, provided that it is
    /// divided at cuts and that each span names its own.
    pub fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let rows = match self.kind {
            SpanKind::Prefill => self.rows.clone(),
            SpanKind::Decode => 0..0,
        };
        let cut_rows = self.cuts.iter().map(|cut| self.rows.start + cut - self.position);
        let starts = std::iter::once(rows.start).chain(cut_rows.clone());
        let ends = cut_rows.chain([rows.end]);
        starts.zip(ends).flat_map(|(start, end)| {
            let chunk = move |row| row..end.min(row + PAGE_TOKENS);
            (start..end).step_by(PAGE_TOKENS).map(chunk)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_is_run_row_by_row() {
        let pieces = |kind, checkpoints: Vec<usize>| -> Vec<_> {
            Span { checkpoints, ..Span::new(kind, 2..5, 0, 0, vec![0]) }.pieces().collect()
        };
        assert_eq!(pieces(SpanKind::Prefill, vec![]), [(2..5, None)]);
        let rows = [(2..3, Some(7)), (3..4, Some(8)), (4..5, None)];
        assert_eq!(pieces(SpanKind::Decode, vec![7, 8]), rows);
    }

    fn prefill(rows: Range<usize>, position: usize, cuts: &[usize]) -> Span {
        Span { cuts: cuts.to_vec(), ..Span::new(SpanKind::Prefill, rows, position, 0, vec![]) }
    }

    #[test]
    fn chunks_start_at_cuts_and_every_64_rows_after_them() {
        // First row and number of rows.
        let chunks = |span: Span| span.chunks().map(|c| (c.start, c.len())).collect::<Vec<_>>();
        assert_eq!(chunks(prefill(7..8, 20, &[])), [(7, 1)]);
        assert_eq!(chunks(prefill(7..71, 20, &[])), [(7, 64)]);
        assert_eq!(chunks(prefill(7..72, 20, &[])), [(7, 64), (71, 1)]);
        assert_eq!(chunks(Span { kind: SpanKind::Decode, ..prefill(7..9, 20, &[]) }), []);
        // Cuts after 3, 64 + 3 and 64 + 10 rows; then 130 rows to the end.
        let cut = prefill(5..5 + 204, 100, &[103, 167, 174]);
        assert_eq!(chunks(cut), [(5, 3), (8, 64), (72, 7), (79, 64), (143, 64), (207, 2)]);
    }

    #[test]
    fn chunks_do_not_depend_on_where_a_prompt_is_divided() {
        let cuts = [10, 74, 138, 150, 151, 215];
        let positions = |span: &Span| -> Vec<Range<usize>> {
            let chunks = span.chunks();
            chunks.map(|c| span.position_of(c.start)..span.position_of(c.end)).collect()
        };
        let whole = positions(&prefill(0..240, 0, &cuts));
        assert_eq!(whole.len(), cuts.len() + 1);
        for (i, &at) in cuts.iter().enumerate() {
            let before = prefill(9..9 + at, 0, &cuts[..i]);
            let after = prefill(2..2 + 240 - at, at, &cuts[i + 1..]);
            assert_eq!([positions(&before), positions(&after)].concat(), whole, "{at}");
        }
    }
}
