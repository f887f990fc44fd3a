//! Products of activations with stored weights.
//!
//! One order of summation for every pair of an activation row and a weight row, whatever else is computed:
//! sixteen chains `acc = w * x + acc` over the vectors of the row, then one fixed tree. With one row, or
//! as few as the registers have accumulators for, the weights are unpacked in registers; with more, a tile of
//! weight rows is unpacked once into the cache and meets all rows in register tiles. All make the same
//! chains, so their bits agree. All fetch the weight rows to come, which are too short for the hardware to
//! see a sequence in them: without that, a row waits for memory half of its time.

use crate::columns::Columns;
use crate::inputs::{AlignedBlock, Inputs, Packed, blocks, blocks_mut};
use crate::simd::{AvailableIsa, Block, Kernel, LANES, Simd};
use crate::threads::Threads;
use crate::unpack::{Dense, Format, Nibbles, Octets, Stream, WeightRow, widen};
use calla_model::{Matrix, matrix::MatrixData};
use std::cell::RefCell;
use std::ops::Range;

/// Bytes of unpacked weights that a task keeps in the second-level cache.
const TILE_BYTES: usize = 128 * 1024;
/// Bounds on the weight rows of a task; multiples of the height of a register tile.
const TILE_OUTPUTS_MIN: usize = 16;
const TILE_OUTPUTS_MAX: usize = 64;
/// Bytes of activations that stay in the first-level cache.
const PIECE_BYTES: usize = 32 * 1024;
/// Distance of prefetching: far enough for the latency of memory, near enough for the first-level cache.
const PREFETCH_BYTES: usize = 4096;

/// An activation row to multiply, and where its result goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPair {
    /// Row of the inputs.
    pub(crate) input: u32,
    /// Row of the outputs.
    pub(crate) output: u32,
}

/// Rows `0..rows`, each to its own.
pub(crate) fn identity(rows: usize) -> Vec<RowPair> {
    (0..rows as u32).map(|row| RowPair { input: row, output: row }).collect()
}

/// `y[output] = weight x[input]` for some rows.
pub(crate) struct Product<'a> {
    /// The weight.
    pub(crate) weight: &'a Matrix,
    /// What is multiplied.
    pub(crate) inputs: &'a Inputs,
    /// Which rows of it.
    pub(crate) rows: &'a [RowPair],
    /// Where the results go.
    pub(crate) y: &'a Columns<'a>,
}

impl Product<'_> {
    /// Weight rows of one task.
    fn tile_outputs(&self) -> usize {
        let row_bytes = 4 * self.weight.cols().max(1);
        (TILE_BYTES / row_bytes).clamp(TILE_OUTPUTS_MIN, TILE_OUTPUTS_MAX) / 4 * 4
    }

    /// Estimated time on one thread.
    fn nanoseconds(&self) -> usize {
        self.weight.rows() * self.weight.cols() * (1 + self.rows.len()) / 32
    }
}

/// Computes products, all of them spread over the threads at once.
///
/// # Safety
/// No row of a `y` may be the output of two of the row pairs of the list.
pub(crate) unsafe fn products(isa: AvailableIsa, threads: &Threads, list: &[Product<'_>]) {
    let mut tasks: Vec<(&Product<'_>, Range<usize>)> = vec![];
    for product in list.iter().filter(|p| !p.rows.is_empty()) {
        let (outputs, tile) = (product.weight.rows(), product.tile_outputs());
        tasks.extend((0..outputs).step_by(tile).map(|o| (product, o..(o + tile).min(outputs))));
    }
    let nanoseconds = list.iter().map(Product::nanoseconds).sum();
    threads.for_each(tasks.len(), nanoseconds, |task| {
        let (product, outputs) = &tasks[task];
        SCRATCH.with_borrow_mut(|scratch| {
            isa.run(Task { product, outputs: outputs.clone(), scratch });
        });
    });
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Working memory of a thread.
struct Scratch {
    scales: Vec<f32>,
    biases: Vec<f32>,
    tile: Vec<AlignedBlock>,
}

impl Scratch {
    const fn new() -> Self {
        Self { scales: vec![], biases: vec![], tile: vec![] }
    }
}

/// Some outputs of a product.
struct Task<'a> {
    product: &'a Product<'a>,
    outputs: Range<usize>,
    scratch: &'a mut Scratch,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let weight = self.product.weight;
        match weight.data() {
            MatrixData::Dense { dtype, values } => {
                let row_bytes = weight.cols() * dtype.size();
                self.scratch.scales.clear();
                self.scratch.biases.clear();
                let stored = Stored { bytes: values, row_bytes, groups: 0 };
                self.in_format(simd, Dense(*dtype), stored);
            }
            MatrixData::Affine { format, packed, dtype, scales, biases } => {
                let groups = format.groups(weight.cols());
                let bytes = self.outputs.start * groups * dtype.size()..;
                let count = self.outputs.len() * groups;
                self.scratch.scales.resize(count, 0.0);
                self.scratch.biases.resize(count, 0.0);
                widen(simd, *dtype, &scales[bytes.clone()], &mut self.scratch.scales);
                widen(simd, *dtype, &biases[bytes], &mut self.scratch.biases);
                let row_bytes = format.packed_row_bytes(weight.cols());
                let steps = format.group() / 32;
                let stored = Stored { bytes: packed, row_bytes, groups };
                match (format.bits(), steps) {
                    (4, 2) => self.in_format(simd, Nibbles::<1>, stored),
                    (4, 4) => self.in_format(simd, Nibbles::<2>, stored),
                    (8, 1) => self.in_format(simd, Octets::<1>, stored),
                    (8, 2) => self.in_format(simd, Octets::<2>, stored),
                    (8, _) => self.in_format(simd, Octets::<4>, stored),
                    (2, _) => self.in_format(simd, Stream::<2> { steps }, stored),
                    (3, _) => self.in_format(simd, Stream::<3> { steps }, stored),
                    (4, _) => self.in_format(simd, Stream::<4> { steps }, stored),
                    (5, _) => self.in_format(simd, Stream::<5> { steps }, stored),
                    (6, _) => self.in_format(simd, Stream::<6> { steps }, stored),
                    // `AffineFormat` admits no other width.
                    (bits, _) => unreachable!("{bits} bits"),
                }
            }
        }
    }
}

/// Packed integers or plain values of a whole matrix.
struct Stored<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    /// Scales of a row.
    groups: usize,
}

impl Task<'_> {
    /// The scratch has the scales of this task's rows.
    #[inline(always)]
    fn in_format<S: Simd, F: Format<N>, const N: usize>(
        self,
        simd: S,
        format: F,
        stored: Stored<'_>,
    ) {
        let Self { product, outputs, scratch } = self;
        let x = product.inputs.for_matrix(product.weight);
        let tile = TileRows {
            bytes: &stored.bytes[outputs.start * stored.row_bytes..],
            row_bytes: stored.row_bytes,
            scales: &scratch.scales,
            biases: &scratch.biases,
            groups: stored.groups,
            cols: product.weight.cols(),
        };
        if let [row] = product.rows {
            let row_x = x.row(row.input as usize);
            // SAFETY: tasks of one product have distinct columns; the caller of `products` vouches that
            // row pairs, of one product or two, have distinct rows.
            let y = unsafe { product.y.piece(row.output as usize, outputs) };
            one_row(simd, format, &tile, row_x, y);
        } else if const { S::FEW_ROWS > 0 } && product.rows.len() <= S::FEW_ROWS {
            // In `const`, so that nothing below is compiled for the others.
            let with = (x, &mut scratch.tile);
            match product.rows.len() {
                2 => few_rows::<S, F, N, 2, 4>(simd, format, &tile, with, product, outputs),
                3 => few_rows::<S, F, N, 3, 4>(simd, format, &tile, with, product, outputs),
                4 => few_rows::<S, F, N, 4, 2>(simd, format, &tile, with, product, outputs),
                5 => few_rows::<S, F, N, 5, 2>(simd, format, &tile, with, product, outputs),
                6 => few_rows::<S, F, N, 6, 2>(simd, format, &tile, with, product, outputs),
                7 => few_rows::<S, F, N, 7, 2>(simd, format, &tile, with, product, outputs),
                _ => few_rows::<S, F, N, 8, 2>(simd, format, &tile, with, product, outputs),
            }
        } else {
            let blocks_per_row = product.weight.cols().div_ceil(LANES);
            // Register tiles are four weight rows high: rows beyond the last are stale and not stored.
            let len = outputs.len().next_multiple_of(4) * blocks_per_row;
            if scratch.tile.len() < len {
                scratch.tile.resize(len, AlignedBlock([0.0; LANES]));
            }
            let unpacked = &mut scratch.tile[..len];
            for (i, to) in (0..outputs.len()).zip(unpacked.chunks_exact_mut(blocks_per_row)) {
                unpack_row(simd, format, &tile, i, blocks_mut(to));
            }
            many_rows(simd, blocks(unpacked), blocks_per_row, x, product, outputs);
        }
    }
}

/// Consecutive weight rows as stored.
struct TileRows<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    scales: &'a [f32],
    biases: &'a [f32],
    groups: usize,
    cols: usize,
}

impl<'a> TileRows<'a> {
    #[inline(always)]
    fn row(&self, i: usize) -> WeightRow<'a> {
        WeightRow {
            bytes: &self.bytes[i * self.row_bytes..],
            scales: &self.scales[i * self.groups..][..self.groups],
            biases: &self.biases[i * self.groups..][..self.groups],
        }
    }

    /// Rows `first .. first + A`; past the last of `count`, that one again, whose product is dropped.
    #[inline(always)]
    fn group<const A: usize>(&self, first: usize, count: usize) -> [WeightRow<'a>; A] {
        let mut rows = [self.row(first); A];
        for a in 1..A {
            rows[a] = self.row((first + a).min(count - 1));
        }
        rows
    }

    /// Bytes of one of the `steps` of a row, and how many bytes ahead of a step to fetch memory: whole
    /// rows, at least the `group` that are read side by side.
    #[inline(always)]
    fn prefetch_distance(&self, steps: usize, group: usize) -> (usize, usize) {
        let rows = (PREFETCH_BYTES / self.row_bytes.max(1)).max(group);
        (self.row_bytes / steps.max(1), rows * self.row_bytes)
    }
}

/// One activation row with consecutive weight rows, unpacked on the fly.
#[inline(always)]
fn one_row<S: Simd, F: Format<N>, const N: usize>(
    simd: S,
    format: F,
    tile: &TileRows<'_>,
    x: &[Block],
    y: &mut [f32],
) {
    let steps = x.as_chunks::<N>().0;
    let (step_bytes, ahead) = tile.prefetch_distance(steps.len(), 4);
    let count = y.len();
    for (quad, y) in y.chunks_mut(4).enumerate() {
        let rows = tile.group::<4>(4 * quad, count);
        let mut acc = [simd.splat(0.0); 4];
        for (step, x) in steps.iter().enumerate() {
            for a in 0..4 {
                simd.prefetch(rows[a].bytes, ahead + step * step_bytes);
                let w = format.unpack(simd, rows[a], step, tile.cols);
                for n in 0..N {
                    acc[a] = simd.mul_add(w[n], simd.load(&x[n]), acc[a]);
                }
            }
        }
        store_sums(simd.sum4(acc), y);
    }
}

/// `X` activation rows with consecutive weight rows, `A` at a time, unpacked once on the fly.
///
/// Columns are cut in pieces whose activations stay in the first-level cache while all weight rows pass;
/// between pieces the chains wait in `chains`.
#[inline(always)]
fn few_rows<S: Simd, F: Format<N>, const N: usize, const X: usize, const A: usize>(
    simd: S,
    format: F,
    tile: &TileRows<'_>,
    (x, chains): (&Packed, &mut Vec<AlignedBlock>),
    product: &Product<'_>,
    outputs: Range<usize>,
) {
    let count = outputs.len();
    let steps = x.row(0).len() / N;
    let piece_steps = const { PIECE_BYTES / (size_of::<Block>() * N * X) };
    let (step_bytes, ahead) = tile.prefetch_distance(steps, A);
    let len = if steps > piece_steps { count.next_multiple_of(A) * X } else { 0 };
    if chains.len() < len {
        chains.resize(len, AlignedBlock([0.0; LANES]));
    }
    for start in (0..steps).step_by(piece_steps) {
        let end = (start + piece_steps).min(steps);
        let mut xs: [&[[Block; N]]; X] = [&[]; X];
        for b in 0..X {
            xs[b] = &x.row(product.rows[b].input as usize).as_chunks().0[start..end];
        }
        for first in (0..count).step_by(A) {
            let rows = tile.group::<A>(first, count);
            let mut acc = [[simd.splat(0.0); A]; X];
            if start > 0 {
                for (i, chain) in blocks(&chains[first * X..][..A * X]).iter().enumerate() {
                    acc[i / A][i % A] = simd.load(chain);
                }
            }
            for step in start..end {
                // All weights first: then an activation is loaded once for all of them.
                let mut w = [[simd.splat(0.0); N]; A];
                for a in 0..A {
                    simd.prefetch(rows[a].bytes, ahead + step * step_bytes);
                    w[a] = format.unpack(simd, rows[a], step, tile.cols);
                }
                for n in 0..N {
                    for b in 0..X {
                        let x = simd.load(&xs[b][step - start][n]);
                        for a in 0..A {
                            acc[b][a] = simd.mul_add(w[a][n], x, acc[b][a]);
                        }
                    }
                }
            }
            if end < steps {
                for (i, chain) in
                    blocks_mut(&mut chains[first * X..][..A * X]).iter_mut().enumerate()
                {
                    simd.store(acc[i / A][i % A], chain);
                }
                continue;
            }
            let at = outputs.start + first;
            let cols = at..(at + A).min(outputs.end);
            let store = |b: usize, sums: &[f32]| {
                // SAFETY: as in `tile_of`: `sums` of one row are stored before the piece of the next is taken.
                let y = unsafe { product.y.piece(product.rows[b].output as usize, cols.clone()) };
                y.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum);
            };
            if A == 4 {
                for b in 0..X {
                    store(b, &simd.sum4([acc[b][0], acc[b][1], acc[b][2], acc[b][3]]));
                }
            } else {
                for b in (0..X).step_by(2) {
                    let other = (b + 1).min(X - 1);
                    let sums = simd.sum4([acc[b][0], acc[b][1], acc[other][0], acc[other][1]]);
                    store(b, &sums[..2]);
                    store(other, &sums[2..]);
                }
            }
        }
    }
}

/// Row `i` of a tile as plain values.
#[inline(always)]
fn unpack_row<S: Simd, F: Format<N>, const N: usize>(
    simd: S,
    format: F,
    tile: &TileRows<'_>,
    i: usize,
    to: &mut [Block],
) {
    let row = tile.row(i);
    let (step_bytes, ahead) = tile.prefetch_distance(to.len() / N, 1);
    for (step, to) in to.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        simd.prefetch(row.bytes, ahead + step * step_bytes);
        let w = format.unpack(simd, row, step, tile.cols);
        for n in 0..N {
            simd.store(w[n], &mut to[n]);
        }
    }
}

/// All rows of a product with an unpacked tile.
#[inline(always)]
fn many_rows<S: Simd>(
    simd: S,
    tile: &[Block],
    blocks_per_row: usize,
    x: &Packed,
    product: &Product<'_>,
    outputs: Range<usize>,
) {
    for rows in product.rows.chunks(S::TILE_ROWS) {
        for (quad, w) in tile.chunks_exact(4 * blocks_per_row).enumerate() {
            let start = outputs.start + 4 * quad;
            let cols = start..(start + 4).min(outputs.end);
            match rows.len() {
                6 => tile_of::<S, 6>(simd, w, x, rows, product.y, cols),
                5 => tile_of::<S, 5>(simd, w, x, rows, product.y, cols),
                4 => tile_of::<S, 4>(simd, w, x, rows, product.y, cols),
                3 => tile_of::<S, 3>(simd, w, x, rows, product.y, cols),
                2 => tile_of::<S, 2>(simd, w, x, rows, product.y, cols),
                _ => tile_of::<S, 1>(simd, w, x, rows, product.y, cols),
            }
        }
    }
}

/// One register tile: four weight rows and `X` activation rows.
#[inline(always)]
fn tile_of<S: Simd, const X: usize>(
    simd: S,
    w: &[Block],
    x: &Packed,
    rows: &[RowPair],
    y: &Columns<'_>,
    cols: Range<usize>,
) {
    let n = w.len() / 4;
    let w = [&w[..n], &w[n..2 * n], &w[2 * n..3 * n], &w[3 * n..]];
    let mut xs: [&[Block]; X] = [&[]; X];
    for b in 0..X {
        xs[b] = x.row(rows[b].input as usize);
    }
    let acc = simd.dot_tile(w, xs);
    for b in 0..X {
        let sums = simd.sum4(acc[b]);
        // SAFETY: tasks of one product have distinct columns; the caller of `products` vouches that row
        // pairs, of one product or two, have distinct rows; this task holds one piece at a time.
        let y = unsafe { y.piece(rows[b].output as usize, cols.clone()) };
        store_sums(sums, y);
    }
}

/// Writes four sums, or the first of them where the matrix ends.
#[inline(always)]
fn store_sums(sums: [f32; 4], y: &mut [f32]) {
    match y.first_chunk_mut() {
        Some(y) => *y = sums,
        None => y.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum),
    }
}
