//! Matrix product with a stored weight: `y = W x`, `W [out, in]` quantised or not.

use crate::tensor::Rows;
use calla_model::Matrix;
use rayon::prelude::*;

/// `y[row, out] = sum over in of W[out, in] * x[row, in]`, summed in f64.
///
/// Each weight row is decoded once and met with every activation row.
///
/// # Panics
/// If the widths differ.
#[must_use]
pub fn reference(x: &Rows, weight: &Matrix) -> Rows {
    assert_eq!(x.cols(), weight.cols(), "input of {weight:?}");
    let rows = x.rows();
    // Computed output by output (transposed), so that threads write disjoint slices.
    let mut transposed = vec![0.0_f32; weight.rows() * rows];
    transposed.par_chunks_mut(rows.max(1)).enumerate().for_each_init(
        || vec![0.0; weight.cols()],
        |decoded, (out, y)| {
            weight.read_row(out, decoded);
            for (y, x) in y.iter_mut().zip(x.iter()) {
                *y = dot(decoded, x) as f32;
            }
        },
    );
    let mut y = Rows::zeros(rows, weight.rows());
    for (row, y) in y.iter_mut().enumerate() {
        for (out, y) in y.iter_mut().enumerate() {
            *y = transposed[out * rows + row];
        }
    }
    y
}

/// Dot product in f64, in eight interleaved partial sums (a fixed order that compilers can vectorise).
#[must_use]
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0.0_f64; 8];
    let (a8, a_tail) = a.as_chunks::<8>();
    let (b8, b_tail) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for lane in 0..8 {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let tail: f64 = a_tail.iter().zip(b_tail).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    sums.iter().sum::<f64>() + tail
}
