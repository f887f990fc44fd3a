//! Experts for more rows than a few, of which several choose the same: `kernels/expert_qmv_grouped.metal`.
//!
//! Each expert's weights are read once for several of its rows. A row's results are the bits that
//! [`expert_qmv`](crate::expert_qmv) gives it, whatever the other rows choose.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::expert_qmm::touched;
use crate::limits::TOP_K_MAX;
use crate::routing::Routing;
use crate::shape_constants::{BITS, OTHER_BITS, width};
use crate::tensor::{Dtype, Tensor};
use crate::weights::{GpuExperts, GpuMatrix};
use bytemuck::NoUninit;
use calla_model::Shape;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct UpParams {
    pairs: u32,
    eps: f32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct DownParams {
    pairs: u32,
}

/// Outputs of a threadgroup of `expert_qmv_grouped_up`.
const UP_COLUMNS: u32 = 16;
/// Outputs of a threadgroup of `expert_qmv_grouped_down`.
const DOWN_COLUMNS: u32 = 64;

/// Norm and gated up projection of each row's experts: `rms_norm`, `expert_linear` with gate and up, and `swiglu` of
/// `calla_ops` in one.
///
/// `x`: f32 `[n, hidden]`, before the norm with `norm`, f32 `[1, hidden]`, and `eps`. `out`: f32
/// `[n * top_k, expert_hidden]`, in the order of pairs.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of three kinds, in the order of the kernel's buffers"
)]
pub fn expert_qmv_grouped_up(
    shape: &Shape,
    x: Tensor,
    norm: Tensor,
    eps: f32,
    routing: &Routing,
    gate: &GpuExperts,
    up: &GpuExperts,
    out: Tensor,
) -> Dispatch {
    let rows = x.rows;
    routing.check(shape, rows);
    x.check("x", rows, width(shape.hidden), Dtype::F32);
    norm.check("scale of the norm", 1, width(shape.hidden), Dtype::F32);
    let pairs = routing.pairs();
    out.check("out", pairs, width(shape.expert_hidden), Dtype::F32);
    for experts in [gate, up] {
        experts.check(shape.experts, shape.expert_hidden, shape.hidden);
    }
    assert!(shape.expert_hidden.is_multiple_of(64), "width of experts {}", shape.expert_hidden);
    Dispatch::new(entries::EXPERT_QMV_GROUPED_UP)
        .shape(shape)
        .constant(BITS, gate.stacked.bits)
        .constant(OTHER_BITS, up.stacked.bits)
        .read(x)
        .read(norm)
        .read(routing.experts)
        .read_experts(gate, touched(gate, pairs))
        .read_experts(up, touched(up, pairs))
        .write(out)
        .params(&UpParams { pairs, eps })
        .grid([out.cols.div_ceil(UP_COLUMNS), width(shape.experts), 1], [128, 1, 1])
        .flops(4 * u64::from(pairs) * u64::from(x.cols) * u64::from(out.cols))
}

/// The down projection of each expert, and the shared expert's: `expert_linear` with down and `linear` of `calla_ops`,
/// which [`combine`](crate::combine::combine) adds up.
///
/// `acts`: f32 `[n * top_k, expert_hidden]`, in the order of pairs. `shared_acts`: f32 `[n, shared_hidden]`. `out`: f32
/// `[n * top_k, hidden]`. `shared_out`: f32 `[n, hidden]`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of three kinds, in the order of the kernel's buffers"
)]
pub fn expert_qmv_grouped_down(
    shape: &Shape,
    acts: Tensor,
    routing: &Routing,
    shared_acts: Tensor,
    down: &GpuExperts,
    shared_down: &GpuMatrix,
    out: Tensor,
    shared_out: Tensor,
) -> Dispatch {
    let (rows, pairs) = (shared_acts.rows, routing.pairs());
    routing.check(shape, rows);
    assert!(shape.top_k <= TOP_K_MAX, "top {}", shape.top_k);
    acts.check("acts", pairs, width(shape.expert_hidden), Dtype::F32);
    shared_acts.check("shared_acts", rows, width(shape.shared_hidden), Dtype::F32);
    out.check("out", pairs, width(shape.hidden), Dtype::F32);
    shared_out.check("shared_out", rows, width(shape.hidden), Dtype::F32);
    assert!(shape.hidden.is_multiple_of(64), "hidden width {}", shape.hidden);
    down.check(shape.experts, shape.hidden, shape.expert_hidden);
    let shared = (shared_down.rows as usize, shared_down.cols as usize);
    assert_eq!(shared, (shape.hidden, shape.shared_hidden), "shared_down");
    shared_down.check();
    let products =
        u64::from(pairs) * u64::from(acts.cols) + u64::from(rows) * u64::from(shared_acts.cols);
    Dispatch::new(entries::EXPERT_QMV_GROUPED_DOWN)
        .shape(shape)
        .constant(BITS, down.stacked.bits)
        .constant(OTHER_BITS, shared_down.bits)
        .read(acts)
        .read(routing.experts)
        .read(shared_acts)
        .read_experts(down, touched(down, pairs))
        .read_matrix(shared_down, |len| len)
        .write(out)
        .write(shared_out)
        .params(&DownParams { pairs })
        .grid([out.cols.div_ceil(DOWN_COLUMNS), width(shape.experts) + 1, 1], [256, 1, 1])
        .flops(2 * u64::from(out.cols) * products)
}
