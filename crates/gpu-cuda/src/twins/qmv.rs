//! Products of one row with 4- and 8-bit matrices, of chosen experts too: `kernels/qmv.cuh` says how.

use super::index::{EXPERT_HIDDEN, HIDDEN, SHARED_HIDDEN};
use super::{Launch, Twin, constant, twin};
use calla_gpu::Dispatch;

/// Function constants, as `kernels/qmv.metal` of `calla-gpu` numbers them.
const BITS: u32 = 16;
const IN_DIM: u32 = 17;
const OTHER_BITS: u32 = 18;

/// Threads of a block: a warp for each two outputs.
const THREADS: u32 = 256;
/// Values of a matrix row that a warp takes at a time.
const SPAN: u32 = 512;
/// Words of a matrix row that a thread may hold.
const WORDS_MAX: u32 = 16;

pub(crate) const QMV: Twin = twin!("qmv.cu", ["qmv_1"], |dispatch| {
    launch(dispatch.grid, constant(dispatch, IN_DIM)?, constant(dispatch, BITS)?)
});

pub(crate) const QMV_SWIGLU: Twin = twin!("qmv_swiglu.cu", ["qmv_swiglu_1"], |dispatch| launch(
    dispatch.grid,
    constant(dispatch, IN_DIM)?,
    most_bits(dispatch)?
));

pub(crate) const EXPERT_QMV_UP: Twin = twin!("expert_qmv_up.cu", ["expert_qmv_up"], |dispatch| {
    let tiles = constant(dispatch, EXPERT_HIDDEN)?.div_ceil(THREADS / 32);
    let [_, ranks, rows] = dispatch.grid;
    launch([tiles, ranks, rows], constant(dispatch, HIDDEN)?, most_bits(dispatch)?)
});

pub(crate) const EXPERT_QMV_DOWN: Twin =
    twin!("expert_qmv_down.cu", ["expert_qmv_down"], |dispatch| {
        let width = constant(dispatch, EXPERT_HIDDEN)?;
        // A thread holds a span of eight matrix rows.
        (width <= SPAN && constant(dispatch, SHARED_HIDDEN)? == width).then(|| Launch::of(dispatch))
    });

fn most_bits(dispatch: &Dispatch) -> Option<u32> {
    Some(constant(dispatch, BITS)?.max(constant(dispatch, OTHER_BITS)?))
}

/// Unless a thread would have to hold too much of the input's width.
fn launch(grid: [u32; 3], width: u32, bits: u32) -> Option<Launch> {
    let words = width.div_ceil(SPAN) * (bits / 2);
    (words <= WORDS_MAX).then_some(Launch { grid, threads: [THREADS, 1, 1], shared: 0 })
}
