//! Causal convolution over the last four rows of each channel, then SiLU.

use crate::simd::{AvailableIsa, Kernel, Simd, math};
use crate::threads::Threads;
use calla_model::shape::CONV_TAPS;
use calla_ops::cache::DeltaSlots;
use calla_ops::{Batch, Rows, Span};

struct ConvSilu<'a> {
    /// The row and the three before it, oldest first.
    u: [&'a [f32]; CONV_TAPS],
    taps: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for ConvSilu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let channels = self.y.len();
        let taps = &self.taps.as_chunks::<CONV_TAPS>().0[..channels];
        let u = self.u.map(|u| &u[..channels]);
        for c in 0..channels {
            let taps = taps[c];
            let past = taps[0] * u[0][c] + taps[1] * u[1][c] + taps[2] * u[2][c];
            self.y[c] = past + taps[3] * u[3][c];
        }
        math::map_blocks!(self.y, self.u[3], |y, _u, simd| math::silu(simd, y));
    }
}

/// Convolves every span; the windows of their slots move on. `taps`: `[channels, 4]`.
pub(crate) fn conv_silu(
    isa: AvailableIsa,
    threads: &Threads,
    qkv: &Rows,
    taps: &[f32],
    slots: (&mut DeltaSlots, usize),
    batch: &Batch,
) -> Rows {
    let channels = qkv.cols();
    assert_eq!(taps.len(), channels * CONV_TAPS, "taps of {channels} channels");
    let (state, slots) = slots;
    let mut y = Rows::zeros(qkv.rows(), channels);
    for span in batch.spans() {
        let window = state.slot_window(slots, span.slot);
        let out = &mut y.as_mut_slice()[span.rows.start * channels..span.rows.end * channels];
        let before = Window { qkv, span, window };
        threads.for_each_chunk(out, channels, 2 * span.rows.len() * channels, |row, y| {
            let u =
                [before.row(row, 3), before.row(row, 2), before.row(row, 1), before.row(row, 0)];
            isa.run(ConvSilu { u, taps, y });
        });
        advance(qkv, span, window);
    }
    y
}

/// Rows of a span, with those before it.
struct Window<'a> {
    qkv: &'a Rows,
    span: &'a Span,
    window: &'a [f32],
}

impl<'a> Window<'a> {
    /// The row `back` before row `row` of the span.
    fn row(&self, row: usize, back: usize) -> &'a [f32] {
        if row >= back {
            self.qkv.row(self.span.rows.start + row - back)
        } else {
            let channels = self.qkv.cols();
            &self.window[(CONV_TAPS - 1 + row - back) * channels..][..channels]
        }
    }
}

/// Makes the window the last three rows of the sequence.
fn advance(qkv: &Rows, span: &Span, window: &mut [f32]) {
    let channels = qkv.cols();
    let kept = (CONV_TAPS - 1).saturating_sub(span.rows.len());
    window.copy_within((CONV_TAPS - 1 - kept) * channels.., 0);
    let new = CONV_TAPS - 1 - kept;
    for (i, row) in (span.rows.end - new..span.rows.end).enumerate() {
        window[(kept + i) * channels..][..channels].copy_from_slice(qkv.row(row));
    }
}
