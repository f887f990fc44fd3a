//! Token embedding: `kernels/embed.metal`.

use crate::dispatch::Dispatch;
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuMatrix;
use bytemuck::NoUninit;
use calla_model::Shape;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    rows: u32,
}

/// Function constant: bits of the table.
const BITS: u32 = 16;
/// Function constant: width of the table.
const IN_DIM: u32 = 17;
/// Values of a threadgroup.
const VALUES: u32 = 2048;

/// Rows of the table: `calla_ops::embed::reference`. `tokens`: u32 `[n, 1]`; a token that the table has not gives a row
/// that means nothing. `out`: f32 `[n, hidden]`. `shape` sets constants of the pipeline.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn embed(shape: &Shape, table: &GpuMatrix, tokens: Tensor, out: Tensor) -> Dispatch {
    assert_eq!((tokens.cols, tokens.dtype), (1, Dtype::U32), "tokens");
    assert_eq!((out.rows, out.cols, out.dtype), (tokens.rows, table.cols, Dtype::F32), "out");
    assert!(table.cols.is_multiple_of(64), "groups of 64 in {} columns", table.cols);
    assert!(matches!(table.bits, 4 | 8), "{} bits", table.bits);
    let part = |len: u64| len / u64::from(table.rows) * u64::from(tokens.rows);
    let dispatch = Dispatch::new("embed")
        .shape(shape)
        .constant(BITS, table.bits)
        .constant(IN_DIM, table.cols)
        .read(tokens);
    [table.packed, table.scales, table.biases]
        .into_iter()
        .fold(dispatch, |dispatch, range| dispatch.read_part(range, part(range.len)))
        .write(out)
        .params(&Params { rows: table.rows })
        .grid([table.cols.div_ceil(VALUES), tokens.rows, 1], [VALUES / 16, 1, 1])
        .flops(2 * u64::from(out.rows) * u64::from(out.cols))
}
