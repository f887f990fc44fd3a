//! Views of stored weight matrices, quantised or not, whose sizes have been checked.

use crate::format::{AffineFormat, FloatType};
use bytes::Bytes;
use std::fmt;

/// A weight matrix `[rows (out), cols (in)]` over checkpoint bytes (usually a memory map).
///
/// Holding one proves: every byte array has exactly the length that `rows`, `cols` and the format imply. It
/// says nothing of their addresses: MLX writes its files without padding, so arrays often start at odd
/// ones. Code that needs alignment asks [`Matrix::is_aligned`].
#[derive(Clone)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: MatrixData,
}

/// The bytes of a [`Matrix`], all little-endian and row-major.
#[derive(Clone)]
pub enum MatrixData {
    /// Plain values `[rows, cols]`.
    Dense {
        /// Type of the values.
        dtype: FloatType,
        /// The values.
        values: Bytes,
    },
    /// MLX affine quantisation.
    Affine {
        /// Bits and group size.
        format: AffineFormat,
        /// Packed integers, `u32 [rows, cols * bits / 32]`.
        packed: Bytes,
        /// Type of scales and biases.
        dtype: FloatType,
        /// Scales `[rows, cols / group]`; they may be negative.
        scales: Bytes,
        /// Biases `[rows, cols / group]`.
        biases: Bytes,
    },
}

/// Why bytes do not form a matrix.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MatrixError {
    /// A byte array has another length than the dimensions imply.
    #[error("{what} of a [{rows}, {cols}] matrix must have {expected} bytes but has {actual}")]
    Length {
        /// Which array.
        what: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes that the dimensions imply.
        expected: u128,
        /// Bytes given.
        actual: usize,
    },
    /// The columns are not a multiple of the group.
    #[error("{cols} columns are not a multiple of the quantisation group {group}")]
    Group {
        /// Columns of the matrix.
        cols: usize,
        /// Group size.
        group: usize,
    },
}

impl Matrix {
    /// A matrix of plain values.
    ///
    /// # Errors
    /// If the length is wrong.
    pub fn dense(
        rows: usize,
        cols: usize,
        dtype: FloatType,
        values: Bytes,
    ) -> Result<Self, MatrixError> {
        let dims = Dims { rows, cols };
        dims.check("values", &values, cols as u128 * dtype.size() as u128)?;
        Ok(Self { rows, cols, data: MatrixData::Dense { dtype, values } })
    }

    /// A quantised matrix; `dtype` is the type of `scales` and `biases`.
    ///
    /// # Errors
    /// If the columns are no multiple of the group, or a length is wrong.
    pub fn affine(
        rows: usize,
        cols: usize,
        format: AffineFormat,
        packed: Bytes,
        dtype: FloatType,
        scales: Bytes,
        biases: Bytes,
    ) -> Result<Self, MatrixError> {
        if !cols.is_multiple_of(format.group()) {
            return Err(MatrixError::Group { cols, group: format.group() });
        }
        let dims = Dims { rows, cols };
        dims.check("packed weights", &packed, cols as u128 * format.bits() as u128 / 8)?;
        let group_bytes = format.groups(cols) as u128 * dtype.size() as u128;
        dims.check("scales", &scales, group_bytes)?;
        dims.check("biases", &biases, group_bytes)?;
        Ok(Self { rows, cols, data: MatrixData::Affine { format, packed, dtype, scales, biases } })
    }

    /// Output dimension.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input dimension.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The bytes.
    #[must_use]
    pub fn data(&self) -> &MatrixData {
        &self.data
    }

    /// Bytes of all its arrays.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        match &self.data {
            MatrixData::Dense { values, .. } => values.len(),
            MatrixData::Affine { packed, scales, biases, .. } => {
                packed.len() + scales.len() + biases.len()
            }
        }
    }

    /// Whether every array starts at an address that is a multiple of its element's size (4 bytes for
    /// packed integers).
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        let at = |bytes: &Bytes, size: usize| bytes.as_ptr().addr().is_multiple_of(size);
        match &self.data {
            MatrixData::Dense { dtype, values } => at(values, dtype.size()),
            MatrixData::Affine { packed, dtype, scales, biases, .. } => {
                at(packed, 4) && at(scales, dtype.size()) && at(biases, dtype.size())
            }
        }
    }

    /// Stored bits per value, scales and biases included.
    #[must_use]
    pub fn bits_per_value(&self) -> f64 {
        self.size_bytes() as f64 * 8.0 / (self.rows as f64 * self.cols as f64)
    }

    /// Writes row `row` as f32 into `out` (`cols` long): the plain decoder that faster ones are held to.
    /// `s * q + b` is one fused multiply-add.
    ///
    /// # Panics
    /// If `row` or the length of `out` is out of range.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of {self:?}");
        match &self.data {
            MatrixData::Dense { dtype, values } => {
                for (j, value) in out.iter_mut().enumerate() {
                    *value = dtype.read(values, row * self.cols + j);
                }
            }
            MatrixData::Affine { format, packed, dtype, scales, biases } => {
                let row_bytes = format.packed_row_bytes(self.cols);
                let packed = &packed[row * row_bytes..][..row_bytes];
                let first_group = row * format.groups(self.cols);
                for (j, value) in out.iter_mut().enumerate() {
                    let group = first_group + j / format.group();
                    let (s, b) = (dtype.read(scales, group), dtype.read(biases, group));
                    *value = s.mul_add(format.unpack(packed, j) as f32, b);
                }
            }
        }
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matrix[{}, {}] ", self.rows, self.cols)?;
        match &self.data {
            MatrixData::Dense { dtype, .. } => f.write_str(dtype.name()),
            MatrixData::Affine { format, .. } => {
                write!(f, "affine {}-bit, group {}", format.bits(), format.group())
            }
        }
    }
}

struct Dims {
    rows: usize,
    cols: usize,
}

impl Dims {
    fn check(&self, what: &'static str, bytes: &Bytes, row_bytes: u128) -> Result<(), MatrixError> {
        let expected = self.rows as u128 * row_bytes;
        if bytes.len() as u128 != expected {
            let (rows, cols, actual) = (self.rows, self.cols, bytes.len());
            return Err(MatrixError::Length { what, rows, cols, expected, actual });
        }
        Ok(())
    }
}

/// One matrix per expert, all of one shape.
///
/// Checkpoints store experts stacked in one tensor, split from a fused one, or one tensor each; a list of
/// views covers all three without copying.
#[derive(Clone, Debug)]
pub struct Experts(Vec<Matrix>);

impl Experts {
    /// Wraps matrices of one shape.
    ///
    /// # Panics
    /// If the list is empty or the shapes differ: the caller has read both from one [`crate::Shape`].
    #[must_use]
    pub fn new(matrices: Vec<Matrix>) -> Self {
        let first = matrices.first().expect("at least one expert");
        assert!(matrices.iter().all(|m| (m.rows, m.cols) == (first.rows, first.cols)));
        Self(matrices)
    }

    /// The matrix of one expert.
    #[must_use]
    pub fn get(&self, expert: usize) -> &Matrix {
        &self.0[expert]
    }

    /// Number of experts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All matrices in order.
    pub fn iter(&self) -> impl Iterator<Item = &Matrix> {
        self.0.iter()
    }

    /// Output dimension of each expert.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.0[0].rows
    }

    /// Input dimension of each expert.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.0[0].cols
    }
}
