//! Products of few rows with quantised matrices: `kernels/qmv.metal`. Decode's projections, with the norm in front of them
//! and the residual or SwiGLU behind.
//!
//! A weight is read once for up to eight rows. A row's result does not depend on the number of rows or its neighbours.

use crate::dispatch::Dispatch;
use crate::tensor::{Dtype, Range, Tensor};
use crate::weights::GpuMatrix;
use bytemuck::NoUninit;
use calla_model::Shape;
use calla_model::shape::DELTA_HEAD_DIM;

/// Most matrices that one dispatch multiplies.
pub const PRODUCTS_MAX: usize = 4;
/// Most rows for which a weight is read once.
const ROWS_MAX: u32 = 8;
/// Outputs of a threadgroup.
const TILE_COLUMNS: u32 = 16;
/// Threads of a threadgroup.
const THREADS: u32 = 128;

/// Function constants that the kernels declare.
mod constants {
    pub(super) const BITS: u32 = 16;
    pub(super) const IN_DIM: u32 = 17;
    pub(super) const OTHER_BITS: u32 = 18;
    pub(super) const NORM: u32 = 19;
}

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

/// One matrix of several that meet the same input.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The matrix `[out, in]`.
    pub weight: &'a GpuMatrix,
    /// What it gives, f32 or bf16 `[n, weight.rows]`.
    pub out: Tensor,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct QmvParams {
    rows: u32,
    columns: [u32; PRODUCTS_MAX],
    first_tile: [u32; PRODUCTS_MAX],
    rounded: [u32; PRODUCTS_MAX],
    add: u32,
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
/// side: `calla_ops::linear::reference` behind the norm. Outputs are f32 where they are added to. `shape` sets
/// constants of the pipeline.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn qmv(shape: &Shape, input: Input, products: &[Product<'_>], add: bool) -> Dispatch {
    assert!((1..=PRODUCTS_MAX).contains(&products.len()), "{} products", products.len());
    let first = products[0].weight;
    let source = Source::of(input);
    let mut params = QmvParams {
        rows: source.rows,
        columns: [0; PRODUCTS_MAX],
        first_tile: [u32::MAX; PRODUCTS_MAX],
        rounded: [0; PRODUCTS_MAX],
        add: add.into(),
        selected: source.selected.into(),
        eps: source.eps,
    };
    let entry = by_rows(source.rows, ["qmv_1", "qmv_2", "qmv_4", "qmv_8"]);
    let mut dispatch = source.bind(Dispatch::new(entry).shape(shape), first, first.bits);
    let mut tiles = 0;
    for (index, Product { weight, out }) in products.iter().enumerate() {
        assert_eq!(
            (weight.bits, weight.cols),
            (first.bits, first.cols),
            "products differ in their matrices"
        );
        assert_eq!((out.rows, out.cols), (source.rows, weight.rows), "output of product {index}");
        assert!(
            out.dtype == Dtype::F32 || out.dtype == Dtype::Bf16 && !add,
            "output of {:?}",
            out.dtype
        );
        source.check_output(*out);
        params.columns[index] = weight.rows;
        params.first_tile[index] = tiles;
        params.rounded[index] = (out.dtype == Dtype::Bf16).into();
        tiles += weight.rows.div_ceil(TILE_COLUMNS);
        dispatch = read_matrix(dispatch, weight, source.rows);
        dispatch = if add { dispatch.read_write(*out) } else { dispatch.write(*out) };
    }
    // The kernel has buffers for four. Those that it does not use are bound to nothing of the first.
    for _ in products.len()..PRODUCTS_MAX {
        for range in [first.packed, first.scales, first.biases] {
            dispatch = dispatch.read_part(nothing(range), 0);
        }
        let out = nothing(products[0].out.range);
        dispatch =
            if add { dispatch.read_write_part(out, 0, 0) } else { dispatch.write_part(out, 0) };
    }
    dispatch.params(&params).grid([tiles, row_groups(source.rows), 1], [THREADS, 1, 1])
}

/// `out = silu(gate y) * (up y)`, `y` being the normed input: the norm, two of `calla_ops::linear::reference` and
/// `calla_ops::swiglu::reference` in one. `out`: f32 `[n, S]`; both matrices are `[S, K]`. `shape` sets constants of
/// the pipeline.
///
/// # Panics
/// If dtypes or widths do not fit.
#[must_use]
pub fn qmv_swiglu(
    shape: &Shape,
    input: Input,
    gate: &GpuMatrix,
    up: &GpuMatrix,
    out: Tensor,
) -> Dispatch {
    let source = Source::of(input);
    assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gate and up");
    assert_eq!((out.rows, out.cols, out.dtype), (source.rows, gate.rows, Dtype::F32), "out");
    source.check_output(out);
    let entry =
        by_rows(source.rows, ["qmv_swiglu_1", "qmv_swiglu_2", "qmv_swiglu_4", "qmv_swiglu_8"]);
    let dispatch = source.bind(Dispatch::new(entry).shape(shape), gate, up.bits);
    let dispatch = read_matrix(dispatch, gate, source.rows);
    read_matrix(dispatch, up, source.rows)
        .write(out)
        .params(&SwigluParams {
            rows: source.rows,
            columns: out.cols,
            selected: source.selected.into(),
            eps: source.eps,
        })
        .grid([out.cols.div_ceil(TILE_COLUMNS / 2), row_groups(source.rows), 1], [THREADS, 1, 1])
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

/// No bytes, at the start of a range.
fn nothing(range: Range) -> Range {
    Range { len: 0, ..range }
}

/// Binds a matrix, which is read once for eight rows.
fn read_matrix(dispatch: Dispatch, matrix: &GpuMatrix, rows: u32) -> Dispatch {
    assert!(matches!(matrix.bits, 4 | 8), "{} bits", matrix.bits);
    assert!(matrix.cols.is_multiple_of(64), "groups of 64 in {} columns", matrix.cols);
    let times = u64::from(row_groups(rows));
    [matrix.packed, matrix.scales, matrix.biases]
        .into_iter()
        .fold(dispatch, |dispatch, range| dispatch.read_part(range, times * range.len))
        .flops(2 * u64::from(rows) * u64::from(matrix.rows) * u64::from(matrix.cols))
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
            assert_eq!((scale.cols, scale.dtype), (x.cols, Dtype::F32), "scale of the norm");
            Self { norm: 1, eps, scale: Some(scale), ..plain(x) }
        };
        match input {
            Input::Plain(x) => plain(x),
            Input::Normed { x, scale, eps } => normed(x, scale, eps),
            Input::Selected { x, rows, scale, eps } => {
                assert_eq!((rows.cols, rows.dtype), (1, Dtype::U32), "selected rows");
                let source = normed(x, scale, eps);
                Self { rows: rows.rows, selected: true, selection: Some(rows), ..source }
            }
            Input::GatedNormed { o, z, scale, eps } => {
                let dim = DELTA_HEAD_DIM as u32;
                assert!(o.cols.is_multiple_of(dim), "heads of {dim} in {} columns", o.cols);
                assert_eq!((z.rows, z.cols, z.dtype), (o.rows, o.cols, Dtype::F32), "gate");
                assert_eq!((scale.cols, scale.dtype), (dim, Dtype::F32), "scale of the norm");
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
        let dispatch = dispatch
            .constant(constants::BITS, matrix.bits)
            .constant(constants::IN_DIM, matrix.cols)
            .constant(constants::OTHER_BITS, other_bits)
            .constant(constants::NORM, self.norm)
            .read_part(self.x.range, u64::from(self.rows) * self.x.row_bytes());
        [self.selection, self.scale, self.z].into_iter().fold(dispatch, |dispatch, tensor| {
            match tensor {
                Some(tensor) => dispatch.read(tensor),
                None => dispatch.read_part(nothing(self.x.range), 0),
            }
        })
    }
}
