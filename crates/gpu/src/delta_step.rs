//! One decode step of Gated DeltaNet: `kernels/delta_step.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::shape_constants::width;
use crate::state::DeltaSlots;
use crate::tables::Tables;
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuParts;
use calla_model::Shape;
use calla_model::network::DeltaNet;
use calla_model::shape::DELTA_HEAD_DIM;

/// Threadgroups that share the value columns of a head.
const COLUMN_BLOCKS: u32 = 4;

/// Convolution with SiLU, norms of q and k, gates and recurrence in one: `Ops::delta_step` of `calla_ops`, for spans
/// of few rows, which are taken one after the other.
///
/// `qkv`: bf16 `[n, channels]`, before the convolution. `b`, `a`: f32 `[n, value heads]`. `out`: f32 `[n, value heads *
/// 128]`. State and window are read from each span's `slot_in`, and written to its `slot_out` after its last row and, if
/// it has checkpoints, to those after each other row. A row's result is the same however its sequence is cut into spans.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of three kinds, in the order of the kernel's buffers"
)]
pub fn delta_step(
    shape: &Shape,
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    weights: &DeltaNet<GpuParts>,
    slots: &DeltaSlots,
    tables: &Tables,
    out: Tensor,
) -> Dispatch {
    let rows = qkv.rows;
    let widths = Widths::of(shape);
    widths.check_inputs(qkv, b, a, weights, slots);
    out.check("out", rows, widths.values, Dtype::F32);
    assert!(tables.spans.rows <= rows, "{} spans of {rows} rows", tables.spans.rows);

    let (spans, rows) = (u64::from(tables.spans.rows), u64::from(rows));
    // Every row leaves a state: in a checkpoint, or the last one in the span's own slot.
    let (state, window) = (slots.states.row_bytes(), slots.windows.row_bytes());
    let heads = u64::from(widths.value_heads);
    let dim = DELTA_HEAD_DIM as u64;
    Dispatch::new(entries::DELTA_STEP)
        .shape(shape)
        .read(qkv)
        .read(b)
        .read(a)
        .read(weights.conv1d)
        .read(weights.a_log)
        .read(weights.dt_bias)
        .read(tables.spans)
        .read_part(tables.checkpoints.range, (rows - spans) * 4)
        .read_write_part(slots.states.range, spans * state, rows * state)
        .read_write_part(slots.windows.range, spans * window, rows * window)
        .write(out)
        .grid([COLUMN_BLOCKS, widths.value_heads, tables.spans.rows], [128, 1, 1])
        // Two reads of the state, its decay and its update; the convolution counts its 4 taps.
        .flops(rows * (heads * dim * dim * 7 + u64::from(widths.channels) * 8))
}

/// Widths of Gated DeltaNet tensors.
pub(crate) struct Widths {
    /// Queries, keys and values of a row.
    pub(crate) channels: u32,
    /// Queries, or keys, of a row.
    pub(crate) keys: u32,
    /// Values of a row.
    pub(crate) values: u32,
    /// Number of value heads.
    pub(crate) value_heads: u32,
}

impl Widths {
    pub(crate) fn of(shape: &Shape) -> Self {
        Self {
            channels: width(shape.conv_dim()),
            keys: width(shape.delta_key_dim()),
            values: width(shape.delta_value_dim()),
            value_heads: width(shape.delta_value_heads),
        }
    }

    /// What `delta_step` and `delta_prep` take.
    pub(crate) fn check_inputs(
        &self,
        qkv: Tensor,
        b: Tensor,
        a: Tensor,
        weights: &DeltaNet<GpuParts>,
        slots: &DeltaSlots,
    ) {
        qkv.check_width("qkv", self.channels, Dtype::Bf16);
        for gate in [b, a] {
            gate.check("b, a", qkv.rows, self.value_heads, Dtype::F32);
        }
        weights.conv1d.check_width("conv1d", self.channels * 4, Dtype::F32);
        weights.a_log.check_width("a_log", self.value_heads, Dtype::F32);
        weights.dt_bias.check_width("dt_bias", self.value_heads, Dtype::F32);
        self.check_states(slots);
        slots.windows.check_width("windows", 3 * self.channels, Dtype::Bf16);
    }

    /// The states of a layer.
    pub(crate) fn check_states(&self, slots: &DeltaSlots) {
        let len = self.values * DELTA_HEAD_DIM as u32;
        slots.states.check_width("states", len, Dtype::F32);
    }
}
