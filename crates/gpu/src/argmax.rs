//! The most likely token of each row: `kernels/argmax.metal`.

use crate::dispatch::Dispatch;
use crate::scratch::Scratch;
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;

/// Values of a block.
const BLOCK: u32 = 4096;
/// Threads of a threadgroup.
const THREADS: u32 = 256;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    width: u32,
    count: u32,
    blocks: u32,
}

/// Index of the largest of the first `vocab_used` values of each row, the first of equals; NaN wins only if nothing else
/// is there: `calla_ops::sample::argmax`.
///
/// `logits`: f32 `[n, V]`. `out`: u32 `[n, 1]`.
///
/// # Panics
/// If a tensor has another shape or type, or `vocab_used` is none of 1 to V.
#[must_use]
pub fn argmax(
    logits: Tensor,
    vocab_used: u32,
    scratch: &mut dyn Scratch,
    out: Tensor,
) -> Vec<Dispatch> {
    assert_eq!(logits.dtype, Dtype::F32, "logits");
    assert!((1..=logits.cols).contains(&vocab_used), "{vocab_used} of {} logits", logits.cols);
    assert_eq!((out.rows, out.cols, out.dtype), (logits.rows, 1, Dtype::U32), "out");
    let rows = logits.rows;
    let blocks = vocab_used.div_ceil(BLOCK);
    let values = scratch.tensor(rows, blocks, Dtype::F32);
    let indices = scratch.tensor(rows, blocks, Dtype::U32);
    let params = Params { width: logits.cols, count: vocab_used, blocks };
    vec![
        Dispatch::new("argmax_blocks")
            .read_part(logits.range, u64::from(rows) * u64::from(vocab_used) * 4)
            .write(values)
            .write(indices)
            .params(&params)
            .grid([blocks, rows, 1], [THREADS, 1, 1]),
        Dispatch::new("argmax_merge")
            .read(values)
            .read(indices)
            .write(out)
            .params(&params)
            .grid([rows, 1, 1], [THREADS, 1, 1]),
    ]
}
