//! The Gated DeltaNet recurrence in chunks: `kernels/gated_delta.metal`.

use crate::delta_step::Widths;
use crate::dispatch::Dispatch;
use crate::entries;
use crate::scratch::Scratch;
use crate::state::DeltaSlots;
use crate::tables::{ChunkEntry, Tables};
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;
use calla_model::Shape;
use calla_model::shape::{DELTA_HEAD_DIM, PAGE_TOKENS};
use calla_ops::ops::DeltaTerms;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    chunks: u32,
}

const DIM: u32 = DELTA_HEAD_DIM as u32;
const CHUNK: u32 = PAGE_TOKENS as u32;
/// 8 x 8 tiles of a lower triangular matrix over a chunk's rows.
const TRIANGLE: u32 = (CHUNK / 8) * (CHUNK / 8 + 1) / 2;
/// Threadgroups that share the value columns of a head.
const COLUMN_GROUPS: u32 = DIM / 32;

/// The recurrence over the chunks of `tables.chunks`: `gated_delta` of `calla_ops`, in its chunked form.
///
/// `terms`: as `delta_prep` gives them. `out`: bf16 `[n, value heads * 128]`. States are read from each span's `slot_in`
/// and written to its `slot_out`; there are no checkpoints. What a row gives depends on the state before its chunk and on
/// the chunk's rows up to it; chunks may have any cut into 1 to 64 rows, in order of rows.
///
/// Two dispatches, the second after the first. Scratch: 73.5 KiB a chunk and value head.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn gated_delta(
    shape: &Shape,
    terms: &DeltaTerms<Tensor>,
    slots: &DeltaSlots,
    tables: &Tables,
    scratch: &mut dyn Scratch,
    out: Tensor,
) -> Vec<Dispatch> {
    let widths = Widths::of(shape);
    widths.check_terms(terms, out.rows);
    widths.check_states(slots);
    out.check_width("out", widths.values, Dtype::Bf16);
    tables.chunks.check_width("chunks", ChunkEntry::WORDS, Dtype::U32);

    let (chunks, heads) = (tables.chunks.rows, widths.value_heads);
    let items = chunks * heads;
    let minus_w = scratch.tensor(items, CHUNK * DIM, Dtype::F32);
    let u0 = scratch.tensor(items, CHUNK * DIM, Dtype::F32);
    let attention = scratch.tensor(items, TRIANGLE * 64, Dtype::F32);
    let decays = scratch.tensor(items, 2 * CHUNK, Dtype::F32);

    // Products of 8 x 8 tiles, a multiplication and an addition each, of a whole chunk and head.
    let (rows, keys, triangle) = (u64::from(CHUNK / 8), u64::from(DIM / 8), u64::from(TRIANGLE));
    let tile_flops = |products: u64| u64::from(items) * products * 1024;
    let states = u64::from(tables.spans.rows) * slots.states.row_bytes();
    vec![
        Dispatch::new(entries::GATED_DELTA_CHUNKS)
            .shape(shape)
            .read(terms.q)
            .read(terms.k)
            .read(terms.v)
            .read(terms.beta)
            .read(terms.log_decay)
            .read(tables.chunks)
            .write(minus_w)
            .write(u0)
            .write(attention)
            .write(decays)
            .grid([heads, chunks, 1], [256, 1, 1])
            .flops(tile_flops(2 * triangle * keys + 2 * triangle * keys)),
        Dispatch::new(entries::GATED_DELTA_SCAN)
            .shape(shape)
            .read(terms.q)
            .read(terms.k)
            .read(tables.chunks)
            .read(tables.spans)
            .read(minus_w)
            .read(u0)
            .read(attention)
            .read(decays)
            .read_write_part(slots.states.range, states, states)
            .write(out)
            .params(&Params { chunks })
            .grid([COLUMN_GROUPS, heads, tables.spans.rows], [64, 1, 1])
            .flops(tile_flops(3 * rows * keys * keys + triangle * keys)),
    ]
}
