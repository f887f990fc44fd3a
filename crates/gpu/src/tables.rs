//! What a step's rows are, as the kernels read it: `kernels/tables.h` has the same structures.

use bytemuck::{Pod, Zeroable};

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SpanEntry {
    /// First row in the batch.
    pub first_row: u32,
    /// Number of rows.
    pub rows: u32,
    /// Position in the sequence of the first row.
    pub position: u32,
    /// Slot of recurrent state before the first row. A step never writes a slot that it reads.
    pub slot_in: u32,
    /// Slot that receives the state after the last row.
    pub slot_out: u32,
    /// Index of its first page in the page table.
    pub first_page: u32,
    /// Index in the checkpoints of the slot that receives the state after row 0.
    pub first_checkpoint: u32,
    /// 0, or one fewer than rows.
    pub checkpoints: u32,
}

impl SpanEntry {
    /// 32-bit words of an entry.
    pub const WORDS: u32 = size_of::<Self>() as u32 / 4;
}

/// At most 64 rows of a span that the recurrence takes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ChunkEntry {
    /// First row in the batch.
    pub first_row: u32,
    /// Number of rows, 1 to 64.
    pub rows: u32,
    /// Index of its span.
    pub span: u32,
}

impl ChunkEntry {
    /// 32-bit words of an entry.
    pub const WORDS: u32 = size_of::<Self>() as u32 / 4;
}

/// Where a step's tables lie on the device.
///
/// A decode plan is recorded for its number of rows, and everything that changes from step to step is read from here.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// Token of each row, `u32 [rows]`.
    pub tokens: crate::Tensor,
    /// Position in its sequence of each row, `u32 [rows]`.
    pub positions: crate::Tensor,
    /// Span of each row, `u32 [rows]`.
    pub row_spans: crate::Tensor,
    /// Spans, `u32 [spans, 8]` ([`SpanEntry`]).
    pub spans: crate::Tensor,
    /// Page tables of all spans, one after the other, `u32 [1, n]`.
    pub pages: crate::Tensor,
    /// Slots that receive states after rows that may be taken back, `u32 [1, n]`.
    pub checkpoints: crate::Tensor,
    /// Chunks of a prefill in order of rows, `u32 [chunks, 3]` ([`ChunkEntry`]).
    pub chunks: crate::Tensor,
    /// Rows whose logits are wanted, `u32 [outputs]`.
    pub outputs: crate::Tensor,
}
