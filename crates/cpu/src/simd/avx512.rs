//! A vector as one 512-bit register.
//!
//! SAFETY, for every block below: a method has `self`, and [`Avx512`] is made only in [`run`], whose
//! caller vouches for the instructions. Loads and stores go through references to arrays of their size
//! and ask for no alignment.

use super::{Block, Kernel, LANES, Simd, StreamLayout};
use std::arch::x86_64::*;

/// Proof of AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Runs a kernel with the instructions enabled.
///
/// # Safety
/// The machine must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// An intrinsic under the safety argument of this file.
macro_rules! intrinsic {
    ($body:expr) => {
        // SAFETY: see the head of this file.
        unsafe { $body }
    };
}

impl Simd for Avx512 {
    type V = __m512;

    const TILE_ROWS: usize = 6;
    const FEW_ROWS: usize = 8;
    const WIDTH: usize = 4;

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], at: usize) {
        // A prefetch has no effect but on time, whatever the address.
        intrinsic!(_mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()));
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        intrinsic!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, from: &Block) -> __m512 {
        intrinsic!(_mm512_loadu_ps(from.as_ptr()))
    }

    #[inline(always)]
    fn store(self, v: __m512, to: &mut Block) {
        intrinsic!(_mm512_storeu_ps(to.as_mut_ptr(), v));
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsic!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn scale_by_power_of_two(self, v: __m512, n: __m512) -> __m512 {
        intrinsic!({
            let n = _mm512_cvtps_epi32(n);
            let half = _mm512_srai_epi32::<1>(n);
            let rest = _mm512_sub_epi32(n, half);
            let bias = _mm512_set1_epi32(127);
            let first = _mm512_slli_epi32::<23>(_mm512_add_epi32(half, bias));
            let second = _mm512_slli_epi32::<23>(_mm512_add_epi32(rest, bias));
            let v = _mm512_mul_ps(v, _mm512_castsi512_ps(first));
            _mm512_mul_ps(v, _mm512_castsi512_ps(second))
        })
    }

    #[inline(always)]
    fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
        intrinsic!({
            let fold = [
                _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps::<1>(v[0])),
                _mm256_add_ps(_mm512_castps512_ps256(v[1]), _mm512_extractf32x8_ps::<1>(v[1])),
                _mm256_add_ps(_mm512_castps512_ps256(v[2]), _mm512_extractf32x8_ps::<1>(v[2])),
                _mm256_add_ps(_mm512_castps512_ps256(v[3]), _mm512_extractf32x8_ps::<1>(v[3])),
            ];
            super::avx2::sum4_halves(fold)
        })
    }

    #[inline(always)]
    fn unpack_nibbles(self, packed: &[u8; 32], scale: f32, bias: f32) -> [__m512; 4] {
        intrinsic!({
            // All sixteen values that a nibble can stand for; the permutation looks at 4 bits only.
            let q = _mm512_setr_ps(
                0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.,
            );
            let table = _mm512_fmadd_ps(_mm512_set1_ps(scale), q, _mm512_set1_ps(bias));
            let words = _mm512_broadcast_i64x4(_mm256_loadu_si256(packed.as_ptr().cast()));
            let high = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
            let words = _mm512_srlv_epi32(words, high);
            [
                _mm512_permutexvar_ps(words, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<8>(words), table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<12>(words), table),
            ]
        })
    }

    #[inline(always)]
    fn unpack_bytes(self, packed: &[u8; 16], scale: __m512, bias: __m512) -> __m512 {
        intrinsic!({
            let q = _mm512_cvtepu8_epi32(_mm_loadu_si128(packed.as_ptr().cast()));
            _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(q), bias)
        })
    }

    #[inline(always)]
    fn unpack_stream<const BITS: usize>(
        self,
        packed: &[u8; 16],
        scale: __m512,
        bias: __m512,
    ) -> __m512 {
        const { assert!(size_of::<[u8; 64]>() == 64 && size_of::<[i32; LANES]>() == 64) };
        intrinsic!({
            let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(packed.as_ptr().cast()));
            let shuffle = _mm512_loadu_si512(StreamLayout::<BITS>::SHUFFLE.as_ptr().cast());
            let shift = _mm512_loadu_si512(StreamLayout::<BITS>::SHIFT.as_ptr().cast());
            let q = _mm512_srlv_epi32(_mm512_shuffle_epi8(bytes, shuffle), shift);
            let q = _mm512_and_si512(q, _mm512_set1_epi32(StreamLayout::<BITS>::MASK));
            _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(q), bias)
        })
    }

    #[inline(always)]
    fn widen_bf16(self, from: &[u8; 32]) -> __m512 {
        intrinsic!({
            let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
        })
    }

    #[inline(always)]
    fn widen_f16(self, from: &[u8; 32]) -> __m512 {
        intrinsic!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
}
