//! The weighted sum of the experts' outputs: `kernels/combine.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::routing::Routing;
use crate::shape_constants::width;
use crate::tensor::{Dtype, Tensor};
use calla_model::Shape;

const THREADS: u32 = 128;

/// `x[row] += sum over ranks of weight * routed[row, rank] + sigmoid(shared_gate[row]) * shared[row]`:
/// `experts::combine` of `calla_ops`.
///
/// `x`: f32 `[n, hidden]`, read and written. `routed`: f32 `[n * top_k, hidden]`. `shared`: f32 `[n, hidden]`.
/// `shared_gate`: f32 `[n, 1]`. The sum runs in the order of ranks, then the shared expert, then `x`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn combine(
    shape: &Shape,
    x: Tensor,
    routed: Tensor,
    routing: &Routing,
    shared: Tensor,
    shared_gate: Tensor,
) -> Dispatch {
    let rows = x.rows;
    routing.check(shape, rows);
    assert!(shape.hidden.is_multiple_of(64), "hidden width {}", shape.hidden);
    let hidden = width(shape.hidden);
    x.check("x", rows, hidden, Dtype::F32);
    routed.check("routed", routing.pairs(), hidden, Dtype::F32);
    shared.check("shared", rows, hidden, Dtype::F32);
    shared_gate.check("shared_gate", rows, 1, Dtype::F32);
    Dispatch::new(entries::COMBINE)
        .shape(shape)
        .read_write(x)
        .read(routed)
        .read(routing.weights)
        .read(shared)
        .read(shared_gate)
        .grid([(x.cols / 4).div_ceil(THREADS), rows, 1], [THREADS, 1, 1])
        .flops(2 * u64::from(x.cols) * u64::from(routing.pairs() + 2 * rows))
}
