//! Products of many rows with 4- and 8-bit matrices, on tensor cores: `kernels/qmm.cuh` says how.

use super::index::{EXPERT_HIDDEN, HIDDEN};
use super::{Launch, Twin, constant, twin, word};
use calla_gpu::Dispatch;

/// Rows of activations in a tile, and of weights.
const TILE_ROWS: u32 = 64;
const TILE_COLUMNS: u32 = 128;
const THREADS: u32 = 128;
/// Groups along the input that a block holds at a time, and weights of a group.
const STAGES: u32 = 4;
const GROUP: u32 = 64;

/// Function constants, as `kernels/qmm.h` of `calla-gpu` numbers them.
const BITS: u32 = 16;
const OTHER_BITS: u32 = 18;

pub(crate) const QMM: Twin = twin!("qmm.cu", ["qmm_r32", "qmm_r64"], |dispatch| {
    let rows = word(dispatch, 0)?;
    // Words 1 to 4: columns of each product, none of those that are not there.
    let tiles = (1..=4).map(|product| Some(word(dispatch, product)?.div_ceil(TILE_COLUMNS)));
    launch(dispatch, [rows.div_ceil(TILE_ROWS), tiles.sum::<Option<u32>>()?])
});

pub(crate) const QMM_SWIGLU: Twin =
    twin!("qmm_swiglu.cu", ["qmm_swiglu_r32", "qmm_swiglu_r64"], |dispatch| {
        let (rows, columns) = (word(dispatch, 0)?, word(dispatch, 1)?);
        launch(dispatch, [rows.div_ceil(TILE_ROWS), columns.div_ceil(TILE_COLUMNS / 2)])
    });

pub(crate) const EXPERT_QMM_UP: Twin =
    twin!("expert_qmm_up.cu", ["expert_qmm_up_r32", "expert_qmm_up_r64"], |dispatch| {
        let columns = constant(dispatch, EXPERT_HIDDEN)?;
        launch(dispatch, [columns.div_ceil(TILE_COLUMNS / 2), dispatch.grid[1]])
    });

pub(crate) const EXPERT_QMM_DOWN: Twin =
    twin!("expert_qmm_down.cu", ["expert_qmm_down_r32", "expert_qmm_down_r64"], |dispatch| {
        let columns = constant(dispatch, HIDDEN)?;
        launch(dispatch, [columns.div_ceil(TILE_COLUMNS), dispatch.grid[1]])
    });

/// A block for each tile, with the activations and weights of some groups, and two rows of sums.
fn launch(dispatch: &Dispatch, [x, y]: [u32; 2]) -> Option<Launch> {
    let bits = constant(dispatch, BITS)?.max(constant(dispatch, OTHER_BITS)?);
    let stage = TILE_ROWS * GROUP * 2 + TILE_COLUMNS * GROUP * bits / 8;
    let sums = 2 * TILE_ROWS * 4;
    Some(Launch { grid: [x, y, 1], threads: [THREADS, 1, 1], shared: STAGES * stage + sums })
}
