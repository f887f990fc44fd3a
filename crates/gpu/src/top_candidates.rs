//! The most likely tokens of each row: `kernels/top_candidates.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::logits::{BLOCK, LogitsParams, THREADS};
use crate::scratch::Scratch;
use crate::tensor::{Dtype, Tensor};

/// Candidates of a row.
pub const CANDIDATES: u32 = 64;
/// Most logits of a row: candidates of all blocks fit one block.
pub const VOCAB_MAX: u32 = BLOCK / CANDIDATES * BLOCK;
/// In place of a token: there is none, or the row has a logit that is NaN or infinite.
pub const NO_TOKEN: u32 = u32::MAX;

/// The most likely tokens of each row, in order of their logits, of equal ones the lower token first.
#[derive(Clone, Copy, Debug)]
pub struct Candidates {
    /// Their logits, f32 `[n, 64]`; 0 where there is no token.
    pub logits: Tensor,
    /// The tokens, u32 `[n, 64]`; [`NO_TOKEN`] behind the last if the vocabulary has fewer, and everywhere if any logit of
    /// the row is not finite.
    pub tokens: Tensor,
}

impl Candidates {
    /// Candidates of so many rows.
    pub fn new(scratch: &mut dyn Scratch, rows: u32) -> Self {
        let logits = scratch.tensor(rows, CANDIDATES, Dtype::F32);
        Self { logits, tokens: scratch.tensor(rows, CANDIDATES, Dtype::U32) }
    }

    pub(crate) fn check(&self, rows: u32) {
        self.logits.check("logits of candidates", rows, CANDIDATES, Dtype::F32);
        self.tokens.check("tokens of candidates", rows, CANDIDATES, Dtype::U32);
    }
}

/// The 64 largest of the first `vocab_used` values of each row.
///
/// `logits`: f32 `[n, V]`. `candidates` are written.
///
/// # Panics
/// If a tensor has another shape or type, or `vocab_used` is none of 1 to V or more than [`VOCAB_MAX`].
#[must_use]
pub fn top_candidates(
    logits: Tensor,
    vocab_used: u32,
    scratch: &mut dyn Scratch,
    candidates: &Candidates,
) -> Vec<Dispatch> {
    let params = LogitsParams::new(logits, vocab_used);
    assert!(vocab_used <= VOCAB_MAX, "{vocab_used} logits; at most {VOCAB_MAX}");
    candidates.check(logits.rows);
    let rows = logits.rows;
    let blocks = params.blocks;
    let keys = scratch.tensor(rows, blocks * CANDIDATES, Dtype::U32);
    let tokens = scratch.tensor(rows, blocks * CANDIDATES, Dtype::U32);
    let bad = scratch.tensor(rows, blocks, Dtype::U32);
    vec![
        params
            .read(Dispatch::new(entries::TOP_CANDIDATES_BLOCKS), logits)
            .write(keys)
            .write(tokens)
            .write(bad)
            .params(&params)
            .grid([blocks, rows, 1], [THREADS, 1, 1]),
        Dispatch::new(entries::TOP_CANDIDATES_MERGE)
            .read(keys)
            .read(tokens)
            .read(bad)
            .write(candidates.logits)
            .write(candidates.tokens)
            .params(&params)
            .grid([rows, 1, 1], [THREADS, 1, 1]),
    ]
}
