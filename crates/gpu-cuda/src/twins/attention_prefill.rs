//! Attention of the rows of a prefill on tensor cores: `kernels/attention_prefill.cu` says how.

use super::index::{HEADS, KV_HEADS};
use super::{Launch, Twin, constant, twin};

/// Queries of a block: rows times heads that share keys.
const QUERIES: u32 = 128;
const THREADS: u32 = 256;
const CHUNK_ROWS: u32 = 64;
/// Bytes of a query, key or value.
const HEAD_BYTES: u32 = 256 * 2;
/// Queries, and two pages of 64 keys and values.
const SHARED: u32 = (QUERIES + 2 * 2 * 64) * HEAD_BYTES;

pub(crate) const ATTENTION_PREFILL: Twin =
    twin!("attention_prefill.cu", ["attention_prefill"], |dispatch| {
        let kv_heads = constant(dispatch, KV_HEADS)?;
        let tile_rows = (QUERIES * kv_heads / constant(dispatch, HEADS)?).min(CHUNK_ROWS);
        Some(Launch {
            grid: [CHUNK_ROWS.div_ceil(tile_rows), kv_heads, dispatch.grid[2]],
            threads: [THREADS, 1, 1],
            shared: SHARED,
        })
    });
