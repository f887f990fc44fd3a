//! SwiGLU: `silu(gate) * up`.

use crate::simd::{AvailableIsa, Kernel, Simd, math};
use crate::threads::Threads;
use calla_ops::Rows;

struct SwiGlu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        math::map_blocks!(self.gate, self.up, |gate, up, simd| simd
            .mul(math::silu(simd, gate), up));
    }
}

/// Turns `gate` into `silu(gate) * up`.
pub(crate) fn swiglu(isa: AvailableIsa, threads: &Threads, gate: &mut Rows, up: &Rows) {
    assert_eq!((gate.rows(), gate.cols()), (up.rows(), up.cols()), "gate and up");
    let (cols, values) = (gate.cols(), gate.as_slice().len());
    threads.for_each_chunk(gate.as_mut_slice(), cols, 2 * values, |row, gate| {
        isa.run(SwiGlu { gate, up: up.row(row) });
    });
}
