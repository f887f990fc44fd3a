//! From one decode step to the next without the host: `kernels/advance.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::sample::Sampler;
use crate::tables::{SpanEntry, Tables};
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    rows: u32,
    steps: u32,
    sampled: u32,
}

/// Tokens that steps have chosen, for the host to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Step `i`'s tokens in row `i mod steps`, u32 `[steps, n]`.
    pub tokens: Tensor,
    /// Number of steps so far, u32 `[1, 1]`; the host sets it to 0.
    pub step: Tensor,
}

/// Makes the tables of a decode step, in which each span has one row, those of the next: tokens are the `chosen` ones,
/// positions grow by one, the state that was written is what is read, and counters of `samplers` go on. `chosen` is added to
/// `kept`. Page tables must have the pages of all steps from the start.
///
/// `chosen`: u32 `[n, 1]`. `samplers`: u32 `[n, 8]`, if tokens are drawn.
///
/// # Panics
/// If a tensor has another shape or type.
#[must_use]
pub fn advance(chosen: Tensor, tables: &Tables, samplers: Option<Tensor>, kept: &Kept) -> Dispatch {
    let rows = chosen.rows;
    let is = |tensor: Tensor, words: u32| {
        let expected = (u64::from(rows) * u64::from(words) * 4, Dtype::U32);
        assert_eq!((tensor.range.len, tensor.dtype), expected, "tables of {rows} rows");
    };
    for column in [chosen, tables.tokens, tables.positions] {
        is(column, 1);
    }
    is(tables.spans, SpanEntry::WORDS);
    kept.tokens.check_width("kept tokens", rows, Dtype::U32);
    assert_eq!((kept.step.range.len, kept.step.dtype), (4, Dtype::U32), "step");
    let dispatch = Dispatch::new(entries::ADVANCE)
        .read(chosen)
        .write(tables.tokens)
        .read_write(tables.positions)
        .read_write(tables.spans);
    let dispatch = match samplers {
        Some(samplers) => {
            is(samplers, Sampler::WORDS);
            dispatch.read_write(samplers)
        }
        None => dispatch.read_write_part(kept.step.range.nothing(), 0, 0),
    };
    let params = Params { rows, steps: kept.tokens.rows, sampled: samplers.is_some().into() };
    dispatch
        .read_write_part(kept.tokens.range, 0, u64::from(rows) * 4)
        .read_write(kept.step)
        .params(&params)
        .grid([1, 1, 1], [256, 1, 1])
}
