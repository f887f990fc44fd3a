//! Activations in host memory.

/// Activations `[rows, cols]` in f32, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    cols: usize,
    data: Vec<f32>,
}

impl Rows {
    /// All zero.
    #[must_use]
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { cols, data: vec![0.0; rows * cols] }
    }

    /// Wraps values.
    ///
    /// # Panics
    /// If the values are not whole rows.
    #[must_use]
    pub fn from_vec(cols: usize, data: Vec<f32>) -> Self {
        assert!(cols > 0 && data.len().is_multiple_of(cols), "{} values, {cols} cols", data.len());
        Self { cols, data }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.cols).unwrap_or(0)
    }

    /// Width of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.cols..][..self.cols]
    }

    /// All rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.data.chunks_exact(self.cols)
    }

    /// All rows in order, to write.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [f32]> {
        self.data.chunks_exact_mut(self.cols)
    }

    /// All values.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// All values, to write.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// The values themselves.
    #[must_use]
    pub fn into_vec(self) -> Vec<f32> {
        self.data
    }
}
