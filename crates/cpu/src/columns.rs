//! Rows of activations that several tasks fill at once, each its own columns or rows.

use calla_ops::Rows;
use std::marker::PhantomData;
use std::ops::Range;

/// Exclusive access to `[rows, cols]`, to be handed out in disjoint pieces.
pub(crate) struct Columns<'a> {
    first: *mut f32,
    rows: usize,
    cols: usize,
    values: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for `&'a mut [f32]`, which may be sent; sharing it hands out nothing except through
// `piece`, whose caller vouches that pieces in use at one time are disjoint.
unsafe impl Send for Columns<'_> {}
// SAFETY: as above.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    /// Takes hold of rows.
    pub(crate) fn new(rows: &'a mut Rows) -> Self {
        let (count, cols) = (rows.rows(), rows.cols());
        let first = rows.as_mut_slice().as_mut_ptr();
        Self { first, rows: count, cols, values: PhantomData }
    }

    /// Columns of one row.
    ///
    /// # Panics
    /// If they do not exist.
    ///
    /// # Safety
    /// No two pieces that are in use at one time may overlap.
    #[expect(clippy::mut_from_ref, reason = "the caller vouches for exclusive use")]
    #[inline(always)]
    pub(crate) unsafe fn piece(&self, row: usize, cols: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows && cols.start <= cols.end && cols.end <= self.cols);
        // SAFETY: the assertion keeps the piece inside the `rows * cols` values behind `first`, which are
        // exclusively ours for `'a`; the caller keeps pieces disjoint.
        unsafe {
            let start = self.first.add(row * self.cols + cols.start);
            std::slice::from_raw_parts_mut(start, cols.end - cols.start)
        }
    }
}
