//! Random matrices as a device stores them: 4 or 8 bits in groups of 64, scales and biases in bf16.

use calla_model::{Experts, FloatType, Matrix, matrix::MatrixData};
use calla_testkit::Random;
use calla_testkit::weights::{self, Stored};

/// A matrix `[rows, cols]` whose product with a row of unit variance has unit variance.
pub fn matrix(random: &mut Random, rows: usize, cols: usize, bits: usize) -> Matrix {
    loop {
        // The type of the scales is drawn too.
        let drawn = weights::matrix(random, rows, cols, Stored::Affine(super::format(bits)), 1.0);
        if matches!(drawn.data(), MatrixData::Affine { dtype: FloatType::Bf16, .. }) {
            return drawn;
        }
    }
}

/// Experts of one shape.
pub fn experts(
    random: &mut Random,
    count: usize,
    rows: usize,
    cols: usize,
    bits: usize,
) -> Experts {
    Experts::new((0..count).map(|_| matrix(random, rows, cols, bits)).collect())
}
