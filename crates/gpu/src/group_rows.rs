//! Rows sorted by expert: `kernels/group_rows.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::limits::EXPERTS_MAX;
use crate::routing::{Grouped, Routing};
use crate::scratch::Scratch;
use crate::tensor::Dtype;
use bytemuck::NoUninit;
use calla_model::Shape;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    pairs: u32,
    chunks: u32,
    block_rows: u32,
    max_blocks: u32,
}

const THREADS: [u32; 3] = [256, 1, 1];
/// Pairs of a threadgroup.
const CHUNK: u32 = 1024;

/// Sorts the pairs of `routing` by expert, then by pair, and cuts each expert's into blocks: `Routing::pairs_of` of
/// `calla_ops` for all experts at once.
///
/// One dispatch for up to 1024 pairs, else three that follow one another. Scratch: `experts` integers for each 1024
/// pairs.
///
/// # Panics
/// If a tensor has another shape or type, or there is no row.
#[must_use]
pub fn group_rows(
    shape: &Shape,
    routing: &Routing,
    grouped: &Grouped,
    scratch: &mut dyn Scratch,
) -> Vec<Dispatch> {
    routing.check(shape, routing.rows());
    let pairs = routing.pairs();
    assert!(pairs > 0, "rows");
    grouped.check(shape, pairs);
    assert!(shape.experts <= EXPERTS_MAX, "{} experts", shape.experts);
    let chunks = pairs.div_ceil(CHUNK);
    let params =
        Params { pairs, chunks, block_rows: grouped.block_rows, max_blocks: grouped.blocks.rows };
    let outputs = |dispatch: Dispatch| {
        dispatch
            .write(grouped.pairs)
            .write(grouped.offsets)
            .write(grouped.blocks)
            .write(grouped.block_count)
            .params(&params)
            .grid([chunks, 1, 1], THREADS)
    };
    if chunks == 1 {
        return vec![outputs(
            Dispatch::new(entries::GROUP_ROWS_ONCE).shape(shape).read(routing.experts),
        )];
    }
    let experts = grouped.offsets.cols - 1;
    let counts = scratch.tensor(experts, chunks, Dtype::U32);
    let totals = scratch.tensor(1, experts, Dtype::U32);
    vec![
        Dispatch::new(entries::GROUP_ROWS_COUNT)
            .shape(shape)
            .read(routing.experts)
            .write(counts)
            .params(&params)
            .grid([chunks, 1, 1], THREADS),
        Dispatch::new(entries::GROUP_ROWS_SCAN)
            .shape(shape)
            .read_write(counts)
            .write(totals)
            .params(&params)
            .grid([experts.div_ceil(8), 1, 1], THREADS),
        outputs(
            Dispatch::new(entries::GROUP_ROWS_PLACE)
                .shape(shape)
                .read(routing.experts)
                .read(counts)
                .read(totals),
        ),
    ]
}
