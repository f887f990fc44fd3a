//! Experts for few rows: `kernels/expert_qmv.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::limits::TOP_K_MAX;
use crate::routing::Routing;
use crate::shape_constants::{BITS, OTHER_BITS, width};
use crate::tensor::{Dtype, Tensor};
use crate::top_k::check_logits;
use crate::weights::{GpuExperts, GpuMatrix};
use bytemuck::NoUninit;
use calla_model::Shape;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct UpParams {
    eps: f32,
}

/// Outputs of a threadgroup of `expert_qmv_up`.
const UP_COLUMNS: u32 = 16;
/// Outputs of a threadgroup of `expert_qmv_down`.
const DOWN_COLUMNS: u32 = 8;

/// Norm, choice of experts, and the gated up projection of each: `rms_norm`, `route`, `expert_linear` with gate and up,
/// and `swiglu` of `calla_ops` in one.
///
/// `x`: f32 `[n, hidden]`, before the norm with `norm`, f32 `[1, hidden]`, and `eps`. `logits`: f32 `[n, experts]`.
/// `routing` is written. `out`: f32 `[n * top_k, expert_hidden]`, in the order of pairs.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of three kinds, in the order of the kernel's buffers"
)]
pub fn expert_qmv_up(
    shape: &Shape,
    x: Tensor,
    norm: Tensor,
    eps: f32,
    logits: Tensor,
    gate: &GpuExperts,
    up: &GpuExperts,
    routing: &Routing,
    out: Tensor,
) -> Dispatch {
    let rows = x.rows;
    check_logits(shape, logits, rows);
    routing.check(shape, rows);
    x.check("x", rows, width(shape.hidden), Dtype::F32);
    norm.check("scale of the norm", 1, width(shape.hidden), Dtype::F32);
    out.check("out", routing.pairs(), width(shape.expert_hidden), Dtype::F32);
    for experts in [gate, up] {
        experts.check(shape.experts, shape.expert_hidden, shape.hidden);
    }
    assert!(shape.expert_hidden.is_multiple_of(64), "width of experts {}", shape.expert_hidden);
    let top_k = routing.experts.cols;
    Dispatch::new(entries::EXPERT_QMV_UP)
        .shape(shape)
        .constant(BITS, gate.stacked.bits)
        .constant(OTHER_BITS, up.stacked.bits)
        .read(x)
        .read(norm)
        .read(logits)
        .read_experts(gate, routing.pairs())
        .read_experts(up, routing.pairs())
        .write(routing.experts)
        .write(routing.weights)
        .write(out)
        .params(&UpParams { eps })
        .grid([out.cols.div_ceil(UP_COLUMNS), top_k, rows], [128, 1, 1])
        .flops(4 * u64::from(routing.pairs()) * u64::from(x.cols) * u64::from(out.cols))
}

/// The down projection of each expert, their weighted sum, the shared expert's down projection and gate, and the
/// residual: `expert_linear` with down, `linear` and `combine` of `calla_ops` in one.
///
/// `acts`: f32 `[n * top_k, expert_hidden]`, in the order of pairs. `shared_acts`: f32 `[n, shared_hidden]`.
/// `shared_gate`: f32 `[n, 1]`, before the sigmoid. `x`: f32 `[n, hidden]`, to which the result is added. The sum runs
/// in the order of ranks, then the shared expert, then `x`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
#[expect(
    clippy::too_many_arguments,
    reason = "tensors of three kinds, in the order of the kernel's buffers"
)]
pub fn expert_qmv_down(
    shape: &Shape,
    acts: Tensor,
    routing: &Routing,
    shared_acts: Tensor,
    shared_gate: Tensor,
    down: &GpuExperts,
    shared_down: &GpuMatrix,
    x: Tensor,
) -> Dispatch {
    let rows = x.rows;
    routing.check(shape, rows);
    assert!(shape.top_k <= TOP_K_MAX, "top {}", shape.top_k);
    acts.check("acts", routing.pairs(), width(shape.expert_hidden), Dtype::F32);
    shared_acts.check("shared_acts", rows, width(shape.shared_hidden), Dtype::F32);
    shared_gate.check("shared_gate", rows, 1, Dtype::F32);
    x.check("x", rows, width(shape.hidden), Dtype::F32);
    assert!(shape.hidden.is_multiple_of(64), "hidden width {}", shape.hidden);
    down.check(shape.experts, shape.hidden, shape.expert_hidden);
    let shared = (shared_down.rows as usize, shared_down.cols as usize);
    assert_eq!(shared, (shape.hidden, shape.shared_hidden), "shared_down");
    shared_down.check();
    let products = u64::from(routing.pairs()) * u64::from(acts.cols)
        + u64::from(rows) * u64::from(shared_acts.cols);
    Dispatch::new(entries::EXPERT_QMV_DOWN)
        .shape(shape)
        .constant(BITS, down.stacked.bits)
        .constant(OTHER_BITS, shared_down.bits)
        .read(acts)
        .read(routing.experts)
        .read(routing.weights)
        .read(shared_acts)
        .read(shared_gate)
        .read_experts(down, routing.pairs())
        .read_matrix(shared_down, |len| u64::from(rows) * len)
        .read_write(x)
        .grid([x.cols.div_ceil(DOWN_COLUMNS), rows, 1], [256, 1, 1])
        .flops(2 * u64::from(x.cols) * products)
}
