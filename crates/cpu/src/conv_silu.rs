//! Causal convolution over the last four rows of each channel, then SiLU.

use crate::simd::{AvailableIsa, Kernel, Simd, math};
use crate::threads::Threads;
use calla_model::shape::CONV_TAPS;
use calla_ops::cache::{DeltaSlots, Entries};
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
    state: &mut DeltaSlots,
    batch: &Batch,
) -> Rows {
    let channels = qkv.cols();
    assert_eq!(taps.len(), channels * CONV_TAPS, "taps of {channels} channels");
    let mut y = Rows::zeros(qkv.rows(), channels);
    for span in batch.spans() {
        let window = state.windows.entry(span.slot);
        let out = &mut y.as_mut_slice()[span.rows.start * channels..span.rows.end * channels];
        let before = Window { qkv, span, window };
        threads.for_each_chunk(out, channels, 2 * span.rows.len() * channels, |row, y| {
            let u =
                [before.row(row, 3), before.row(row, 2), before.row(row, 1), before.row(row, 0)];
            isa.run(ConvSilu { u, taps, y });
        });
        for (i, &checkpoint) in span.checkpoints.iter().enumerate() {
            advance(qkv, span, i + 1, &mut state.windows, checkpoint);
        }
        advance(qkv, span, span.rows.len(), &mut state.windows, span.slot);
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

/// Makes the window of slot `to` the last three rows of the sequence after the first `count` of the span.
fn advance(qkv: &Rows, span: &Span, count: usize, windows: &mut Entries, to: usize) {
    let channels = qkv.cols();
    let (from, into) = (windows.entry_start(span.slot), windows.entry_start(to));
    for i in 0..CONV_TAPS - 1 {
        let into = into + i * channels;
        // Of the window followed by the span's rows, it is this one.
        let row = count + i;
        if row < CONV_TAPS - 1 {
            let from = from + row * channels;
            windows.copy_within(from..from + channels, into);
        } else {
            let row = span.rows.start + row - (CONV_TAPS - 1);
            windows[into..into + channels].copy_from_slice(qkv.row(row));
        }
    }
}
