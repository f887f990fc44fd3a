//! Unpacking of stored weight rows into vectors, a format at a time.

use crate::simd::{Block, LANES, Simd, math::pad};
use calla_model::format::FloatType;

/// The bytes of one weight row, with those of the rows after it (so that a vector load may run over).
#[derive(Clone, Copy)]
pub(crate) struct WeightRow<'a> {
    /// Packed integers or plain values, from the start of the row.
    pub(crate) bytes: &'a [u8],
    /// Scales of its groups.
    pub(crate) scales: &'a [f32],
    /// Biases of its groups.
    pub(crate) biases: &'a [f32],
}

/// A format whose rows unpack in steps of `N` vectors.
pub(crate) trait Format<const N: usize>: Copy + Sync {
    /// Step `step` of a row of `cols` values: vectors `N * step ..`, zero beyond `cols`.
    fn unpack<S: Simd>(self, simd: S, row: WeightRow<'_>, step: usize, cols: usize) -> [S::V; N];
}

/// 4 bits, a scale for every `STEPS` x 64 values, in nibble order.
#[derive(Clone, Copy)]
pub(crate) struct Nibbles<const STEPS: usize>;

impl<const STEPS: usize> Format<4> for Nibbles<STEPS> {
    #[inline(always)]
    fn unpack<S: Simd>(self, simd: S, row: WeightRow<'_>, step: usize, _: usize) -> [S::V; 4] {
        let packed = &row.bytes.as_chunks().0[step];
        simd.unpack_nibbles(packed, row.scales[step / STEPS], row.biases[step / STEPS])
    }
}

/// 8 bits, a scale for every `STEPS` x 32 values.
#[derive(Clone, Copy)]
pub(crate) struct Octets<const STEPS: usize>;

impl<const STEPS: usize> Format<2> for Octets<STEPS> {
    #[inline(always)]
    fn unpack<S: Simd>(self, simd: S, row: WeightRow<'_>, step: usize, _: usize) -> [S::V; 2] {
        let packed = &row.bytes.as_chunks::<16>().0[2 * step..][..2];
        let scale = simd.splat(row.scales[step / STEPS]);
        let bias = simd.splat(row.biases[step / STEPS]);
        [simd.unpack_bytes(&packed[0], scale, bias), simd.unpack_bytes(&packed[1], scale, bias)]
    }
}

/// Any width up to 6 bits, a scale for every `steps` x 32 values.
#[derive(Clone, Copy)]
pub(crate) struct Stream<const BITS: usize> {
    pub(crate) steps: usize,
}

impl<const BITS: usize> Format<2> for Stream<BITS> {
    #[inline(always)]
    fn unpack<S: Simd>(self, simd: S, row: WeightRow<'_>, step: usize, _: usize) -> [S::V; 2] {
        let scale = simd.splat(row.scales[step / self.steps]);
        let bias = simd.splat(row.biases[step / self.steps]);
        // 16 values fill 2 * BITS bytes.
        let at = 4 * BITS * step;
        [
            simd.unpack_stream::<BITS>(&bytes_at(row.bytes, at), scale, bias),
            simd.unpack_stream::<BITS>(&bytes_at(row.bytes, at + 2 * BITS), scale, bias),
        ]
    }
}

/// Plain values.
#[derive(Clone, Copy)]
pub(crate) struct Dense(pub(crate) FloatType);

impl Format<1> for Dense {
    #[inline(always)]
    fn unpack<S: Simd>(self, simd: S, row: WeightRow<'_>, step: usize, cols: usize) -> [S::V; 1] {
        [dense_block(simd, self.0, row.bytes, step * LANES, cols)]
    }
}

/// Values `at ..` of a plain array of `len`, zero beyond.
#[inline(always)]
fn dense_block<S: Simd>(simd: S, dtype: FloatType, bytes: &[u8], at: usize, len: usize) -> S::V {
    if at + LANES <= len {
        match dtype {
            FloatType::Bf16 => {
                if let Some(chunk) = bytes[2 * at..].first_chunk() {
                    return simd.widen_bf16(chunk);
                }
            }
            FloatType::F16 => {
                if let Some(chunk) = bytes[2 * at..].first_chunk() {
                    return simd.widen_f16(chunk);
                }
            }
            FloatType::F32 => {
                if let Some(chunk) = bytes[4 * at..].first_chunk::<64>() {
                    let mut block: Block = [0.0; LANES];
                    for (value, bytes) in block.iter_mut().zip(chunk.as_chunks().0) {
                        *value = f32::from_le_bytes(*bytes);
                    }
                    return simd.load(&block);
                }
            }
        }
    }
    let mut tail = [0.0; LANES];
    for (i, value) in tail.iter_mut().enumerate().take(len - at) {
        *value = dtype.read(bytes, at + i);
    }
    simd.load(&tail)
}

/// 16 bytes from `at`, zero beyond the end.
#[inline(always)]
fn bytes_at(bytes: &[u8], at: usize) -> [u8; 16] {
    let from = &bytes[at..];
    if let Some(chunk) = from.first_chunk() {
        return *chunk;
    }
    let mut chunk = [0; 16];
    chunk[..from.len()].copy_from_slice(from);
    chunk
}

/// Widens a plain array, such as scales.
#[inline(always)]
pub(crate) fn widen<S: Simd>(simd: S, dtype: FloatType, bytes: &[u8], to: &mut [f32]) {
    let len = to.len();
    let (blocks, tail) = to.as_chunks_mut();
    for (i, block) in blocks.iter_mut().enumerate() {
        simd.store(dense_block(simd, dtype, bytes, i * LANES, len), block);
    }
    if !tail.is_empty() {
        let mut last = pad(tail);
        simd.store(dense_block(simd, dtype, bytes, len - tail.len(), len), &mut last);
        tail.copy_from_slice(&last[..tail.len()]);
    }
}
