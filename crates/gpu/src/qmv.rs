//! Products of few rows with quantised matrices: `kernels/qmv.metal`. Decode's projections, with the norm in front of them
//! and the residual or SwiGLU behind.
//!
//! A weight is read once for up to eight rows. A row's result does not depend on the number of rows or its neighbours.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::products::{self, Product, ProductParams};
use crate::shape_constants::{BITS, IN_DIM, OTHER_BITS};
use crate::tensor::{Dtype, Tensor};
use crate::weights::GpuMatrix;
use bytemuck::NoUninit;
use calla_model::shape::DELTA_HEAD_DIM;

/// Most rows for which a weight is read once.
const ROWS_MAX: u32 = 8;
/// Outputs of a threadgroup.
const TILE_COLUMNS: u32 = 16;
/// Threads of a threadgroup.
const THREADS: u32 = 128;

/// Function constant: the norm of the input.
const NORM: u32 = 19;

/// What the matrices meet. All activations are f32.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    /// RMS norm of `x [n, K]` with `scale [1, K]`: `calla_ops::rms_norm::reference`.
    Normed {
        /// Rows before the norm.
        x: Tensor,
        /// The full factor.
        scale: Tensor,
        /// Added to the mean of squares.
        eps: f32,
    },
    /// The same of some rows of `x`.
    Selected {
        /// Rows before the norm, `[any, K]`.
        x: Tensor,
        /// Indices of rows of `x`, u32 `[n, 1]`.
        rows: Tensor,
        /// The full factor.
        scale: Tensor,
        /// Added to the mean of squares.
        eps: f32,
    },
    /// `x [n, K]` as it is.
    Plain(Tensor),
    /// Gated norm of DeltaNet outputs: `calla_ops::gated_norm::reference`.
    GatedNormed {
        /// Outputs of the recurrence, `[n, value heads * 128]`.
        o: Tensor,
        /// The gate, `[n, value heads * 128]`.
        z: Tensor,
        /// Factor of each head, `[1, 128]`.
        scale: Tensor,
        /// Added to the mean of squares.
        eps: f32,
    },
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct QmvParams {
    rows: u32,
    products: ProductParams,
    selected: u32,
    eps: f32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct SwigluParams {
    rows: u32,
    columns: u32,
    selected: u32,
    eps: f32,
}

/// `out = W y` or `out += W y`, `y` being the normed input, for one to four matrices of equal bits and input width side by
/// side: `calla_ops::linear::reference` behind the norm. Outputs are f32 where they are added to.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn qmv(input: Input, products: &[Product<'_>], add: bool) -> Dispatch {
    let first = products::first(products);
    let source = Source::of(input);
    let entry =
        by_rows(source.rows, [entries::QMV_1, entries::QMV_2, entries::QMV_4, entries::QMV_8]);
    let dispatch = source.bind(Dispatch::new(entry), first, first.bits);
    for product in products {
        source.check_output(product.out);
    }
    let part = |len| u64::from(row_groups(source.rows)) * len;
    let (dispatch, products, tiles) =
        products::bind(dispatch, products, source.rows, add, TILE_COLUMNS, part);
    dispatch
        .params(&QmvParams {
            rows: source.rows,
            products,
            selected: source.selected.into(),
            eps: source.eps,
        })
        .grid([tiles, row_groups(source.rows), 1], [THREADS, 1, 1])
}

/// `out = silu(gate y) * (up y)`, `y` being the normed input: the norm, two of `calla_ops::linear::reference` and
/// `calla_ops::swiglu::reference` in one. `out`: f32 `[n, S]`; both matrices are `[S, K]`.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn qmv_swiglu(input: Input, gate: &GpuMatrix, up: &GpuMatrix, out: Tensor) -> Dispatch {
    let source = Source::of(input);
    assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gate and up");
    out.check("out", source.rows, gate.rows, Dtype::F32);
    source.check_output(out);
    let entry = by_rows(
        source.rows,
        [
            entries::QMV_SWIGLU_1,
            entries::QMV_SWIGLU_2,
            entries::QMV_SWIGLU_4,
            entries::QMV_SWIGLU_8,
        ],
    );
    up.check();
    let part = |len| u64::from(row_groups(source.rows)) * len;
    source
        .bind(Dispatch::new(entry), gate, up.bits)
        .read_matrix(gate, part)
        .read_matrix(up, part)
        .write(out)
        .params(&SwigluParams {
            rows: source.rows,
            columns: out.cols,
            selected: source.selected.into(),
            eps: source.eps,
        })
        .grid([out.cols.div_ceil(TILE_COLUMNS / 2), row_groups(source.rows), 1], [THREADS, 1, 1])
        .flops(2 * gate.flops(source.rows))
}

/// The kernel that takes so many rows, or eight at a time.
fn by_rows(rows: u32, entries: [&'static str; 4]) -> &'static str {
    match rows {
        0 => panic!("no rows"),
        1 => entries[0],
        2 => entries[1],
        3 | 4 => entries[2],
        _ => entries[3],
    }
}

fn row_groups(rows: u32) -> u32 {
    rows.div_ceil(ROWS_MAX)
}

/// An input as the kernels take it.
struct Source {
    norm: u32,
    rows: u32,
    selected: bool,
    eps: f32,
    x: Tensor,
    selection: Option<Tensor>,
    scale: Option<Tensor>,
    z: Option<Tensor>,
}

impl Source {
    fn of(input: Input) -> Self {
        let plain = |x: Tensor| {
            assert_eq!(x.dtype, Dtype::F32, "input");
            let (selection, scale, z) = (None, None, None);
            Self { norm: 0, rows: x.rows, selected: false, eps: 0.0, x, selection, scale, z }
        };
        let normed = |x: Tensor, scale: Tensor, eps| {
            scale.check_width("scale of the norm", x.cols, Dtype::F32);
            Self { norm: 1, eps, scale: Some(scale), ..plain(x) }
        };
        match input {
            Input::Plain(x) => plain(x),
            Input::Normed { x, scale, eps } => normed(x, scale, eps),
            Input::Selected { x, rows, scale, eps } => {
                rows.check_width("selected rows", 1, Dtype::U32);
                let source = normed(x, scale, eps);
                Self { rows: rows.rows, selected: true, selection: Some(rows), ..source }
            }
            Input::GatedNormed { o, z, scale, eps } => {
                let dim = DELTA_HEAD_DIM as u32;
                assert!(o.cols.is_multiple_of(dim), "heads of {dim} in {} columns", o.cols);
                z.check("gate", o.rows, o.cols, Dtype::F32);
                scale.check_width("scale of the norm", dim, Dtype::F32);
                Self { norm: 2, eps, scale: Some(scale), z: Some(z), ..plain(o) }
            }
        }
    }

    /// Threadgroups read the input while others have written their outputs.
    fn check_output(&self, out: Tensor) {
        assert!(!self.x.range.overlaps(&out.range), "an output lies on the input");
    }

    fn bind(&self, dispatch: Dispatch, matrix: &GpuMatrix, other_bits: u32) -> Dispatch {
        assert_eq!(self.x.cols, matrix.cols, "input width");
        matrix.check();
        let dispatch = dispatch
            .constant(BITS, matrix.bits)
            .constant(IN_DIM, matrix.cols)
            .constant(OTHER_BITS, other_bits)
            .constant(NORM, self.norm)
            .read_part(self.x.range, u64::from(self.rows) * self.x.row_bytes());
        [self.selection, self.scale, self.z].into_iter().fold(dispatch, |dispatch, tensor| {
            match tensor {
                Some(tensor) => dispatch.read(tensor),
                None => dispatch.read_part(self.x.range.nothing(), 0),
            }
        })
    }
}
