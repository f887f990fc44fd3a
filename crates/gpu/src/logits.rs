//! Rows of logits that are reduced in two steps: block by block, then what blocks have found.

use crate::dispatch::Dispatch;
use crate::tensor::{Dtype, Tensor};
use bytemuck::NoUninit;

/// Values of a block.
pub(crate) const BLOCK: u32 = 4096;
/// Threads of a threadgroup.
pub(crate) const THREADS: u32 = 256;

/// Parameters of the kernels of both steps: `kernels/logits.h` has the same.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
pub(crate) struct LogitsParams {
    width: u32,
    count: u32,
    /// Blocks of a row.
    pub(crate) blocks: u32,
}

impl LogitsParams {
    /// The first `vocab_used` values of each row count.
    ///
    /// # Panics
    /// If `logits` are not f32, or `vocab_used` is none of 1 to their width.
    pub(crate) fn new(logits: Tensor, vocab_used: u32) -> Self {
        assert_eq!(logits.dtype, Dtype::F32, "logits");
        assert!((1..=logits.cols).contains(&vocab_used), "{vocab_used} of {} logits", logits.cols);
        Self { width: logits.cols, count: vocab_used, blocks: vocab_used.div_ceil(BLOCK) }
    }

    /// Binds the values that count.
    pub(crate) fn read(&self, dispatch: Dispatch, logits: Tensor) -> Dispatch {
        dispatch.read_part(logits.range, u64::from(logits.rows) * u64::from(self.count) * 4)
    }
}
