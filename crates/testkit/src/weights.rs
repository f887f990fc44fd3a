//! Random weights in any stored format, scaled so that activations stay finite and routers choose.

use crate::random::Random;
use bytes::Bytes;
use calla_model::network::{CheckpointParts, Source};
use calla_model::{AffineFormat, Experts, FloatType, Matrix, Network, Shape, VectorKind};
use half::{bf16, f16};
use std::convert::Infallible;
use std::fmt;

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Plain values.
    Dense(FloatType),
    /// MLX affine quantisation.
    Affine(AffineFormat),
}

impl Stored {
    /// Every format that checkpoints may use: three plain types, six bit widths times three group sizes.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let dense = [FloatType::Bf16, FloatType::F16, FloatType::F32].map(Self::Dense);
        let affine = AffineFormat::BITS.iter().flat_map(|&bits| {
            AffineFormat::GROUPS.iter().filter_map(move |&group| AffineFormat::new(bits, group))
        });
        dense.into_iter().chain(affine.map(Self::Affine)).collect()
    }

    /// The nearest format that can store rows of `cols` values.
    #[must_use]
    pub fn fit(self, cols: usize) -> Self {
        let Self::Affine(format) = self else { return self };
        let group = AffineFormat::GROUPS
            .into_iter()
            .rev()
            .find(|&g| g <= format.group() && cols.is_multiple_of(g));
        match group.and_then(|group| AffineFormat::new(format.bits(), group)) {
            Some(format) => Self::Affine(format),
            None => Self::Dense(FloatType::Bf16),
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(dtype) => f.write_str(dtype.name()),
            Self::Affine(format) => write!(f, "{}-bit/{}", format.bits(), format.group()),
        }
    }
}

/// Which format each module of a network gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// As the published MLX conversion: 4 bits, routers and shared-expert gates 8.
    Published,
    /// One format everywhere.
    One(Stored),
    /// A random one for each module.
    Mixed,
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published => f.write_str("4-bit with 8-bit routers"),
            Self::One(stored) => write!(f, "{stored}"),
            Self::Mixed => f.write_str("mixed formats"),
        }
    }
}

/// Bytes aligned for their elements, preceded by a random number of elements: kernels may count on the
/// alignment of one element only, as in a memory-mapped file.
fn aligned(random: &mut Random, bytes: &[u8], element: usize) -> Bytes {
    struct Words(Vec<u32>);
    impl AsRef<[u8]> for Words {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    let offset = element * random.range(0..=7);
    let mut words = vec![0_u32; (offset + bytes.len()).div_ceil(4)];
    bytemuck::cast_slice_mut(&mut words)[offset..offset + bytes.len()].copy_from_slice(bytes);
    Bytes::from_owner(Words(words)).slice(offset..offset + bytes.len())
}

fn encode(dtype: FloatType, values: &[f32]) -> Vec<u8> {
    match dtype {
        FloatType::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        FloatType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        FloatType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// A matrix of mean 0 whose product with a row of unit variance has standard deviation `gain`.
///
/// # Panics
/// If the format cannot store rows of `cols` values (see [`Stored::fit`]).
#[must_use]
pub fn matrix(random: &mut Random, rows: usize, cols: usize, stored: Stored, gain: f32) -> Matrix {
    let deviation = gain / (cols as f32).sqrt();
    let matrix = match stored {
        Stored::Dense(dtype) => {
            let values: Vec<f32> = (0..rows * cols).map(|_| deviation * random.normal()).collect();
            let values = aligned(random, &encode(dtype, &values), dtype.size());
            Matrix::dense(rows, cols, dtype, values)
        }
        Stored::Affine(format) => {
            // Uniform integers 0..=n have a deviation of about n / sqrt(12).
            let levels = ((1 << format.bits()) - 1) as f32;
            let spread = deviation * 12_f32.sqrt() / levels;
            let packed: Vec<u8> = (0..rows * format.packed_row_bytes(cols).div_ceil(8))
                .flat_map(|_| random.bits().to_le_bytes())
                .take(rows * format.packed_row_bytes(cols))
                .collect();
            let groups = rows * format.groups(cols);
            let scales: Vec<f32> = (0..groups)
                .map(|_| random.uniform(0.5, 1.5) * if random.one_in(2) { spread } else { -spread })
                .collect();
            let biases: Vec<f32> = scales
                .iter()
                .map(|s| -s * levels / 2.0 + deviation * random.uniform(-0.1, 0.1))
                .collect();
            let dtype = *random.pick(&[FloatType::Bf16, FloatType::F16, FloatType::F32]);
            let packed = aligned(random, &packed, 4);
            let scales = aligned(random, &encode(dtype, &scales), dtype.size());
            let biases = aligned(random, &encode(dtype, &biases), dtype.size());
            Matrix::affine(rows, cols, format, packed, dtype, scales, biases)
        }
    };
    matrix.unwrap_or_else(|e| panic!("a [{rows}, {cols}] matrix in {stored}: {e}"))
}

/// Random experts of one shape.
#[must_use]
pub fn experts(
    random: &mut Random,
    count: usize,
    rows: usize,
    cols: usize,
    stored: Stored,
) -> Experts {
    Experts::new((0..count).map(|_| matrix(random, rows, cols, stored, 1.0)).collect())
}

/// A random network of a shape; the same for the same seed, whatever else is drawn.
#[must_use]
pub fn network(shape: &Shape, formats: Formats, seed: u64) -> Network<CheckpointParts> {
    let mut source = RandomSource { shape, formats, seed };
    match Network::build(shape, &mut source) {
        Ok(network) => network,
        Err(never) => match never {},
    }
}

/// Makes up every module that [`Network::build`] asks for.
struct RandomSource<'a> {
    shape: &'a Shape,
    formats: Formats,
    seed: u64,
}

impl RandomSource<'_> {
    fn stored(&self, random: &mut Random, name: &str, cols: usize) -> Stored {
        let is_router = name.ends_with("mlp.gate") || name.ends_with("mlp.shared_expert_gate");
        let stored = match self.formats {
            Formats::Published if is_router => Stored::Affine(AffineFormat::Q8_64),
            Formats::Published => Stored::Affine(AffineFormat::Q4_64),
            Formats::One(stored) => stored,
            Formats::Mixed => *random.pick(&Stored::all()),
        };
        stored.fit(cols)
    }

    /// Deviation of the module's output. Routers and the output projection must discriminate; the embedding
    /// starts a residual stream of unit variance unless it is the output projection too.
    fn gain(&self, name: &str, cols: usize) -> f32 {
        match name {
            "model.embed_tokens" if !self.shape.tied_embeddings => (cols as f32).sqrt(),
            "model.embed_tokens" | "lm_head" => 3.0,
            _ if name.ends_with("mlp.gate") => 2.0,
            _ => 1.0,
        }
    }
}

impl Source<CheckpointParts> for RandomSource<'_> {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Infallible> {
        let mut random = Random::labelled(self.seed, name);
        let stored = self.stored(&mut random, name, cols);
        Ok(matrix(&mut random, rows, cols, stored, self.gain(name, cols)))
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Experts, Infallible> {
        let name = format!("{layer_mlp}.{projection}");
        let mut random = Random::labelled(self.seed, &name);
        let stored = self.stored(&mut random, &name, cols);
        Ok(experts(&mut random, count, rows, cols, stored))
    }

    fn vector(&mut self, name: &str, kind: VectorKind, len: usize) -> Result<Vec<f32>, Infallible> {
        let mut random = Random::labelled(self.seed, name);
        let value = |random: &mut Random| match kind {
            VectorKind::Norm | VectorKind::GatedNorm => 1.0 + 0.2 * random.normal(),
            VectorKind::Conv => 0.5 * random.normal(),
            // Together: decays from 0.99 to 0.01 a token.
            VectorKind::ALog => random.uniform(0.5, 8.0).ln(),
            VectorKind::DtBias => random.uniform(-4.0, 0.0),
        };
        Ok((0..len).map(|_| value(&mut random)).collect())
    }

    fn has_mtp(&self) -> bool {
        self.shape.mtp_layers > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use calla_ops::Rows;

    #[test]
    fn products_have_the_deviation_that_was_asked_for() {
        for stored in Stored::all() {
            let mut random = Random::new(7);
            let weight = matrix(&mut random, 256, 128, stored, 2.0);
            let x = Rows::from_vec(128, (0..128).map(|_| random.normal()).collect());
            let y = calla_ops::linear::reference(&x, &weight);
            let deviation = (y.row(0).iter().map(|v| v * v).sum::<f32>() / 256.0).sqrt();
            assert!((1.2..3.2).contains(&deviation), "{stored}: {deviation}");
        }
        assert_eq!(Stored::all().len(), 21);
    }

    #[test]
    fn formats_shrink_to_what_the_width_allows() {
        let wide = Stored::Affine(AffineFormat::new(3, 128).unwrap());
        assert_eq!(wide.fit(192), Stored::Affine(AffineFormat::new(3, 64).unwrap()));
        assert_eq!(wide.fit(96), Stored::Affine(AffineFormat::new(3, 32).unwrap()));
        assert_eq!(wide.fit(40), Stored::Dense(FloatType::Bf16));
    }

    #[test]
    fn the_same_seed_gives_the_same_network() {
        let shape = crate::shapes::odd();
        let row = |seed: u64| {
            let network = network(&shape, Formats::Mixed, seed);
            let mut row = vec![0.0; shape.hidden];
            network.embed_tokens.read_row(5, &mut row);
            row
        };
        assert_eq!(row(1), row(1));
        assert_ne!(row(1), row(2));
    }
}
