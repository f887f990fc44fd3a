//! Weights on a device.

use crate::dispatch::Dispatch;
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

    /// Bytes of packed integers, of scales and of biases.
    #[must_use]
    pub fn array_bytes(rows: u32, cols: u32, bits: u32) -> [u64; 3] {
        let group = Self::group_bytes(rows, cols);
        [Self::packed_bytes(rows, cols, bits), group, group]
    }

    /// What the start of each of the three arrays has to be a multiple of, in bytes. Rows follow without a gap; as they have
    /// groups of 64, each then starts at such a multiple too.
    ///
    /// Kernels load 16 packed integers at once (`load_packed16` in `kernels/quantized.h`): 8 bytes of 4 bits each, 16 of 8.
    /// Scales and biases they load one at a time, as bf16; but what is bound starts at a multiple of 4 ([`crate::check`]).
    #[must_use]
    pub fn alignments(bits: u32) -> [u64; 3] {
        [u64::from(2 * bits), 4, 4]
    }

    /// Bytes of all three arrays.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.packed.len + self.scales.len + self.biases.len
    }

    /// Requires a format that kernels take.
    ///
    /// # Panics
    /// If it is another.
    #[track_caller]
    pub(crate) fn check(&self) {
        assert!(matches!(self.bits, 4 | 8), "{} bits", self.bits);
        let groups = self.cols > 0 && self.cols.is_multiple_of(64);
        assert!(groups, "groups of 64 in {} columns", self.cols);
    }

    /// Operations of a product with so many rows.
    pub(crate) fn flops(&self, rows: u32) -> u64 {
        2 * u64::from(rows) * u64::from(self.rows) * u64::from(self.cols)
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

    /// Requires so many matrices `[rows, cols]` in a format that kernels take.
    ///
    /// # Panics
    /// If they are others.
    #[track_caller]
    pub(crate) fn check(&self, count: usize, rows: usize, cols: usize) {
        let found = [self.count, self.stacked.rows, self.stacked.cols].map(|n| n as usize);
        assert_eq!(found, [count, count * rows, cols], "[experts, rows of all, in]");
        self.stacked.check();
    }

    /// Bytes of one expert.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        self.stacked.size_bytes() / u64::from(self.count)
    }
}

impl Dispatch {
    /// Binds a matrix, of whose arrays `part` of their bytes is expected to be read.
    pub(crate) fn read_matrix(self, matrix: &GpuMatrix, part: impl Fn(u64) -> u64) -> Self {
        [matrix.packed, matrix.scales, matrix.biases]
            .into_iter()
            .fold(self, |dispatch, range| dispatch.read_part(range, part(range.len)))
    }

    /// Binds the matrices of all experts, of which so many are read.
    pub(crate) fn read_experts(self, experts: &GpuExperts, read: u32) -> Self {
        let part = |len: u64| len / u64::from(experts.count) * u64::from(read);
        self.read_matrix(&experts.stacked, part)
    }
}
