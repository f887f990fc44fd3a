//! A vector as two 256-bit registers.
//!
//! SAFETY, for every block below: a method has `self`, and [`Avx2`] is made only in [`run`], whose caller
//! vouches for the instructions. Loads and stores go through references to arrays of at least their size
//! (halves of a [`Block`] at offsets 0 and 8) and ask for no alignment. Functions inside a method run only
//! from it.

use super::{Block, Kernel, LANES, Simd, StreamLayout};
use std::arch::x86_64::*;

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Runs a kernel with the instructions enabled.
///
/// # Safety
/// The machine must have the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// An intrinsic under the safety argument of this file.
macro_rules! intrinsic {
    ($body:expr) => {
        // SAFETY: see the head of this file.
        unsafe { $body }
    };
}

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Halves(__m256, __m256);

/// Sums of four vectors whose halves have been added.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
pub(super) unsafe fn sum4_halves(s: [__m256; 4]) -> [f32; 4] {
    // SAFETY: the caller vouches for AVX2; the store goes to an array of its size.
    unsafe {
        let pairs = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3]));
        let sum = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
        let mut sums = [0.0; 4];
        _mm_storeu_ps(sums.as_mut_ptr(), sum);
        sums
    }
}

impl Avx2 {
    /// Lanes `8 half ..` of a block.
    #[inline(always)]
    fn load_half<const HALF: usize>(self, from: &Block) -> __m256 {
        const { assert!(8 * HALF + 8 <= LANES) };
        intrinsic!(_mm256_loadu_ps(from.as_ptr().add(8 * HALF)))
    }

    /// One half of the lanes of [`Simd::dot_tile`], whose 4 x 3 accumulators then fit the 16 registers.
    #[inline(always)]
    fn dot_half<const HALF: usize, const X: usize>(
        self,
        w: [&[Block]; 4],
        x: [&[Block]; X],
        acc: &mut [[__m256; 4]; X],
    ) {
        let blocks = w[0].len();
        let w = [w[0], &w[1][..blocks], &w[2][..blocks], &w[3][..blocks]];
        let mut x = x;
        for x in &mut x {
            *x = &x[..blocks];
        }
        let mut sums = *acc;
        for i in 0..blocks {
            let mut xs = [intrinsic!(_mm256_setzero_ps()); X];
            for b in 0..X {
                xs[b] = self.load_half::<HALF>(&x[b][i]);
            }
            for a in 0..4 {
                let w = self.load_half::<HALF>(&w[a][i]);
                for b in 0..X {
                    sums[b][a] = intrinsic!(_mm256_fmadd_ps(w, xs[b], sums[b][a]));
                }
            }
        }
        *acc = sums;
    }
}

/// The same intrinsic on both halves.
macro_rules! both {
    ($f:ident, $($v:expr),+) => {
        intrinsic!(Halves($f($($v.0),+), $f($($v.1),+)))
    };
}

impl Simd for Avx2 {
    type V = Halves;

    const TILE_ROWS: usize = 3;
    const FEW_ROWS: usize = 0;
    const WIDTH: usize = 2;

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], at: usize) {
        // A prefetch has no effect but on time, whatever the address.
        intrinsic!(_mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()));
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Halves {
        intrinsic!(Halves(_mm256_set1_ps(x), _mm256_set1_ps(x)))
    }

    #[inline(always)]
    fn load(self, from: &Block) -> Halves {
        Halves(self.load_half::<0>(from), self.load_half::<1>(from))
    }

    #[inline(always)]
    fn store(self, v: Halves, to: &mut Block) {
        intrinsic!({
            _mm256_storeu_ps(to.as_mut_ptr(), v.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v.1);
        });
    }

    #[inline(always)]
    fn add(self, a: Halves, b: Halves) -> Halves {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Halves, b: Halves) -> Halves {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Halves, b: Halves) -> Halves {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Halves, b: Halves) -> Halves {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn mul_add(self, a: Halves, b: Halves, c: Halves) -> Halves {
        both!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn max(self, a: Halves, b: Halves) -> Halves {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: Halves, b: Halves) -> Halves {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn scale_by_power_of_two(self, v: Halves, n: Halves) -> Halves {
        #[inline(always)]
        fn scale(v: __m256, n: __m256) -> __m256 {
            intrinsic!({
                let n = _mm256_cvtps_epi32(n);
                let half = _mm256_srai_epi32::<1>(n);
                let rest = _mm256_sub_epi32(n, half);
                let bias = _mm256_set1_epi32(127);
                let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
                let second = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
                let v = _mm256_mul_ps(v, _mm256_castsi256_ps(first));
                _mm256_mul_ps(v, _mm256_castsi256_ps(second))
            })
        }
        Halves(scale(v.0, n.0), scale(v.1, n.1))
    }

    #[inline(always)]
    fn sum4(self, v: [Halves; 4]) -> [f32; 4] {
        intrinsic!(sum4_halves([
            _mm256_add_ps(v[0].0, v[0].1),
            _mm256_add_ps(v[1].0, v[1].1),
            _mm256_add_ps(v[2].0, v[2].1),
            _mm256_add_ps(v[3].0, v[3].1),
        ]))
    }

    #[inline(always)]
    fn unpack_nibbles(self, packed: &[u8; 32], scale: f32, bias: f32) -> [Halves; 4] {
        /// Byte `N` of every word as `scale * q + bias`. A byte shuffle, rather than a shift, leaves the
        /// ports of the multiply-adds free.
        #[inline(always)]
        fn pick<const N: i32>(bytes: __m256i, (scale, bias): (__m256, __m256)) -> __m256 {
            intrinsic!({
                // The words of a 128-bit lane start at bytes 0, 4, 8 and 12; 0x80 yields zero.
                let first = _mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12);
                let control = _mm256_set1_epi32(0x8080_8000_u32.cast_signed() + N);
                let q = _mm256_shuffle_epi8(bytes, _mm256_add_epi32(first, control));
                _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(q), bias)
            })
        }
        intrinsic!({
            let words = _mm256_loadu_si256(packed.as_ptr().cast());
            let nibble = _mm256_set1_epi8(0xf);
            // Nibbles 0, 2, 4, 6 of each word, and 1, 3, 5, 7, a byte each.
            let even = _mm256_and_si256(words, nibble);
            let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(words), nibble);
            let scale = (_mm256_set1_ps(scale), _mm256_set1_ps(bias));
            [
                Halves(pick::<0>(even, scale), pick::<2>(even, scale)),
                Halves(pick::<0>(odd, scale), pick::<2>(odd, scale)),
                Halves(pick::<1>(even, scale), pick::<3>(even, scale)),
                Halves(pick::<1>(odd, scale), pick::<3>(odd, scale)),
            ]
        })
    }

    #[inline(always)]
    fn unpack_bytes(self, packed: &[u8; 16], scale: Halves, bias: Halves) -> Halves {
        intrinsic!({
            let bytes = _mm_loadu_si128(packed.as_ptr().cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            Halves(
                _mm256_fmadd_ps(scale.0, _mm256_cvtepi32_ps(low), bias.0),
                _mm256_fmadd_ps(scale.1, _mm256_cvtepi32_ps(high), bias.1),
            )
        })
    }

    #[inline(always)]
    fn unpack_stream<const BITS: usize>(
        self,
        packed: &[u8; 16],
        scale: Halves,
        bias: Halves,
    ) -> Halves {
        const { assert!(size_of::<[u8; 64]>() == 64 && size_of::<[i32; LANES]>() == 64) };
        intrinsic!({
            let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(packed.as_ptr().cast()));
            let shuffle: *const __m256i = StreamLayout::<BITS>::SHUFFLE.as_ptr().cast();
            let shift: *const __m256i = StreamLayout::<BITS>::SHIFT.as_ptr().cast();
            let mask = _mm256_set1_epi32(StreamLayout::<BITS>::MASK);
            let low = _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(shuffle));
            let high = _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(shuffle.add(1)));
            let low = _mm256_and_si256(_mm256_srlv_epi32(low, _mm256_loadu_si256(shift)), mask);
            let high =
                _mm256_and_si256(_mm256_srlv_epi32(high, _mm256_loadu_si256(shift.add(1))), mask);
            Halves(
                _mm256_fmadd_ps(scale.0, _mm256_cvtepi32_ps(low), bias.0),
                _mm256_fmadd_ps(scale.1, _mm256_cvtepi32_ps(high), bias.1),
            )
        })
    }

    #[inline(always)]
    fn widen_bf16(self, from: &[u8; 32]) -> Halves {
        intrinsic!({
            let from: *const __m128i = from.as_ptr().cast();
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(1)));
            Halves(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        })
    }

    #[inline(always)]
    fn widen_f16(self, from: &[u8; 32]) -> Halves {
        intrinsic!({
            let from: *const __m128i = from.as_ptr().cast();
            Halves(
                _mm256_cvtph_ps(_mm_loadu_si128(from)),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(1))),
            )
        })
    }

    #[inline(always)]
    fn dot_tile<const X: usize>(self, w: [&[Block]; 4], x: [&[Block]; X]) -> [[Halves; 4]; X] {
        // Each half passes over the rows once per piece, which stays in the first-level cache.
        const PIECE: usize = 64;
        let blocks = w[0].len();
        let zero = intrinsic!(_mm256_setzero_ps());
        let (mut low, mut high) = ([[zero; 4]; X], [[zero; 4]; X]);
        let mut start = 0;
        while start < blocks {
            let piece = start..(start + PIECE).min(blocks);
            let w = [
                &w[0][piece.clone()],
                &w[1][piece.clone()],
                &w[2][piece.clone()],
                &w[3][piece.clone()],
            ];
            let mut x = x;
            for x in &mut x {
                *x = &x[piece.clone()];
            }
            self.dot_half::<0, X>(w, x, &mut low);
            self.dot_half::<1, X>(w, x, &mut high);
            start = piece.end;
        }
        let mut acc = [[Halves(zero, zero); 4]; X];
        for b in 0..X {
            for a in 0..4 {
                acc[b][a] = Halves(low[b][a], high[b][a]);
            }
        }
        acc
    }
}
