//! MLX's affine quantiser: f32 values to packed integers, scales and biases.
//!
//! The same arithmetic in the same order as MLX's `affine_quantize`, so results are equal bit for bit (the
//! tests hold it to arrays packed by MLX). The number format is described in [`calla_model::format`].

use bytes::Bytes;
use calla_model::{AffineFormat, FloatType, Matrix, MatrixError};
use half::{bf16, f16};
use rayon::prelude::*;

/// Smallest scale, as in MLX: keeps a group of equal values from dividing by zero.
const SCALE_MIN: f32 = 1e-7;
/// Groups that one thread takes at a time.
const GROUPS_PER_TASK: usize = 1024;

/// A quantised array.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// Its format.
    pub format: AffineFormat,
    /// Packed integers, a little-endian bit stream.
    pub packed: Vec<u8>,
    /// One scale per group, not yet rounded to the type that is stored.
    pub scales: Vec<f32>,
    /// One bias per group, not yet rounded to the type that is stored.
    pub biases: Vec<f32>,
}

/// Quantises `values`, rows one after the other, each a multiple of the group long.
///
/// Integers follow from the unrounded scale and bias; MLX rounds these only when it stores them.
///
/// # Panics
/// If the number of values is not a multiple of the group.
#[must_use]
pub fn quantize(values: &[f32], format: AffineFormat) -> Quantized {
    let group = format.group();
    assert!(
        values.len().is_multiple_of(group),
        "{} values are not a multiple of the group {group}",
        values.len()
    );
    let groups = values.len() / group;
    let group_bytes = format.packed_row_bytes(group);
    let mut result = Quantized {
        format,
        packed: vec![0; groups * group_bytes],
        scales: vec![0.0; groups],
        biases: vec![0.0; groups],
    };
    (
        values.par_chunks(group),
        result.packed.par_chunks_mut(group_bytes),
        &mut result.scales,
        &mut result.biases,
    )
        .into_par_iter()
        .with_min_len(GROUPS_PER_TASK)
        .for_each(|(values, packed, scale, bias)| {
            (*scale, *bias) = quantize_group(values, format.bits(), packed);
        });
    result
}

/// Packs one group into `packed` and returns its scale and bias.
fn quantize_group(values: &[f32], bits: usize, packed: &mut [u8]) -> (f32, f32) {
    let levels = ((1_u32 << bits) - 1) as f32;
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // The end of the range that is larger in magnitude is represented exactly.
    let min_is_edge = min.abs() > max.abs();
    let magnitude = ((max - min) / levels).max(SCALE_MIN);
    let (mut scale, edge) = if min_is_edge { (magnitude, min) } else { (-magnitude, max) };
    let mut bias = 0.0;
    let edge_steps = (edge / scale).round_ties_even();
    if edge_steps != 0.0 {
        scale = edge / edge_steps;
        bias = edge;
    }
    let (mut stream, mut filled) = (0_u32, 0);
    let mut bytes = packed.iter_mut();
    for value in values {
        let q = ((value - bias) / scale).round_ties_even().clamp(0.0, levels) as u32;
        stream |= q << filled;
        filled += bits;
        while filled >= 8 {
            // A group of 32 or more values fills whole bytes, and `packed` has exactly those.
            if let Some(byte) = bytes.next() {
                *byte = stream as u8;
            }
            stream >>= 8;
            filled -= 8;
        }
    }
    (scale, bias)
}

impl Quantized {
    /// The matrix `[rows, cols]` with scales and biases stored as `dtype`.
    ///
    /// # Errors
    /// If `rows * cols` is not the number of values that were quantised.
    pub fn to_matrix(
        &self,
        rows: usize,
        cols: usize,
        dtype: FloatType,
    ) -> Result<Matrix, MatrixError> {
        let floats = |values: &[f32]| aligned(values, dtype);
        // u32 words from the allocator start at a multiple of 4, which a byte vector need not.
        let words: Vec<u32> =
            self.packed.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let packed = Bytes::from_owner(Words(words));
        let (scales, biases) = (floats(&self.scales), floats(&self.biases));
        Matrix::affine(rows, cols, self.format, packed, dtype, scales, biases)
    }
}

struct Words(Vec<u32>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Values as little-endian bytes of `dtype`, rounded to nearest, at an aligned address.
fn aligned(values: &[f32], dtype: FloatType) -> Bytes {
    let mut bytes = Vec::with_capacity(values.len() * dtype.size() + 4);
    for &value in values {
        match dtype {
            FloatType::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            FloatType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            FloatType::F32 => bytes.extend(value.to_le_bytes()),
        }
    }
    let len = bytes.len();
    bytes.resize(len.next_multiple_of(4), 0);
    let words: Vec<u32> = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    Bytes::from_owner(Words(words)).slice(..len)
}
