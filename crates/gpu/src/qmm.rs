//! Products of many rows with quantised matrices, in tiles: prefill's projections and the shared expert's SwiGLU.
//!
//! `kernels/qmm.h` says how a tile is computed. A row's result does not depend on the number of rows, its neighbours or
//! the tile.

use crate::dispatch::Dispatch;
use crate::qmv::Product;
use crate::tensor::{Dtype, Range, Tensor};
use crate::weights::GpuMatrix;
use bytemuck::NoUninit;

/// Function constants that `kernels/qmm.h` declares.
pub(crate) mod constants {
    pub(crate) const BITS: u32 = 16;
    pub(crate) const IN_DIM: u32 = 17;
    pub(crate) const OTHER_BITS: u32 = 18;
}

/// Output columns of a tile. Where two matrices share it, each has half of them.
pub(crate) const TILE_COLUMNS: u32 = 64;
/// Threads of a tile.
pub(crate) const TILE_THREADS: u32 = 128;
/// Most matrices that one dispatch multiplies.
const MAX_PRODUCTS: usize = 4;

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
    columns: [u32; MAX_PRODUCTS],
    first_tile: [u32; MAX_PRODUCTS],
    rounded: [u32; MAX_PRODUCTS],
    add: u32,
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
    assert!((1..=MAX_PRODUCTS).contains(&products.len()), "{} products", products.len());
    let first = products[0].weight;
    let entry = match tile {
        RowTile::R32 => "qmm_r32",
        RowTile::R64 => "qmm_r64",
    };
    let mut params = QmmParams {
        rows: x.rows,
        columns: [0; MAX_PRODUCTS],
        first_tile: [u32::MAX; MAX_PRODUCTS],
        rounded: [0; MAX_PRODUCTS],
        add: add.into(),
    };
    let mut dispatch = tiles(Dispatch::new(entry), x, first, first.bits);
    let mut column_tiles = 0;
    for (index, Product { weight, out }) in products.iter().enumerate() {
        assert_eq!(
            (weight.bits, weight.cols),
            (first.bits, first.cols),
            "products differ in their matrices"
        );
        assert_eq!((out.rows, out.cols), (x.rows, weight.rows), "output of product {index}");
        assert!(
            out.dtype == Dtype::F32 || out.dtype == Dtype::Bf16 && !add,
            "output of {:?}",
            out.dtype
        );
        params.columns[index] = weight.rows;
        params.first_tile[index] = column_tiles;
        params.rounded[index] = (out.dtype == Dtype::Bf16).into();
        column_tiles += weight.rows.div_ceil(TILE_COLUMNS);
        dispatch = bind_matrix(dispatch, weight).flops(flops(x.rows, weight));
        dispatch = if add { dispatch.read_write(*out) } else { dispatch.write(*out) };
    }
    // The kernel has buffers for four. Those that it does not use are bound to nothing of the first.
    let nothing = |range: Range| Range { len: 0, ..range };
    for _ in products.len()..MAX_PRODUCTS {
        for range in [first.packed, first.scales, first.biases] {
            dispatch = dispatch.read_part(nothing(range), 0);
        }
        let out = nothing(products[0].out.range);
        dispatch =
            if add { dispatch.read_write_part(out, 0, 0) } else { dispatch.write_part(out, 0) };
    }
    dispatch
        .params(&params)
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
        RowTile::R32 => "qmm_swiglu_r32",
        RowTile::R64 => "qmm_swiglu_r64",
    };
    assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gate and up differ");
    assert_eq!((out.rows, out.cols, out.dtype), (x.rows, gate.rows, Dtype::Bf16), "output");
    let dispatch = tiles(Dispatch::new(entry), x, gate, up.bits);
    bind_matrix(bind_matrix(dispatch, gate), up)
        .write(out)
        .params(&QmmSwigluParams { rows: x.rows, columns: gate.rows })
        .grid(
            [x.rows.div_ceil(tile.rows()), gate.rows.div_ceil(TILE_COLUMNS / 2), 1],
            [TILE_THREADS, 1, 1],
        )
        .flops(2 * flops(x.rows, gate))
}

/// Binds activations, bf16 as wide as the matrix, and sets the constants of tiles. `other_bits`: of the second matrix
/// of a tile, or again of the first.
pub(crate) fn tiles(
    dispatch: Dispatch,
    x: Tensor,
    weight: &GpuMatrix,
    other_bits: u32,
) -> Dispatch {
    assert_eq!((x.cols, x.dtype), (weight.cols, Dtype::Bf16), "input");
    for bits in [weight.bits, other_bits] {
        assert!(bits == 4 || bits == 8, "{bits} bits");
    }
    assert!(weight.cols > 0 && weight.cols.is_multiple_of(64), "rows of {} weights", weight.cols);
    dispatch
        .constant(constants::BITS, weight.bits)
        .constant(constants::IN_DIM, weight.cols)
        .constant(constants::OTHER_BITS, other_bits)
        .read(x)
}

fn bind_matrix(dispatch: Dispatch, weight: &GpuMatrix) -> Dispatch {
    [weight.packed, weight.scales, weight.biases]
        .into_iter()
        .fold(dispatch, |dispatch, range| dispatch.read_part(range, range.len))
}

/// Operations of a product with so many rows.
pub(crate) fn flops(rows: u32, weight: &GpuMatrix) -> u64 {
    2 * u64::from(rows) * u64::from(weight.rows) * u64::from(weight.cols)
}
