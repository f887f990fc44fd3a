//! Vectors as arrays, which compilers turn into whatever the target has.

use super::{Block, LANES, Simd};
use half::{bf16, f16};

/// Needs nothing of the machine.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// `a * b + c`: fused where that is an instruction. Elsewhere the library's `fma` would be a slow call.
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Lane by lane.
macro_rules! lanes {
    (|$i:ident| $value:expr) => {{
        let mut v = [0.0; LANES];
        for $i in 0..LANES {
            v[$i] = $value;
        }
        v
    }};
}

impl Simd for Portable {
    type V = Block;

    const TILE_ROWS: usize = 2;
    const FEW_ROWS: usize = 0;
    const WIDTH: usize = 1;

    #[inline(always)]
    fn prefetch(self, _: &[u8], _: usize) {}

    #[inline(always)]
    fn splat(self, x: f32) -> Block {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &Block) -> Block {
        *from
    }

    #[inline(always)]
    fn store(self, v: Block, to: &mut Block) {
        *to = v;
    }

    #[inline(always)]
    fn add(self, a: Block, b: Block) -> Block {
        lanes!(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Block, b: Block) -> Block {
        lanes!(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Block, b: Block) -> Block {
        lanes!(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Block, b: Block) -> Block {
        lanes!(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: Block, b: Block, c: Block) -> Block {
        lanes!(|i| mul_add(a[i], b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Block, b: Block) -> Block {
        lanes!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: Block, b: Block) -> Block {
        lanes!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn scale_by_power_of_two(self, v: Block, n: Block) -> Block {
        // In two steps, each a normal number, as one may be out of range.
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
        lanes!(|i| {
            let n = n[i] as i32;
            v[i] * power(n >> 1) * power(n - (n >> 1))
        })
    }

    #[inline(always)]
    fn sum4(self, v: [Block; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        for (sum, v) in sums.iter_mut().zip(&v) {
            let mut s = [0.0; 8];
            for i in 0..8 {
                s[i] = v[i] + v[i + 8];
            }
            *sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
        }
        sums
    }

    #[inline(always)]
    fn unpack_nibbles(self, packed: &[u8; 32], scale: f32, bias: f32) -> [Block; 4] {
        let words = packed.as_chunks::<4>().0;
        let mut values = [[0.0; LANES]; 4];
        for (j, values) in values.iter_mut().enumerate() {
            for (lane, value) in values.iter_mut().enumerate() {
                let word = u32::from_le_bytes(words[lane % 8]);
                let q = word >> (4 * j + 16 * (lane / 8)) & 0xf;
                *value = mul_add(scale, q as f32, bias);
            }
        }
        values
    }

    #[inline(always)]
    fn unpack_bytes(self, packed: &[u8; 16], scale: Block, bias: Block) -> Block {
        lanes!(|i| mul_add(scale[i], f32::from(packed[i]), bias[i]))
    }

    #[inline(always)]
    fn unpack_stream<const BITS: usize>(
        self,
        packed: &[u8; 16],
        scale: Block,
        bias: Block,
    ) -> Block {
        let stream = u128::from_le_bytes(*packed);
        lanes!(|i| {
            let q = (stream >> (BITS * i)) as u32 & ((1 << BITS) - 1);
            mul_add(scale[i], q as f32, bias[i])
        })
    }

    #[inline(always)]
    fn widen_bf16(self, from: &[u8; 32]) -> Block {
        lanes!(|i| bf16::from_le_bytes([from[2 * i], from[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    fn widen_f16(self, from: &[u8; 32]) -> Block {
        lanes!(|i| f16::from_le_bytes([from[2 * i], from[2 * i + 1]]).to_f32())
    }
}
