//! Activations laid out for the product kernels: aligned, padded to whole vectors, in the order in which
//! the weights unpack.

use crate::simd::{Block, LANES};
use crate::threads::Threads;
use calla_model::{Matrix, matrix::MatrixData};
use calla_ops::Rows;

/// A block at an address that a 512-bit access does not straddle cache lines from.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct AlignedBlock(pub(crate) Block);

const _: () = assert!(size_of::<AlignedBlock>() == size_of::<Block>());

/// Blocks as plain arrays.
#[inline(always)]
pub(crate) fn blocks(aligned: &[AlignedBlock]) -> &[Block] {
    // SAFETY: `AlignedBlock` is `repr(C)` with a `Block` as its only field and has its size (asserted
    // above), so the same memory is as many blocks; the lifetime stays.
    unsafe { std::slice::from_raw_parts(aligned.as_ptr().cast(), aligned.len()) }
}

/// Blocks as plain arrays, to write.
#[inline(always)]
pub(crate) fn blocks_mut(aligned: &mut [AlignedBlock]) -> &mut [Block] {
    // SAFETY: as in `blocks`; the exclusive borrow stays too.
    unsafe { std::slice::from_raw_parts_mut(aligned.as_mut_ptr().cast(), aligned.len()) }
}

/// In which order the values of a weight row leave the unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As stored.
    Natural,
    /// [`crate::simd::Simd::unpack_nibbles`]: permuted within each 64.
    Nibbles,
}

impl Order {
    /// The order of a matrix.
    pub(crate) fn of(matrix: &Matrix) -> Self {
        match matrix.data() {
            MatrixData::Affine { format, .. } if format.bits() == 4 && format.group() >= 64 => {
                Self::Nibbles
            }
            _ => Self::Natural,
        }
    }
}

/// Rows in one order.
pub(crate) struct Packed {
    blocks_per_row: usize,
    data: Vec<AlignedBlock>,
}

impl Packed {
    fn new(x: &Rows, order: Order, threads: &Threads) -> Self {
        let blocks_per_row = x.cols().div_ceil(LANES);
        let mut data = vec![AlignedBlock([0.0; LANES]); blocks_per_row * x.rows()];
        let mut rows: Vec<&mut [AlignedBlock]> = data.chunks_exact_mut(blocks_per_row).collect();
        threads.for_each_mut(&mut rows, x.as_slice().len(), |row, to| {
            pack(x.row(row), order, blocks_mut(to));
        });
        Self { blocks_per_row, data }
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &[Block] {
        blocks(&self.data[row * self.blocks_per_row..][..self.blocks_per_row])
    }
}

fn pack(from: &[f32], order: Order, to: &mut [Block]) {
    match order {
        Order::Natural => to.as_flattened_mut()[..from.len()].copy_from_slice(from),
        Order::Nibbles => {
            for (from, to) in from.as_chunks::<64>().0.iter().zip(to.as_chunks_mut::<4>().0) {
                for i in 0..8 {
                    for j in 0..4 {
                        to[j][i] = from[8 * i + j];
                        to[j][8 + i] = from[8 * i + 4 + j];
                    }
                }
            }
        }
    }
}

/// Rows in every order that some weights need.
pub(crate) struct Inputs {
    cols: usize,
    natural: Option<Packed>,
    nibbles: Option<Packed>,
}

impl Inputs {
    /// Lays `x` out for `weights`.
    pub(crate) fn new<'a>(
        x: &Rows,
        weights: impl IntoIterator<Item = &'a Matrix>,
        threads: &Threads,
    ) -> Self {
        let (mut natural, mut nibbles) = (None, None);
        for weight in weights {
            let order = Order::of(weight);
            let packed = match order {
                Order::Natural => &mut natural,
                Order::Nibbles => &mut nibbles,
            };
            packed.get_or_insert_with(|| Packed::new(x, order, threads));
        }
        Self { cols: x.cols(), natural, nibbles }
    }

    /// The rows in the order of a matrix.
    ///
    /// # Panics
    /// If they were not laid out for it, or have another width.
    pub(crate) fn for_matrix(&self, weight: &Matrix) -> &Packed {
        assert_eq!(self.cols, weight.cols(), "width of the input of {weight:?}");
        let packed = match Order::of(weight) {
            Order::Natural => &self.natural,
            Order::Nibbles => &self.nibbles,
        };
        packed.as_ref().expect("laid out for every weight that it meets")
    }
}
