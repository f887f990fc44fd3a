//! Token embedding: `kernels/embed.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::shape_constants::{BITS, IN_DIM};
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuMatrix;
use bytemuck::NoUninit;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    rows: u32,
}

/// Values of a threadgroup.
const VALUES: u32 = 2048;

/// Rows of the table: `calla_ops::embed::reference`. `tokens`: u32 `[n, 1]`; a token that the table has not gives a row
/// that means nothing. `out`: f32 `[n, hidden]`.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn embed(table: &GpuMatrix, tokens: Tensor, out: Tensor) -> Dispatch {
    tokens.check_width("tokens", 1, Dtype::U32);
    out.check("out", tokens.rows, table.cols, Dtype::F32);
    table.check();
    let part = |len: u64| len / u64::from(table.rows) * u64::from(tokens.rows);
    Dispatch::new(entries::EMBED)
        .constant(BITS, table.bits)
        .constant(IN_DIM, table.cols)
        .read(tokens)
        .read_matrix(table, part)
        .write(out)
        .params(&Params { rows: table.rows })
        .grid([table.cols.div_ceil(VALUES), tokens.rows, 1], [VALUES / 16, 1, 1])
        .flops(2 * u64::from(out.rows) * u64::from(out.cols))
}
