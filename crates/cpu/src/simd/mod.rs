//! Sixteen lanes of f32 on every instruction set, with one rounding behaviour.
//!
//! Kernels are written once, over [`Simd`], in safe code. The vector has sixteen lanes everywhere (two
//! registers on AVX2, one on AVX-512), every method rounds the same way everywhere, and reductions run in
//! one fixed tree; so AVX2, AVX-512 and the portable form on a machine with hardware fused multiply-add
//! give the same bits. Only portable code on an x86 without FMA rounds products apart.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod math;
pub(crate) mod portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen consecutive values in memory.
pub(crate) type Block = [f32; LANES];

/// Vector operations of one instruction set.
///
/// A value of an implementing type proves that this machine has the instructions: those with a
/// requirement are made only by [`Isa::run`], after detection.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen f32.
    type V: Copy;

    /// Activation rows of the register tile of [`Self::dot_tile`].
    const TILE_ROWS: usize;
    /// Most activation rows, up to 8, that are multiplied while the weights unpack in registers.
    const FEW_ROWS: usize;
    /// Vectors of one row that a kernel with two accumulators per vector may keep in registers.
    const WIDTH: usize;

    /// Asks for the cache line of byte `at` of `bytes`, which may lie beyond them.
    fn prefetch(self, bytes: &[u8], at: usize);

    fn splat(self, x: f32) -> Self::V;
    fn load(self, from: &Block) -> Self::V;
    fn store(self, v: Self::V, to: &mut Block);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the machine can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`, so a NaN in `b` stays.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`, so a NaN in `b` stays.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `v * 2^n` for integral `n` in -252..=254, overflowing to infinity and underflowing gradually.
    fn scale_by_power_of_two(self, v: Self::V, n: Self::V) -> Self::V;
    /// The sums of four vectors, each in the tree `s[i] = v[i] + v[i + 8]`,
    /// `((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))`.
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];

    /// 64 values of 4 bits in *nibble order*: lane `8 h + i` of vector j is value `8 i + 4 h + j`, as
    /// `scale * q + bias`. Nibble order is what shifts of whole 32-bit words yield.
    fn unpack_nibbles(self, packed: &[u8; 32], scale: f32, bias: f32) -> [Self::V; 4];
    /// 16 bytes as `scale * q + bias`.
    fn unpack_bytes(self, packed: &[u8; 16], scale: Self::V, bias: Self::V) -> Self::V;
    /// The first 16 values of a little-endian stream of `BITS`-bit integers as `scale * q + bias`.
    fn unpack_stream<const BITS: usize>(
        self,
        packed: &[u8; 16],
        scale: Self::V,
        bias: Self::V,
    ) -> Self::V;
    /// 16 little-endian bf16 values.
    fn widen_bf16(self, from: &[u8; 32]) -> Self::V;
    /// 16 little-endian IEEE half values.
    fn widen_f16(self, from: &[u8; 32]) -> Self::V;

    /// Sum of one vector, in the tree of [`Self::sum4`].
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        self.sum4([v; 4])[0]
    }

    /// Products of four weight rows with `X` activation rows, unsummed: per pair and lane l, the chain of
    /// `acc = w[i][l] * x[i][l] + acc` over blocks i in order.
    ///
    /// All rows must have the length of `w[0]`; shorter ones panic.
    #[inline(always)]
    fn dot_tile<const X: usize>(self, w: [&[Block]; 4], x: [&[Block]; X]) -> [[Self::V; 4]; X] {
        let blocks = w[0].len();
        let mut acc = [[self.splat(0.0); 4]; X];
        let w = [w[0], &w[1][..blocks], &w[2][..blocks], &w[3][..blocks]];
        let mut x = x;
        for x in &mut x {
            *x = &x[..blocks];
        }
        for i in 0..blocks {
            let w = [
                self.load(&w[0][i]),
                self.load(&w[1][i]),
                self.load(&w[2][i]),
                self.load(&w[3][i]),
            ];
            for b in 0..X {
                let x = self.load(&x[b][i]);
                for a in 0..4 {
                    acc[b][a] = self.mul_add(w[a], x, acc[b][a]);
                }
            }
        }
        acc
    }
}

/// A computation over any instruction set. `run` must be `#[inline(always)]`, and so must everything in
/// it that handles vectors: only then is it compiled with the instructions enabled.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// Runs it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set that kernels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What every machine of the target has.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL besides.
    Avx512,
}

impl Isa {
    /// The best that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }

    /// All that this machine has, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|i| i.is_available())
            .collect()
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            match self {
                Self::Portable => true,
                Self::Avx2 => avx2,
                Self::Avx512 => {
                    avx2 && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }
}

/// An instruction set that was found on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AvailableIsa(Isa);

impl AvailableIsa {
    /// `isa`, if this machine has it.
    pub(crate) fn new(isa: Isa) -> Option<Self> {
        isa.is_available().then_some(Self(isa))
    }

    /// Which it is.
    pub(crate) fn get(self) -> Isa {
        self.0
    }

    /// Runs a kernel on it.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Isa::Portable => kernel.run(portable::Portable),
            // SAFETY: `new` has found the instructions on this machine.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512::run(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => unreachable!("never available on this target"),
        }
    }
}

/// Where the 16 first values of a `BITS`-bit stream lie.
#[cfg(target_arch = "x86_64")]
pub(crate) struct StreamLayout<const BITS: usize>;

#[cfg(target_arch = "x86_64")]
impl<const BITS: usize> StreamLayout<BITS> {
    /// Byte shuffle that brings the two bytes around value i into 32-bit lane i. 0x80 yields zero.
    pub(crate) const SHUFFLE: [u8; 64] = {
        let mut shuffle = [0x80; 64];
        let mut i = 0;
        while i < LANES {
            let byte = (BITS * i / 8) as u8;
            shuffle[4 * i] = byte;
            shuffle[4 * i + 1] = byte + 1;
            i += 1;
        }
        shuffle
    };
    /// How far value i lies above bit 0 of those bytes.
    pub(crate) const SHIFT: [i32; LANES] = {
        let mut shift = [0; LANES];
        let mut i = 0;
        while i < LANES {
            shift[i] = (BITS * i % 8) as i32;
            i += 1;
        }
        shift
    };
    /// Ones in the bits of a value. For up to 6 bits, byte 12 at most is touched.
    pub(crate) const MASK: i32 = {
        assert!(BITS <= 6, "the shuffle reads 16 bytes");
        (1 << BITS) - 1
    };
}
