//! What a prefill computes in front of the Gated DeltaNet recurrence: `kernels/delta_prep.metal`.

use crate::delta_step::Widths;
use crate::dispatch::Dispatch;
use crate::entries;
use crate::state::DeltaSlots;
use crate::tables::Tables;
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuParts;
use bytemuck::NoUninit;
use calla_model::Shape;
use calla_model::network::DeltaNet;
use calla_ops::ops::DeltaTerms;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    rows: u32,
}

/// Rows of a tile, as the kernel has them.
const TILE_ROWS: u32 = 8;
/// Heads of a threadgroup: one for each simdgroup.
const HEADS: u32 = 4;

/// Convolution with SiLU, split, norms of q and k, and gates: `conv_silu` and `delta_prep` of `calla_ops`.
///
/// `qkv`: bf16 `[n, channels]`, before the convolution. `b`, `a`: f32 `[n, value heads]`. `terms`: q, k, v bf16, beta
/// and log decay f32. Windows are read from each span's `slot_in` and written to its `slot_out`; there are no
/// checkpoints.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of three kinds, in the order of the kernel's buffers"
)]
pub fn delta_prep(
    shape: &Shape,
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    weights: &DeltaNet<GpuParts>,
    slots: &DeltaSlots,
    tables: &Tables,
    terms: &DeltaTerms<Tensor>,
) -> Dispatch {
    let rows = qkv.rows;
    let widths = Widths::of(shape);
    widths.check_inputs(qkv, b, a, weights, slots);
    widths.check_terms(terms, rows);
    assert_eq!(
        (tables.row_spans.range.len, tables.row_spans.dtype),
        (u64::from(rows) * 4, Dtype::U32),
        "row_spans"
    );

    let heads = widths.channels / 128;
    let windows = u64::from(tables.spans.rows) * slots.windows.row_bytes();
    Dispatch::new(entries::DELTA_PREP)
        .shape(shape)
        .read(qkv)
        .read(b)
        .read(a)
        .read(weights.conv1d)
        .read(weights.a_log)
        .read(weights.dt_bias)
        .read(tables.row_spans)
        .read(tables.spans)
        .read_write_part(slots.windows.range, windows, windows)
        .write(terms.q)
        .write(terms.k)
        .write(terms.v)
        .write(terms.beta)
        .write(terms.log_decay)
        .params(&Params { rows })
        .grid([heads.div_ceil(HEADS), rows.div_ceil(TILE_ROWS), 1], [HEADS * 32, 1, 1])
        // Four taps; squares and scaling of q and k.
        .flops(u64::from(rows) * (u64::from(widths.channels) * 8 + u64::from(widths.keys) * 6))
}

impl Widths {
    /// What `delta_prep` gives and `gated_delta` takes.
    pub(crate) fn check_terms(&self, terms: &DeltaTerms<Tensor>, rows: u32) {
        terms.q.check("q", rows, self.keys, Dtype::Bf16);
        terms.k.check("k", rows, self.keys, Dtype::Bf16);
        terms.v.check("v", rows, self.values, Dtype::Bf16);
        terms.beta.check("beta", rows, self.value_heads, Dtype::F32);
        terms.log_decay.check("log_decay", rows, self.value_heads, Dtype::F32);
    }
}
