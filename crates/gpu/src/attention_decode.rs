//! Attention of few rows: `kernels/attention_decode.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::qk_prep::Widths;
use crate::scratch::Scratch;
use crate::state::KvPool;
use crate::tables::Tables;
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;
use calla_model::Shape;
use calla_model::shape::{HEAD_DIM, PAGE_TOKENS};

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    blocks: u32,
}

/// Positions of a tile: a block is one tile or more.
const TILE: u32 = 128;
/// Most blocks of a row.
const BLOCKS_MAX: u32 = 128;
/// Most query heads of a threadgroup.
const GROUP_MAX: u32 = 8;
/// Dimensions of a threadgroup that joins blocks.
const COLUMNS: u32 = 128;

/// Causal attention over pages and its output gate: `attention::reference`, then `attention::gate` of `calla_ops`.
///
/// `q`: f32 `[n, heads * 256]`. `q_gate`: f32 `[n, heads * 512]`, of which the gates are read. `out`: f32 `[n, heads *
/// 256]`. Rows see what lies in the pages of their span up to their own position; keys and values of the step's own rows
/// have to be there already.
///
/// `context`: the most positions that any row sees, at least its position and one. It sizes grid and scratch; no result
/// depends on it. Traffic and operations are those of rows that all see so many.
///
/// Two dispatches, the second after the first. Scratch: 1032 bytes for each row, head and 128 positions of the context, of
/// which the first 16,384 count.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of three kinds, in the order of the kernel's buffers"
)]
pub fn attention_decode(
    shape: &Shape,
    q: Tensor,
    q_gate: Tensor,
    pool: &KvPool,
    tables: &Tables,
    context: u32,
    scratch: &mut dyn Scratch,
    out: Tensor,
) -> Vec<Dispatch> {
    let widths = Widths::of(shape);
    let rows = q.rows;
    widths.check_queries(q, q_gate, out, Dtype::F32);
    widths.check_pool(pool);
    widths.check_tables(tables, rows);
    assert!(context > 0, "every row sees itself");

    let blocks = context.div_ceil(TILE).min(BLOCKS_MAX);
    let items = rows * widths.heads;
    let sums = scratch.tensor(items, blocks * HEAD_DIM as u32, Dtype::F32);
    let stats = scratch.tensor(items, blocks * 2, Dtype::F32);

    let parts = widths.group().div_ceil(GROUP_MAX);
    let seen = u64::from(rows) * u64::from(context);
    let kv_bytes = seen * u64::from(widths.keys * parts) * Dtype::Bf16.size();
    let page_entries = seen.div_ceil(PAGE_TOKENS as u64) * 4;
    let products = seen * u64::from(widths.queries);
    vec![
        Dispatch::new(entries::ATTENTION_DECODE)
            .shape(shape)
            .read(q)
            .read_part(pool.keys.range, kv_bytes)
            .read_part(pool.values.range, kv_bytes)
            .read(tables.positions)
            .read(tables.row_spans)
            .read(tables.spans)
            .read_part(tables.pages.range, page_entries)
            .write(sums)
            .write(stats)
            .params(&Params { blocks })
            .grid([blocks, widths.kv_heads * parts, rows], [256, 1, 1])
            .flops(4 * products),
        Dispatch::new(entries::ATTENTION_COMBINE)
            .shape(shape)
            .read(sums)
            .read(stats)
            .read_part(q_gate.range, q_gate.range.len / 2)
            .read(tables.positions)
            .write(out)
            .params(&Params { blocks })
            .grid([HEAD_DIM as u32 / COLUMNS, widths.heads, rows], [256, 1, 1])
            .flops(2 * u64::from(items) * u64::from(blocks) * HEAD_DIM as u64),
    ]
}
