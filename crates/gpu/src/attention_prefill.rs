//! Attention of the rows of a prefill: `kernels/attention_prefill.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::limits::HEADS_PER_KV_HEAD_MAX;
use crate::qk_prep::Widths;
use crate::state::KvPool;
use crate::tables::{ChunkEntry, Tables};
use crate::tensor::{Dtype, Tensor};
use calla_model::Shape;
use calla_model::shape::PAGE_TOKENS;

/// Queries of a threadgroup: rows times heads that share keys.
const QUERIES: u32 = HEADS_PER_KV_HEAD_MAX as u32;
/// Most rows of a chunk.
const CHUNK: u32 = PAGE_TOKENS as u32;

/// Causal attention over pages and its output gate: `attention::reference`, then `attention::gate` of `calla_ops`.
///
/// `q`: bf16 `[n, heads * 256]`. `q_gate`: bf16 `[n, heads * 512]`, of which the gates are read. `out`: bf16 `[n, heads *
/// 256]`. Rows see what lies in the pages of their span up to their own position; keys and values of the step's own rows
/// have to be there already. `tables.chunks` covers the rows, however it cuts them.
///
/// `context`: the most positions that a row sees. Traffic and operations are those of rows that all see so many, as they
/// are executed: each tile of `32 / (heads / kv heads)` rows reads keys and values of its context once. No result depends
/// on it.
///
/// # Panics
/// If a tensor has another shape or type, or more than 32 heads share keys.
#[must_use]
pub fn attention_prefill(
    shape: &Shape,
    q: Tensor,
    q_gate: Tensor,
    pool: &KvPool,
    tables: &Tables,
    context: u32,
    out: Tensor,
) -> Dispatch {
    let widths = Widths::of(shape);
    widths.check_queries(q, q_gate, out, Dtype::Bf16);
    widths.check_pool(pool);
    widths.check_tables(tables, q.rows);
    tables.chunks.check_width("chunks", ChunkEntry::WORDS, Dtype::U32);
    assert!(widths.group() <= QUERIES, "{} heads share keys, at most {QUERIES}", widths.group());

    let tile_rows = QUERIES / widths.group();
    let chunks = tables.chunks.rows;
    // Chunks are cut into tiles one by one.
    let tiles = u64::from(q.rows.div_ceil(tile_rows)) + u64::from(chunks - 1);
    let seen = tiles * u64::from(context.next_multiple_of(CHUNK));
    let kv_bytes = seen * u64::from(widths.keys) * Dtype::Bf16.size();
    Dispatch::new(entries::ATTENTION_PREFILL)
        .shape(shape)
        .read(q)
        .read_part(q_gate.range, q_gate.range.len / 2)
        .read_part(pool.keys.range, kv_bytes)
        .read_part(pool.values.range, kv_bytes)
        .read(tables.positions)
        .read(tables.chunks)
        .read(tables.spans)
        .read_part(tables.pages.range, seen / u64::from(CHUNK) * 4)
        .write(out)
        .grid([CHUNK.div_ceil(tile_rows), widths.kv_heads, chunks], [128, 1, 1])
        .flops(4 * seen * u64::from(QUERIES * widths.keys))
}
