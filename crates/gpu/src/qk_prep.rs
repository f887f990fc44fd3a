//! Norm and rotary embedding of queries and keys, and the append to the KV pages: `kernels/qk_prep.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::rotations::Rotations;
use crate::shape_constants::width;
use crate::state::KvPool;
use crate::tables::{SpanEntry, Tables};
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuParts;
use bytemuck::NoUninit;
use calla_model::Shape;
use calla_model::network::Attention;
use calla_model::shape::{HEAD_DIM, PAGE_TOKENS, ROTARY_DIM};

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    eps: f32,
}

/// Heads of a threadgroup.
const GROUP_HEADS: u32 = 4;

/// Norms and rotates queries and keys, and writes keys and values to the pages of their positions:
/// `calla_ops::qk_prep::reference`, then `attention::append`.
///
/// `q_gate`: `[n, heads * 512]`, of which the gates are not read. `k`, `v`: `[n, kv heads * 256]`. `q`: `[n, heads * 256]`.
/// All four are f32, or all bf16. Pages have bf16. Positions are at most 512 beyond the shape's `max_positions`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of four kinds, in the order of the kernel's buffers"
)]
pub fn qk_prep(
    shape: &Shape,
    q_gate: Tensor,
    k: Tensor,
    v: Tensor,
    weights: &Attention<GpuParts>,
    rotations: &Rotations,
    tables: &Tables,
    pool: &KvPool,
    q: Tensor,
) -> Dispatch {
    let widths = Widths::of(shape);
    let (rows, dtype) = (q_gate.rows, q_gate.dtype);
    q_gate.check("q_gate", rows, 2 * widths.queries, dtype);
    k.check("k", rows, widths.keys, dtype);
    v.check("v", rows, widths.keys, dtype);
    q.check("q", rows, widths.queries, dtype);
    for norm in [weights.q_norm, weights.k_norm] {
        norm.check_width("q_norm, k_norm", HEAD_DIM as u32, Dtype::F32);
    }
    widths.check_pool(pool);
    widths.check_tables(tables, rows);
    let entry = match dtype {
        Dtype::F32 => entries::QK_PREP_F32,
        Dtype::Bf16 => entries::QK_PREP_BF16,
        Dtype::U32 => panic!("q_gate of {dtype:?}"),
    };

    let heads = widths.heads + 2 * widths.kv_heads;
    let turned = u64::from(rows) * u64::from(widths.heads + widths.kv_heads);
    // A row needs a row of each table of angles.
    let angles = u64::from(rows) * ROTARY_DIM as u64 * 4;
    let appended = u64::from(rows) * u64::from(widths.keys) * Dtype::Bf16.size();
    Dispatch::new(entry)
        .shape(shape)
        .read_part(q_gate.range, q_gate.range.len / 2)
        .read(k)
        .read(v)
        .read(weights.q_norm)
        .read(weights.k_norm)
        .read_part(rotations.coarse.range, angles)
        .read_part(rotations.fine.range, angles)
        .read(tables.positions)
        .read(tables.row_spans)
        .read(tables.spans)
        .read_part(tables.pages.range, u64::from(rows) * 4)
        .read_write_part(pool.keys.range, 0, appended)
        .read_write_part(pool.values.range, 0, appended)
        .write(q)
        .params(&Params { eps: shape.rms_norm_eps })
        .grid([heads.div_ceil(GROUP_HEADS), rows, 1], [GROUP_HEADS * 32, 1, 1])
        // Squares, their sum and two factors; three operations for a rotated value, and its angle.
        .flops(turned * (4 * HEAD_DIM + 6 * ROTARY_DIM) as u64)
}

/// Widths of attention tensors.
pub(crate) struct Widths {
    /// Query heads.
    pub(crate) heads: u32,
    /// Key and value heads.
    pub(crate) kv_heads: u32,
    /// Queries of a row.
    pub(crate) queries: u32,
    /// Keys, or values, of a row.
    pub(crate) keys: u32,
}

impl Widths {
    pub(crate) fn of(shape: &Shape) -> Self {
        Self {
            heads: width(shape.attention_heads),
            kv_heads: width(shape.kv_heads),
            queries: width(shape.query_dim()),
            keys: width(shape.kv_dim()),
        }
    }

    /// Query heads that share a head of keys and values.
    pub(crate) fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    pub(crate) fn check_pool(&self, pool: &KvPool) {
        for part in [pool.keys, pool.values] {
            let page = self.keys * PAGE_TOKENS as u32;
            part.check_width("a page", page, Dtype::Bf16);
        }
    }

    /// What attention reads of the tables of `rows` rows.
    pub(crate) fn check_tables(&self, tables: &Tables, rows: u32) {
        for table in [tables.positions, tables.row_spans] {
            table.check("positions, row_spans", rows, 1, Dtype::U32);
        }
        tables.spans.check_width("spans", SpanEntry::WORDS, Dtype::U32);
        assert_eq!(tables.pages.dtype, Dtype::U32, "pages");
    }

    /// What attention takes and gives: `q` and `out` `[n, heads * 256]`, `q_gate` twice as wide.
    pub(crate) fn check_queries(&self, q: Tensor, q_gate: Tensor, out: Tensor, dtype: Dtype) {
        for (tensor, cols) in [(q, self.queries), (q_gate, 2 * self.queries), (out, self.queries)] {
            tensor.check("q, q_gate, out", q.rows, cols, dtype);
        }
    }
}
