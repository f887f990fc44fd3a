//! Products of many rows with quantised matrices, in tiles: prefill's projections and the shared expert's SwiGLU.
//!
//! `kernels/qmm.h` says how a tile is computed. A row's result does not depend on the number of rows, its neighbours or
//! the tile.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::products::{self, Product, ProductParams};
use crate::shape_constants::{BITS, IN_DIM, OTHER_BITS};
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuMatrix;
use bytemuck::NoUninit;

/// Output columns of a tile. Where two matrices share it, each has half of them.
pub(crate) const TILE_COLUMNS: u32 = 64;
/// Threads of a tile.
pub(crate) const TILE_THREADS: u32 = 128;

/// Rows of a tile. Both give the same bits: larger tiles decode each weight half as often, smaller ones leave fewer
/// GPU cores idle where there are few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowTile {
    /// 32 rows.
    R32,
    /// 64 rows.
    R64,
}

impl RowTile {
    /// Number of rows.
    #[must_use]
    pub fn rows(self) -> u32 {
        match self {
            Self::R32 => 32,
            Self::R64 => 64,
        }
    }

    /// The tile of so many rows.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub(crate) fn of_rows(rows: u32) -> Self {
        match rows {
            32 => Self::R32,
            64 => Self::R64,
            _ => panic!("tiles of 32 or 64 rows, not {rows}"),
        }
    }
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct QmmParams {
    rows: u32,
    products: ProductParams,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct QmmSwigluParams {
    rows: u32,
    columns: u32,
}

/// `out = x W^T` or `out += x W^T` for one to four matrices of equal bits and input width side by side: `x` bf16
/// `[n, K]`, weights `[N, K]`, outputs f32 or bf16 `[n, N]`, f32 where they are added to. Each is
/// `calla_ops::linear::reference` with sums in f32.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn qmm(x: Tensor, products: &[Product<'_>], add: bool, tile: RowTile) -> Dispatch {
    let entry = match tile {
        RowTile::R32 => entries::QMM_R32,
        RowTile::R64 => entries::QMM_R64,
    };
    let first = products::first(products);
    let dispatch = tiles(Dispatch::new(entry), x, first, first.bits);
    let (dispatch, products, column_tiles) =
        products::bind(dispatch, products, x.rows, add, TILE_COLUMNS, |len| len);
    dispatch
        .params(&QmmParams { rows: x.rows, products })
        .grid([x.rows.div_ceil(tile.rows()), column_tiles, 1], [TILE_THREADS, 1, 1])
}

/// `out = silu(x gate^T) * (x up^T)`: `x` bf16 `[n, K]`, both matrices `[S, K]`, `out` bf16 `[n, S]`.
/// Computes two of `calla_ops::linear::reference` and `calla_ops::swiglu::reference` in f32.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn qmm_swiglu(
    x: Tensor,
    gate: &GpuMatrix,
    up: &GpuMatrix,
    out: Tensor,
    tile: RowTile,
) -> Dispatch {
    let entry = match tile {
        RowTile::R32 => entries::QMM_SWIGLU_R32,
        RowTile::R64 => entries::QMM_SWIGLU_R64,
    };
    assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gate and up differ");
    out.check("output", x.rows, gate.rows, Dtype::Bf16);
    up.check();
    tiles(Dispatch::new(entry), x, gate, up.bits)
        .read_matrix(gate, |len| len)
        .read_matrix(up, |len| len)
        .write(out)
        .params(&QmmSwigluParams { rows: x.rows, columns: gate.rows })
        .grid(
            [x.rows.div_ceil(tile.rows()), gate.rows.div_ceil(TILE_COLUMNS / 2), 1],
            [TILE_THREADS, 1, 1],
        )
        .flops(2 * gate.flops(x.rows))
}

/// Binds activations, bf16 as wide as the matrix, and sets the constants of tiles. `other_bits`: of the second matrix
/// of a tile, or again of the first.
pub(crate) fn tiles(
    dispatch: Dispatch,
    x: Tensor,
    weight: &GpuMatrix,
    other_bits: u32,
) -> Dispatch {
    x.check_width("input", weight.cols, Dtype::Bf16);
    weight.check();
    dispatch
        .constant(BITS, weight.bits)
        .constant(IN_DIM, weight.cols)
        .constant(OTHER_BITS, other_bits)
        .read(x)
}
