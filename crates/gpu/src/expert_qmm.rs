//! Products of many rows with the matrices of their experts, in tiles: prefill's mixture of experts.
//!
//! Rows come grouped by expert ([`Grouped`]). A threadgroup computes a tile of one block of the block map, as in
//! [`mod@crate::qmm`]; the grid has room for the most blocks there can be, and those beyond their count return at once.
//! A pair's result does not depend on the block it lies in.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::qmm::{RowTile, TILE_COLUMNS, TILE_THREADS, tiles};
use crate::routing::Grouped;
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuExperts;
use calla_model::Shape;

/// `out[i] = silu(gate x) * (up x)` for the pair at sorted position i, with its row of `x` and its expert: `x` bf16
/// `[n, hidden]`, experts `[expert_hidden, hidden]`, `out` bf16 `[n * top_k, expert_hidden]` in sorted order. Computes
/// two of `calla_ops::experts::expert_linear` and `calla_ops::swiglu::reference` in f32.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn expert_qmm_up(
    shape: &Shape,
    x: Tensor,
    gate: &GpuExperts,
    up: &GpuExperts,
    grouped: &Grouped,
    out: Tensor,
) -> Dispatch {
    let entry = match RowTile::of_rows(grouped.block_rows) {
        RowTile::R32 => entries::EXPERT_QMM_UP_R32,
        RowTile::R64 => entries::EXPERT_QMM_UP_R64,
    };
    for experts in [gate, up] {
        experts.check(shape.experts, shape.expert_hidden, shape.hidden);
    }
    let pairs = grouped.pairs.cols;
    grouped.check(shape, pairs);
    assert_eq!(x.rows as usize * shape.top_k, pairs as usize, "pairs of {} rows", x.rows);
    out.check("output", pairs, gate.rows(), Dtype::Bf16);
    let dispatch = tiles(Dispatch::new(entry), x, &gate.stacked, up.stacked.bits)
        .shape(shape)
        .read_experts(gate, touched(gate, pairs))
        .read_experts(up, touched(up, pairs));
    bind_groups(dispatch, grouped)
        .write(out)
        .grid(
            [gate.rows().div_ceil(TILE_COLUMNS / 2), grouped.blocks.rows, 1],
            [TILE_THREADS, 1, 1],
        )
        .flops(2 * flops(gate, pairs))
}

/// `out[pair] = down acts[i]` for the pair at sorted position i, with its expert: `acts` bf16
/// `[n * top_k, expert_hidden]` in sorted order, experts `[hidden, expert_hidden]`, `out` f32 `[n * top_k, hidden]` in
/// the order of pairs. Computes `calla_ops::experts::expert_linear` with sums in f32.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn expert_qmm_down(
    shape: &Shape,
    acts: Tensor,
    down: &GpuExperts,
    grouped: &Grouped,
    out: Tensor,
) -> Dispatch {
    let entry = match RowTile::of_rows(grouped.block_rows) {
        RowTile::R32 => entries::EXPERT_QMM_DOWN_R32,
        RowTile::R64 => entries::EXPERT_QMM_DOWN_R64,
    };
    down.check(shape.experts, shape.hidden, shape.expert_hidden);
    let pairs = grouped.pairs.cols;
    grouped.check(shape, pairs);
    assert_eq!(acts.rows, pairs, "input");
    out.check("output", pairs, down.rows(), Dtype::F32);
    let dispatch = tiles(Dispatch::new(entry), acts, &down.stacked, down.stacked.bits)
        .shape(shape)
        .read_experts(down, touched(down, pairs));
    bind_groups(dispatch, grouped)
        .write(out)
        .grid([down.rows().div_ceil(TILE_COLUMNS), grouped.blocks.rows, 1], [TILE_THREADS, 1, 1])
        .flops(flops(down, pairs))
}

/// Experts that pairs may have chosen: their weights are read once.
pub(crate) fn touched(experts: &GpuExperts, pairs: u32) -> u32 {
    experts.count.min(pairs)
}

fn bind_groups(dispatch: Dispatch, grouped: &Grouped) -> Dispatch {
    dispatch.read(grouped.pairs).read(grouped.blocks).read(grouped.block_count)
}

/// Operations of one product for so many pairs.
fn flops(experts: &GpuExperts, pairs: u32) -> u64 {
    2 * u64::from(pairs) * u64::from(experts.rows()) * u64::from(experts.stacked.cols)
}
