//! Rows on their way to the draft layer: `kernels/mtp_rows.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::tables::Tables;
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    words: u32,
}

const WORD: u64 = 16;
const THREADS: u32 = 256;

/// Each row's predecessor, of a span's first the row that its `slot_in` keeps: `predecessors` of `calla_ops::runner`.
///
/// `h`, `out`: f32 `[n, H]`. `kept`: f32 `[slots, H]`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn previous_rows(h: Tensor, kept: Tensor, tables: &Tables, out: Tensor) -> Dispatch {
    check_rows(h, kept, tables);
    out.check("out", h.rows, h.cols, h.dtype);
    let spans = u64::from(tables.spans.rows);
    let dispatch = Dispatch::new(entries::PREVIOUS_ROWS)
        .read_part(h.range, (u64::from(h.rows) - spans) * h.row_bytes())
        .read_part(kept.range, spans * h.row_bytes())
        .read(tables.row_spans)
        .read(tables.spans)
        .write(out);
    over_rows(dispatch, h)
}

/// Keeps the last row of each span in its `slot_out`, and the others in its checkpoints if it has any: `keep_rows` of
/// `calla_ops::runner`.
///
/// `h`: f32 `[n, H]`. `kept`: f32 `[slots, H]`, of which other slots stay as they are.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn keep_rows(h: Tensor, kept: Tensor, tables: &Tables) -> Dispatch {
    check_rows(h, kept, tables);
    let checkpoints = u64::from(h.rows - tables.spans.rows);
    let dispatch = Dispatch::new(entries::KEEP_ROWS)
        .read(h)
        .read_write_part(kept.range, 0, h.range.len)
        .read(tables.row_spans)
        .read(tables.spans)
        .read_part(tables.checkpoints.range, checkpoints * 4);
    over_rows(dispatch, h)
}

/// `[left, right]` of each row, as `calla_ops::mtp` puts embeddings and hidden rows.
///
/// `left`, `right`: bf16 or f32 `[n, H]`. `out`: the same type, `[n, 2 H]`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn side_by_side(left: Tensor, right: Tensor, out: Tensor) -> Dispatch {
    right.check("right", left.rows, left.cols, left.dtype);
    out.check("out", left.rows, 2 * left.cols, left.dtype);
    over_rows(Dispatch::new(entries::SIDE_BY_SIDE).read(left).read(right).write(out), left)
}

fn check_rows(h: Tensor, kept: Tensor, tables: &Tables) {
    assert_eq!(h.dtype, Dtype::F32, "h");
    kept.check_width("kept", h.cols, Dtype::F32);
    let row_spans = tables.row_spans;
    assert_eq!((row_spans.rows, row_spans.dtype), (h.rows, Dtype::U32), "row_spans");
    let spans = tables.spans.rows;
    assert!((1..=h.rows).contains(&spans), "{spans} spans of {} rows", h.rows);
}

/// A thread for each word of `rows`.
fn over_rows(dispatch: Dispatch, rows: Tensor) -> Dispatch {
    assert!(rows.row_bytes().is_multiple_of(WORD), "rows of {} bytes", rows.row_bytes());
    let words = (rows.row_bytes() / WORD) as u32;
    dispatch
        .params(&Params { words })
        .grid([words.div_ceil(THREADS), rows.rows, 1], [THREADS, 1, 1])
}
