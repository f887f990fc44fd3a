//! Products of up to eight rows with 4- and 8-bit matrices, of chosen experts too: `kernels/qmv.cuh` says how.

use super::index::{EXPERT_HIDDEN, HIDDEN, SHARED_HIDDEN};
use super::{Launch, Twin, constant, twin};
use calla_gpu::Dispatch;

/// Function constants, as `kernels/qmv.metal` of `calla-gpu` numbers them.
const BITS: u32 = 16;
const IN_DIM: u32 = 17;
const OTHER_BITS: u32 = 18;

const WARPS: u32 = 8;
/// Weights of a group, and rows of a tile.
const GROUP: u32 = 64;
const TILE_ROWS: u32 = 16;
/// Values of bf16 that an input is split into.
const PARTS: u32 = 3;
/// Words of weights that a thread may hold.
const WORDS_MAX: u32 = 64;
/// Rows of an expert that a block of `expert_qmv_grouped_up` takes at a time, and groups of them that a warp holds.
const GROUPED_ROWS: u32 = 2;
const GROUPED_CHUNK: u32 = 4;
/// Parts of an expert's outputs that a block takes one after the other.
const PASSES: u32 = 4;
/// Values of a matrix row that a warp of `expert_qmv_down` takes at a time.
const SPAN: u32 = 512;

pub(crate) const QMV: Twin = twin!("qmv.cu", ["qmv_1", "qmv_2", "qmv_4", "qmv_8"], |dispatch| {
    let rows = rows(dispatch)?;
    let most_tiles = if rows == 1 { 1 } else { 2 };
    let block = Block::new(constant(dispatch, IN_DIM)?, constant(dispatch, BITS)?, most_tiles)?;
    let [tiles, groups, _] = dispatch.grid;
    Some(block.launch([tiles.div_ceil(block.tiles), groups, 1], rows))
});

pub(crate) const QMV_SWIGLU: Twin = twin!(
    "qmv_swiglu.cu",
    ["qmv_swiglu_1", "qmv_swiglu_2", "qmv_swiglu_4", "qmv_swiglu_8"],
    |dispatch| {
        let block = Block::new(constant(dispatch, IN_DIM)?, most_bits(dispatch)?, 1)?;
        Some(block.launch(dispatch.grid, rows(dispatch)?))
    }
);

pub(crate) const EXPERT_QMV_UP: Twin = twin!("expert_qmv_up.cu", ["expert_qmv_up"], |dispatch| {
    let block = Block::new(constant(dispatch, HIDDEN)?, most_bits(dispatch)?, 2)?;
    let columns = block.tiles * TILE_ROWS / 2;
    let [_, ranks, rows] = dispatch.grid;
    Some(block.launch([constant(dispatch, EXPERT_HIDDEN)?.div_ceil(columns), ranks, rows], 1))
});

pub(crate) const EXPERT_QMV_DOWN: Twin =
    twin!("expert_qmv_down.cu", ["expert_qmv_down"], |dispatch| {
        let width = constant(dispatch, EXPERT_HIDDEN)?;
        // A thread holds a span of eight matrix rows.
        (width <= SPAN && constant(dispatch, SHARED_HIDDEN)? == width).then(|| Launch::of(dispatch))
    });

pub(crate) const EXPERT_QMV_GROUPED_UP: Twin =
    twin!("expert_qmv_grouped_up.cu", ["expert_qmv_grouped_up"], |dispatch| {
        let block = Block::new(constant(dispatch, HIDDEN)?, most_bits(dispatch)?, 2)?;
        let columns = block.tiles * TILE_ROWS / 2;
        let passes = constant(dispatch, EXPERT_HIDDEN)?.div_ceil(columns);
        let grid = [passes.div_ceil(PASSES), dispatch.grid[1], 1];
        Some(block.launch_chunks(grid, GROUPED_ROWS, GROUPED_CHUNK))
    });

pub(crate) const EXPERT_QMV_GROUPED_DOWN: Twin =
    twin!("expert_qmv_grouped_down.cu", ["expert_qmv_grouped_down"], |dispatch| {
        let width = constant(dispatch, EXPERT_HIDDEN)?;
        let [tiles, experts, _] = dispatch.grid;
        let grid = [tiles.div_ceil(PASSES), experts, 1];
        // A thread holds a span of eight matrix rows.
        let fits = width <= SPAN && constant(dispatch, SHARED_HIDDEN)? == width;
        fits.then(|| Launch { grid, ..Launch::of(dispatch) })
    });

fn most_bits(dispatch: &Dispatch) -> Option<u32> {
    Some(constant(dispatch, BITS)?.max(constant(dispatch, OTHER_BITS)?))
}

/// Rows that the entry point takes, as its name says.
fn rows(dispatch: &Dispatch) -> Option<u32> {
    dispatch.entry.rsplit('_').next()?.parse().ok()
}

/// What a block computes.
struct Block {
    tiles: u32,
}

impl Block {
    /// Of at most `most_tiles` tiles, unless a thread would have to hold too much of the input's width.
    fn new(width: u32, bits: u32, most_tiles: u32) -> Option<Self> {
        let slice = (width / GROUP).div_ceil(WARPS).next_multiple_of(2);
        let words = slice * bits;
        let tiles = if words <= 16 { most_tiles } else { 1 };
        (words <= WORDS_MAX).then_some(Self { tiles })
    }

    /// With the input's columns of some groups, sums, and sums of squares of each warp in shared memory.
    fn launch(&self, grid: [u32; 3], rows: u32) -> Launch {
        self.launch_chunks(grid, rows, if rows == 1 { 4 } else { 2 })
    }

    /// The same where a warp holds so many `groups` of the input at a time.
    fn launch_chunks(&self, grid: [u32; 3], rows: u32, groups: u32) -> Launch {
        let columns = PARTS * rows;
        let input = groups * columns * GROUP * 2;
        let sums = (self.tiles * TILE_ROWS * columns + rows) * 4;
        Launch { grid, threads: [32 * WARPS, 1, 1], shared: WARPS * (input + sums) }
    }
}
