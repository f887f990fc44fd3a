//! Random matrices as a device stores them: 4 or 8 bits in groups of 64, scales and biases in bf16.

use calla_model::budget::mlx_4bit_format;
use calla_model::network::{CheckpointParts, Source};
use calla_model::{Experts, FloatType, Matrix, Network, Shape, VectorKind, matrix::MatrixData};
use calla_testkit::Random;
use calla_testkit::weights::{self, Formats, Stored};
use std::convert::Infallible;

/// A matrix `[rows, cols]` whose product with a row of unit variance has unit variance.
pub fn matrix(random: &mut Random, rows: usize, cols: usize, bits: usize) -> Matrix {
    loop {
        // The type of the scales is drawn too.
        let drawn =
            weights::matrix(random, rows, cols, Stored::Affine(crate::values::format(bits)), 1.0);
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

/// A network of random weights in the format of the published MLX conversion. Input widths are multiples of 64.
pub fn network(shape: &Shape, seed: u64) -> Network<CheckpointParts> {
    // The vectors of any other network will do.
    let vectors = weights::network(shape, Formats::Published, seed);
    match Network::build(shape, &mut RandomWeights { random: Random::new(seed), vectors }) {
        Ok(network) => network,
        Err(never) => match never {},
    }
}

struct RandomWeights {
    random: Random,
    vectors: Network<CheckpointParts>,
}

impl Source<CheckpointParts> for RandomWeights {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Infallible> {
        Ok(matrix(&mut self.random, rows, cols, mlx_4bit_format(name).bits()))
    }

    fn experts(
        &mut self,
        _: &str,
        _: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Experts, Infallible> {
        Ok(experts(&mut self.random, count, rows, cols, 4))
    }

    fn vector(&mut self, name: &str, _: VectorKind, len: usize) -> Result<Vec<f32>, Infallible> {
        let values = self.vectors.vector(name).expect("the same modules");
        assert_eq!(values.len(), len, "{name}");
        Ok(values.clone())
    }

    fn has_mtp(&self) -> bool {
        self.vectors.mtp.is_some()
    }
}
