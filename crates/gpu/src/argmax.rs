//! The most likely token of each row: `kernels/argmax.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::logits::{LogitsParams, THREADS};
use crate::scratch::Scratch;
use crate::tensor::{Dtype, Tensor};

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
    let params = LogitsParams::new(logits, vocab_used);
    out.check("out", logits.rows, 1, Dtype::U32);
    let rows = logits.rows;
    let blocks = params.blocks;
    let values = scratch.tensor(rows, blocks, Dtype::F32);
    let indices = scratch.tensor(rows, blocks, Dtype::U32);
    vec![
        params
            .read(Dispatch::new(entries::ARGMAX_BLOCKS), logits)
            .write(values)
            .write(indices)
            .params(&params)
            .grid([blocks, rows, 1], [THREADS, 1, 1]),
        Dispatch::new(entries::ARGMAX_MERGE)
            .read(values)
            .read(indices)
            .write(out)
            .params(&params)
            .grid([rows, 1, 1], [THREADS, 1, 1]),
    ]
}
