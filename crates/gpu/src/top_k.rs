//! Choice of experts: `kernels/top_k.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::limits::{EXPERTS_MAX, TOP_K_MAX};
use crate::routing::Routing;
use crate::shape_constants::width;
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;
use calla_model::Shape;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    rows: u32,
}

/// Rows of a threadgroup, a simdgroup each.
const ROWS: u32 = 4;

/// The largest logits of each row and their softmax: `route::reference` of `calla_ops`.
///
/// `logits`: f32 `[n, experts]`. `routing` is written. Of equal logits the lower expert comes first.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn top_k(shape: &Shape, logits: Tensor, routing: &Routing) -> Dispatch {
    check_logits(shape, logits, logits.rows);
    routing.check(shape, logits.rows);
    let rows = logits.rows;
    Dispatch::new(entries::TOP_K)
        .shape(shape)
        .read(logits)
        .write(routing.experts)
        .write(routing.weights)
        .params(&Params { rows })
        .grid([rows.div_ceil(ROWS), 1, 1], [32 * ROWS, 1, 1])
}

/// Checks router logits of `rows` rows.
pub(crate) fn check_logits(shape: &Shape, logits: Tensor, rows: u32) {
    logits.check("router logits", rows, width(shape.experts), Dtype::F32);
    let fits = shape.experts <= EXPERTS_MAX && shape.top_k <= TOP_K_MAX;
    assert!(fits, "{} of {}", shape.top_k, shape.experts);
}
