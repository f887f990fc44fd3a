//! Routed and shared experts: rows grouped by expert, every weight tile read once for all its rows.

use crate::simd::{AvailableIsa, Kernel, Simd};
use crate::threads::Threads;
use calla_ops::Rows;
use calla_ops::route::Routing;
use calla_ops::swiglu::sigmoid;

struct Combine<'a> {
    x: &'a mut [f32],
    /// Outputs of the row's experts `[top_k, hidden]`.
    routed: &'a [f32],
    weights: &'a [f32],
    shared: &'a [f32],
    /// Gate of the shared expert, after its sigmoid.
    gate: f32,
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let hidden = self.x.len();
        let whole = hidden - hidden % crate::simd::LANES;
        let gate = simd.splat(self.gate);
        for at in (0..whole).step_by(crate::simd::LANES) {
            let block = |from: &'_ [f32], row: usize| -> crate::simd::Block {
                *from[row * hidden + at..].first_chunk().expect("a whole block")
            };
            let mut sum = simd.splat(0.0);
            for (rank, &weight) in self.weights.iter().enumerate() {
                let y = block(self.routed, rank);
                sum = simd.mul_add(simd.splat(weight), simd.load(&y), sum);
            }
            let sum = simd.mul_add(gate, simd.load(&block(self.shared, 0)), sum);
            let x: &mut crate::simd::Block = self.x[at..].first_chunk_mut().expect("a whole block");
            simd.store(simd.add(simd.load(x), sum), x);
        }
        for i in whole..hidden {
            let mut sum = 0.0_f32;
            for (rank, weight) in self.weights.iter().enumerate() {
                sum = weight.mul_add(self.routed[rank * hidden + i], sum);
            }
            self.x[i] += self.gate.mul_add(self.shared[i], sum);
        }
    }
}

/// `x[row] += sum of weight * routed[row, rank] + sigmoid(shared_gate[row]) * shared[row]`, ranks in order.
pub(crate) fn combine(
    isa: AvailableIsa,
    threads: &Threads,
    x: &mut Rows,
    routed: &Rows,
    routing: &Routing,
    shared: (&Rows, &Rows),
) {
    let (hidden, top_k) = (x.cols(), routing.top_k);
    let (shared, shared_gate) = shared;
    assert_eq!((routed.cols(), shared.cols()), (hidden, hidden), "widths of the experts' outputs");
    let nanoseconds = routed.as_slice().len() / 2;
    threads.for_each_chunk(x.as_mut_slice(), hidden, nanoseconds, |row, x| {
        isa.run(Combine {
            x,
            routed: &routed.as_slice()[row * top_k * hidden..][..top_k * hidden],
            weights: &routing.weights[row * top_k..][..top_k],
            shared: shared.row(row),
            gate: sigmoid(shared_gate.row(row)[0]),
        });
    });
}
