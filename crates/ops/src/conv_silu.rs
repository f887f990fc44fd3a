//! Causal depthwise convolution over the last four tokens, then SiLU (Gated DeltaNet, before the split).
//!
//! `y_t[c] = silu(sum over j of taps[c, j] * u_{t-3+j}[c])`; the last tap meets the newest token and `u`
//! before the start of a sequence is 0. The window of a sequence is its last three `u` rows, before the
//! convolution.

use crate::swiglu::silu;
use crate::tensor::Rows;
use calla_model::shape::CONV_TAPS;
use std::ops::Range;

/// Convolves `rows` of one sequence into `y`; `window` `[3, channels]`, oldest first, moves on.
pub fn reference(u: &Rows, taps: &[f32], rows: Range<usize>, window: &mut [f32], y: &mut Rows) {
    let channels = u.cols();
    for row in rows {
        let u = u.row(row);
        for (c, y) in y.row_mut(row).iter_mut().enumerate() {
            let taps = &taps[c * CONV_TAPS..][..CONV_TAPS];
            let past = (0..CONV_TAPS - 1).map(|j| taps[j] * window[j * channels + c]);
            *y = silu(past.sum::<f32>() + taps[CONV_TAPS - 1] * u[c]);
        }
        window.copy_within(channels.., 0);
        window[(CONV_TAPS - 2) * channels..].copy_from_slice(u);
    }
}
