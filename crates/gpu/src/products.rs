//! Several matrices that meet the same input, side by side in one dispatch.

use crate::dispatch::Dispatch;
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuMatrix;
use bytemuck::NoUninit;

/// Most matrices that one dispatch multiplies.
pub const PRODUCTS_MAX: usize = 4;

/// One matrix of several that meet the same input.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The matrix `[out, in]`.
    pub weight: &'a GpuMatrix,
    /// What it gives, f32 or bf16 `[n, weight.rows]`.
    pub out: Tensor,
}

/// The fields of `QmmParams` and `QmvParams` in the kernels that say where each product is.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
pub(crate) struct ProductParams {
    columns: [u32; PRODUCTS_MAX],
    first_tile: [u32; PRODUCTS_MAX],
    rounded: [u32; PRODUCTS_MAX],
    add: u32,
}

/// Binds one to four products of `rows` rows whose matrices have equal bits and input width, of whose arrays `part` of
/// their bytes is read. Gives their parameters, and the number of tiles of so many columns.
///
/// # Panics
/// If dtypes or widths do not fit.
pub(crate) fn bind(
    mut dispatch: Dispatch,
    products: &[Product<'_>],
    rows: u32,
    add: bool,
    tile_columns: u32,
    part: impl Fn(u64) -> u64 + Copy,
) -> (Dispatch, ProductParams, u32) {
    let first = first(products);
    let mut params = ProductParams {
        columns: [0; PRODUCTS_MAX],
        first_tile: [u32::MAX; PRODUCTS_MAX],
        rounded: [0; PRODUCTS_MAX],
        add: add.into(),
    };
    let mut tiles = 0;
    for (index, Product { weight, out }) in products.iter().enumerate() {
        assert_eq!(
            (weight.bits, weight.cols),
            (first.bits, first.cols),
            "products differ in their matrices"
        );
        assert_eq!((out.rows, out.cols), (rows, weight.rows), "output of product {index}");
        assert!(
            out.dtype == Dtype::F32 || out.dtype == Dtype::Bf16 && !add,
            "output of {:?}",
            out.dtype
        );
        params.columns[index] = weight.rows;
        params.first_tile[index] = tiles;
        params.rounded[index] = (out.dtype == Dtype::Bf16).into();
        tiles += weight.rows.div_ceil(tile_columns);
        dispatch = dispatch.read_matrix(weight, part).flops(weight.flops(rows));
        dispatch = if add { dispatch.read_write(*out) } else { dispatch.write(*out) };
    }
    // The kernel has buffers for four. Those that it does not use are bound to nothing of the first.
    for _ in products.len()..PRODUCTS_MAX {
        for range in [first.packed, first.scales, first.biases] {
            dispatch = dispatch.read_part(range.nothing(), 0);
        }
        let out = products[0].out.range.nothing();
        dispatch =
            if add { dispatch.read_write_part(out, 0, 0) } else { dispatch.write_part(out, 0) };
    }
    (dispatch, params, tiles)
}

/// The first matrix, whose format is that of all.
///
/// # Panics
/// If there is none, or there are too many.
pub(crate) fn first<'a>(products: &[Product<'a>]) -> &'a GpuMatrix {
    assert!((1..=PRODUCTS_MAX).contains(&products.len()), "{} products", products.len());
    products[0].weight
}
