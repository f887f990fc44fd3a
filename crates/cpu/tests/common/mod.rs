//! Random weights, activations and batches for the tests, and comparisons that NaN cannot pass.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use bytes::Bytes;
use calla_model::format::{AffineFormat, FloatType};
use calla_model::network::{CheckpointParts, Source, VectorKind};
use calla_model::shape::{PAGE_TOKENS, schedule};
use calla_model::{Experts, Matrix, Network, Shape};
use calla_ops::{Batch, CacheSize, Rows, Span, SpanKind};
use half::{bf16, f16};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::convert::Infallible;

pub struct Random(pub SmallRng);

/// How a random matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {
    Dense(FloatType),
    Affine(AffineFormat, FloatType),
}

pub fn affine(bits: usize, group: usize) -> Stored {
    Stored::Affine(AffineFormat::new(bits, group).unwrap(), FloatType::Bf16)
}

/// Every format that the CPU takes.
pub fn all_formats() -> Vec<Stored> {
    let floats = [FloatType::Bf16, FloatType::F16, FloatType::F32];
    let mut formats: Vec<Stored> = floats.map(Stored::Dense).to_vec();
    for bits in AffineFormat::BITS {
        for group in AffineFormat::GROUPS {
            formats.push(affine(bits, group));
        }
    }
    formats.extend(floats.map(|f| Stored::Affine(AffineFormat::Q4_64, f)));
    formats
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// In -1..1.
    pub fn value(&mut self) -> f32 {
        self.0.random_range(-1.0..1.0)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    pub fn vector(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value()).collect()
    }

    pub fn rows(&mut self, rows: usize, cols: usize) -> Rows {
        Rows::from_vec(cols, self.vector(rows * cols))
    }

    pub fn tokens(&mut self, count: usize, shape: &Shape) -> Vec<u32> {
        (0..count).map(|_| self.below(shape.vocab_size) as u32).collect()
    }

    /// Weights with a standard deviation of about `1 / sqrt(cols)`.
    pub fn matrix(&mut self, rows: usize, cols: usize, stored: Stored) -> Matrix {
        let spread = 1.7 / (cols as f32).sqrt();
        match stored {
            Stored::Dense(dtype) => {
                let values: Vec<f32> = (0..rows * cols).map(|_| spread * self.value()).collect();
                Matrix::dense(rows, cols, dtype, encode(&values, dtype)).unwrap()
            }
            Stored::Affine(format, dtype) => {
                let levels = (1 << format.bits()) as f32;
                let mut packed = vec![0_u8; rows * format.packed_row_bytes(cols)];
                self.0.fill(&mut packed[..]);
                let groups = rows * format.groups(cols);
                let scales: Vec<f32> = (0..groups)
                    .map(|_| {
                        (1.5 + self.value()) * spread / levels
                            * if self.below(9) > 0 { 1.0 } else { -1.0 }
                    })
                    .collect();
                let biases: Vec<f32> = scales.iter().map(|s| -s * levels / 2.0).collect();
                Matrix::affine(
                    rows,
                    cols,
                    format,
                    aligned(&packed),
                    dtype,
                    encode(&scales, dtype),
                    encode(&biases, dtype),
                )
                .unwrap()
            }
        }
    }

    pub fn experts(&mut self, count: usize, rows: usize, cols: usize, stored: Stored) -> Experts {
        Experts::new((0..count).map(|_| self.matrix(rows, cols, stored)).collect())
    }

    pub fn network(&mut self, shape: &Shape, formats: &[Stored]) -> Network<CheckpointParts> {
        let mut source = RandomSource { random: self, formats, next: 0 };
        let Ok(network) = Network::build(shape, &mut source);
        network
    }
}

/// Bytes at an address that every element type allows.
pub fn aligned(bytes: &[u8]) -> Bytes {
    let mut words: Vec<u64> = vec![0; bytes.len().div_ceil(8)];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut padded = [0; 8];
        padded[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(padded);
    }
    struct Words(Vec<u64>);
    impl AsRef<[u8]> for Words {
        fn as_ref(&self) -> &[u8] {
            // SAFETY: any bytes of the initialised words are valid `u8`s.
            unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 8) }
        }
    }
    Bytes::from_owner(Words(words)).slice(..bytes.len())
}

fn encode(values: &[f32], dtype: FloatType) -> Bytes {
    let bytes: Vec<u8> = match dtype {
        FloatType::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        FloatType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        FloatType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    aligned(&bytes)
}

/// Gives modules the formats in turn; those that do not fit a width fall back to bf16.
struct RandomSource<'a> {
    random: &'a mut Random,
    formats: &'a [Stored],
    next: usize,
}

impl RandomSource<'_> {
    fn stored(&mut self, cols: usize) -> Stored {
        let stored = self.formats[self.next % self.formats.len()];
        self.next += 1;
        match stored {
            Stored::Affine(format, _) if !cols.is_multiple_of(format.group()) => {
                Stored::Dense(FloatType::Bf16)
            }
            stored => stored,
        }
    }
}

impl Source<CheckpointParts> for RandomSource<'_> {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, Infallible> {
        let stored = self.stored(cols);
        let mut matrix = self.random.matrix(rows, cols, stored);
        if name == "model.embed_tokens" {
            // A residual stream of unit size.
            let values = self.random.vector(rows * cols);
            matrix =
                Matrix::dense(rows, cols, FloatType::F32, encode(&values, FloatType::F32)).unwrap();
        }
        Ok(matrix)
    }

    fn experts(
        &mut self,
        _: &str,
        _: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Experts, Infallible> {
        let stored = self.stored(cols);
        Ok(self.random.experts(count, rows, cols, stored))
    }

    fn vector(&mut self, _: &str, kind: VectorKind, len: usize) -> Result<Vec<f32>, Infallible> {
        let around =
            if matches!(kind, VectorKind::Norm | VectorKind::GatedNorm) { 1.0 } else { 0.0 };
        Ok((0..len).map(|_| around + 0.3 * self.random.value()).collect())
    }

    fn has_mtp(&self) -> bool {
        false
    }
}

/// Odd widths: 192 wide, 3 query heads, 20 experts top-5, 777 tokens.
pub fn odd_shape() -> Shape {
    Shape {
        vocab_size: 777,
        hidden: 192,
        layers: schedule(4, 2),
        attention_heads: 3,
        kv_heads: 1,
        delta_key_heads: 1,
        delta_value_heads: 3,
        experts: 20,
        top_k: 5,
        expert_hidden: 96,
        shared_hidden: 32,
        ..Shape::demo()
    }
}

/// Spans of sequences: for each its slot, its position, its rows and its pages.
pub fn batch(shape: &Shape, size: CacheSize, parts: &[(usize, usize, &[u32], &[usize])]) -> Batch {
    let (mut tokens, mut spans) = (vec![], vec![]);
    for &(slot, position, part, pages) in parts {
        let start = tokens.len();
        tokens.extend_from_slice(part);
        spans.push(Span::new(
            SpanKind::Prefill,
            start..tokens.len(),
            position,
            slot,
            pages.to_vec(),
        ));
    }
    let outputs = (0..tokens.len()).collect();
    Batch::new(tokens, spans, outputs, shape.vocab_size, size).unwrap()
}

/// A batch of one sequence from position 0, in slot 0.
pub fn whole(shape: &Shape, size: CacheSize, tokens: &[u32]) -> Batch {
    let pages: Vec<usize> = (0..tokens.len().div_ceil(PAGE_TOKENS)).collect();
    batch(shape, size, &[(0, 0, tokens, &pages)])
}

/// Largest difference, relative to the largest expected value.
#[track_caller]
pub fn assert_close(what: &str, actual: &Rows, expected: &Rows, tolerance: f32) {
    assert_eq!((actual.rows(), actual.cols()), (expected.rows(), expected.cols()), "{what}");
    let size = expected.as_slice().iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
    for (i, (&a, &e)) in actual.as_slice().iter().zip(expected.as_slice()).enumerate() {
        let close = (a - e).abs() <= tolerance * size;
        assert!(close, "{what}: value {i} is {a}, expected {e} within {tolerance} of {size}");
    }
}

#[track_caller]
pub fn assert_same_bits(what: &str, actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(a.to_bits() == e.to_bits(), "{what}: value {i} is {a:e}, expected {e:e}");
    }
}
