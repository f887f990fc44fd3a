//! What a step's rows are, out of its batch: all tables in one buffer, so that one write a step fills them.

use crate::cache::SlotMoves;
use crate::device::{Device, DeviceError};
use crate::tables::{ChunkEntry, SpanEntry, Tables};
use crate::tensor::{BufferId, Dtype, Place, Tensor};
use calla_ops::{Batch, Span};

/// Rows of all tables but the page table: what a recorded plan is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableCounts {
    /// Rows of the batch.
    pub rows: u32,
    /// Spans.
    pub spans: u32,
    /// Chunks of the recurrence. Spans of a decode have none.
    pub chunks: u32,
    /// Rows whose logits are wanted.
    pub outputs: u32,
}

/// Tables start at multiples of so many bytes.
const ALIGNMENT: u64 = 16;

impl TableCounts {
    /// Those of a batch.
    #[must_use]
    pub fn of(batch: &Batch) -> Self {
        Self {
            rows: index(batch.rows()),
            spans: index(batch.spans().len()),
            chunks: index(batch.spans().iter().map(|span| span.chunks().count()).sum()),
            outputs: index(batch.outputs().len()),
        }
    }

    /// Bytes of a buffer for these tables and a page table of `pages` entries.
    #[must_use]
    pub fn bytes(&self, pages: usize) -> u64 {
        self.places(Place::Scratch(0)).1 + pages as u64 * Dtype::U32.size()
    }

    /// All tables from the start of `place` on, one after the other, and where the page table starts.
    fn places(&self, place: Place) -> (Tables, u64) {
        let mut next = 0;
        let mut table = |rows, cols| {
            let table = Tensor::new(place, next, rows, cols, Dtype::U32);
            next = (next + table.range.len).next_multiple_of(ALIGNMENT);
            table
        };
        let tables = Tables {
            tokens: table(self.rows, 1),
            positions: table(self.rows, 1),
            row_spans: table(self.rows, 1),
            spans: table(self.spans, SpanEntry::WORDS),
            // A span has one fewer than rows, or none.
            checkpoints: table(1, self.rows.saturating_sub(self.spans)),
            chunks: table(self.chunks, ChunkEntry::WORDS),
            outputs: table(self.outputs, 1),
            pages: table(1, 0),
        };
        (tables, next)
    }
}

/// Entries of the page table of a batch.
#[must_use]
pub fn page_entries(batch: &Batch) -> usize {
    batch.spans().iter().map(|span| span.pages.len()).sum()
}

/// A buffer has no room for the tables of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tables of {} rows take more than {start} bytes, but their buffer has {bytes}; make it larger",
    counts.rows
)]
pub struct TablesTooLarge {
    /// Their counts.
    pub counts: TableCounts,
    /// Where the page table would start.
    pub start: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
}

/// A buffer that holds the tables of one step after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableBuffer {
    /// The buffer.
    pub buffer: BufferId,
    /// Bytes that it has.
    pub bytes: u64,
}

impl TableBuffer {
    /// Allocates `bytes` (see [`TableCounts::bytes`]).
    ///
    /// # Errors
    /// If the device has not the memory.
    pub fn new(device: &mut dyn Device, bytes: u64) -> Result<Self, DeviceError> {
        Ok(Self { buffer: device.allocate("tables of a step", bytes)?, bytes })
    }

    /// Where the tables of a step lie: a function of its counts alone, so that a plan that was recorded for them stays
    /// good. The page table comes last and has the rest of the buffer, `[1, n]` with n at least 1.
    ///
    /// # Errors
    /// If the buffer is too small.
    pub fn tables(&self, counts: TableCounts) -> Result<Tables, TablesTooLarge> {
        let place = Place::Buffer(self.buffer);
        let (tables, start) = counts.places(place);
        let entries = self.bytes.saturating_sub(start) / Dtype::U32.size();
        if entries == 0 {
            return Err(TablesTooLarge { counts, start, bytes: self.bytes });
        }
        // A binding of 16 GiB is as large as one gets.
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        Ok(Tables { pages: Tensor::new(place, start, 1, entries, Dtype::U32), ..tables })
    }
}

/// The tables of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTables {
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Position of each row.
    pub positions: Vec<u32>,
    /// Span of each row.
    pub row_spans: Vec<u32>,
    /// Spans.
    pub spans: Vec<SpanEntry>,
    /// Physical slots of all checkpoints.
    pub checkpoints: Vec<u32>,
    /// Chunks of all spans of a prefill.
    pub chunks: Vec<ChunkEntry>,
    /// Rows whose logits are wanted.
    pub outputs: Vec<u32>,
    /// Pages of all spans.
    pub pages: Vec<u32>,
}

impl StepTables {
    /// Those of a batch, or of a part of one, whose sequences move as `moves` says.
    ///
    /// # Panics
    /// If `moves` were begun without one of its spans.
    #[must_use]
    pub fn new(batch: &Batch, moves: &SlotMoves) -> Self {
        let mut tables = Self {
            tokens: batch.tokens().to_vec(),
            outputs: batch.outputs().iter().map(|&row| index(row)).collect(),
            ..Self::default()
        };
        for (i, span) in (0..).zip(batch.spans()) {
            tables.push(i, span, moves);
        }
        tables
    }

    fn push(&mut self, index_of_span: u32, span: &Span, moves: &SlotMoves) {
        let [slot_in, slot_out] = moves.of(span.slot).expect("moves of the step's spans");
        self.spans.push(SpanEntry {
            first_row: index(span.rows.start),
            rows: index(span.rows.len()),
            position: index(span.position),
            slot_in,
            slot_out,
            first_page: index(self.pages.len()),
            first_checkpoint: index(self.checkpoints.len()),
            checkpoints: index(span.checkpoints.len()),
        });
        self.positions.extend(span.rows.clone().map(|row| index(span.position_of(row))));
        self.row_spans.extend(span.rows.clone().map(|_| index_of_span));
        let checkpoint = |&slot| moves.checkpoint(slot).expect("moves of the step's checkpoints");
        self.checkpoints.extend(span.checkpoints.iter().map(checkpoint));
        self.chunks.extend(span.chunks().map(|rows| ChunkEntry {
            first_row: index(rows.start),
            rows: index(rows.len()),
            span: index_of_span,
        }));
        self.pages.extend(span.pages.iter().map(|&page| index(page)));
    }

    /// Their counts.
    #[must_use]
    pub fn counts(&self) -> TableCounts {
        TableCounts {
            rows: index(self.tokens.len()),
            spans: index(self.spans.len()),
            chunks: index(self.chunks.len()),
            outputs: index(self.outputs.len()),
        }
    }

    /// What a [`TableBuffer`] holds from its start to the last entry of the page table.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (tables, start) = self.counts().places(Place::Scratch(0));
        let mut bytes = vec![0; start as usize + self.pages.len() * size_of::<u32>()];
        let mut put = |at: u64, values: &[u32]| {
            let values: &[u8] = bytemuck::cast_slice(values);
            bytes[at as usize..][..values.len()].copy_from_slice(values);
        };
        put(tables.tokens.range.start, &self.tokens);
        put(tables.positions.range.start, &self.positions);
        put(tables.row_spans.range.start, &self.row_spans);
        put(tables.spans.range.start, bytemuck::cast_slice(&self.spans));
        put(tables.checkpoints.range.start, &self.checkpoints);
        put(tables.chunks.range.start, bytemuck::cast_slice(&self.chunks));
        put(tables.outputs.range.start, &self.outputs);
        put(start, &self.pages);
        bytes
    }
}

/// A row, page or position, as kernels take it.
fn index(index: usize) -> u32 {
    // A batch has no 2^32 of anything: its page tables alone would be larger than any memory.
    u32::try_from(index).expect("an index of a checked batch")
}
