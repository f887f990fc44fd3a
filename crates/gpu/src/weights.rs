//! Weights on a device.

use crate::tensor::{Dtype, Range, Tensor};
use calla_model::Parts;

/// What a network's weights are made of on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct GpuParts;

impl Parts for GpuParts {
    type Matrix = GpuMatrix;
    type Experts = GpuExperts;
    /// f32 `[1, len]`.
    type Vector = Tensor;
}

/// A 4- or 8-bit matrix `[rows (out), cols (in)]` in groups of 64: `w = scale * q + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMatrix {
    /// Output dimension.
    pub rows: u32,
    /// Input dimension, a multiple of 64.
    pub cols: u32,
    /// 4 or 8.
    pub bits: u32,
    /// Packed integers, `u32 [rows, cols * bits / 32]`, the first value in the lowest bits.
    pub packed: Range,
    /// Scales, bf16 `[rows, cols / 64]`.
    pub scales: Range,
    /// Biases, bf16 `[rows, cols / 64]`.
    pub biases: Range,
}

impl GpuMatrix {
    /// Bytes of packed integers.
    #[must_use]
    pub fn packed_bytes(rows: u32, cols: u32, bits: u32) -> u64 {
        u64::from(rows) * u64::from(cols) * u64::from(bits) / 8
    }

    /// Bytes of the scales, or of the biases.
    #[must_use]
    pub fn group_bytes(rows: u32, cols: u32) -> u64 {
        u64::from(rows) * u64::from(cols / 64) * Dtype::Bf16.size()
    }

    /// Bytes of all three arrays.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.packed.len + self.scales.len + self.biases.len
    }
}

/// The matrices of all experts, one after the other: packed integers `[experts, rows, ..]`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuExperts {
    /// Number of experts.
    pub count: u32,
    /// All of them as one matrix of `count * rows` rows.
    pub stacked: GpuMatrix,
}

impl GpuExperts {
    /// Output dimension of one expert.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.stacked.rows / self.count
    }

    /// Bytes of one expert.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        self.stacked.size_bytes() / u64::from(self.count)
    }
}
