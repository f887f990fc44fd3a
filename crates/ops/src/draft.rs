//! Drafting: greedy guesses of the tokens after the one just chosen, by the multi-token-prediction layer.

use crate::batch::{Batch, BatchError};
use crate::cache::CacheSize;
use crate::mtp::mtp_forward;
use crate::runner::HostOps;
use crate::sample::argmax;
use crate::span::{Span, SpanKind};
use crate::tensor::Rows;
use calla_model::Network;
use calla_model::network::Mtp;

/// What to draft for one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The token just chosen.
    pub token: u32,
    /// Where it will lie: the number of tokens in the sequence's state.
    pub position: usize,
    /// Slot of the sequence's state; it stays as it is.
    pub slot: usize,
    /// KV pages of the sequence; they cover `position .. position + depth`, where the draft layer's keys and
    /// values are written (the step that feeds these positions rewrites them).
    pub pages: Vec<usize>,
    /// Tokens wanted, at least 1: those of positions `position + 1 ..`.
    pub depth: usize,
    /// Ids below this one may be drafted: the vocabulary without its padding.
    pub vocab_used: usize,
}

/// Checked drafts. Holding one proves what a [`Batch`] does of spans of `depth` rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drafts(Vec<Draft>);

/// Why drafts cannot be made. Each is a bug of the caller, found before a device runs it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// As spans they form no batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// No id may be drafted.
    #[error("draft {draft} may use {vocab_used} ids; expected 1 to {vocab_size}")]
    VocabUsed {
        /// Index of the draft.
        draft: usize,
        /// Its bound.
        vocab_used: usize,
        /// Rows of the embedding.
        vocab_size: usize,
    },
}

impl Drafts {
    /// Checks drafts against a cache and a vocabulary.
    ///
    /// # Errors
    /// If a token, slot or page is not there, pages do not cover the positions, a slot appears twice, a page
    /// that is written is used by another, or a depth or vocabulary is 0 or too large.
    pub fn new(
        drafts: Vec<Draft>,
        vocab_size: usize,
        cache: CacheSize,
    ) -> Result<Self, DraftError> {
        let (mut tokens, mut spans) = (vec![], vec![]);
        for (i, draft) in drafts.iter().enumerate() {
            if draft.vocab_used == 0 || draft.vocab_used > vocab_size {
                let vocab_used = draft.vocab_used;
                return Err(DraftError::VocabUsed { draft: i, vocab_used, vocab_size });
            }
            // Before rows are made of it: a depth beyond its pages.
            let capacity = draft.pages.len() * calla_model::shape::PAGE_TOKENS;
            let end = draft.position.saturating_add(draft.depth);
            if end > capacity {
                let count = draft.pages.len();
                return Err(BatchError::Pages { span: i, end, count, capacity }.into());
            }
            let start = tokens.len();
            tokens.resize(start + draft.depth, draft.token);
            spans.push(span(draft, start..tokens.len(), draft.position));
        }
        Batch::new(tokens, spans, vec![], vocab_size, cache)?;
        Ok(Self(drafts))
    }

    /// The drafts.
    #[must_use]
    pub fn as_slice(&self) -> &[Draft] {
        &self.0
    }
}

fn span(draft: &Draft, rows: std::ops::Range<usize>, position: usize) -> Span {
    Span::new(SpanKind::Decode, rows, position, draft.slot, draft.pages.clone())
}

/// Drafts all sequences, one batch per depth; `layer` is where the draft layer's KV cache is. `kept`
/// `[drafts, hidden]` are their last rows after the main model's last norm.
pub(crate) fn draft<O: HostOps>(
    ops: &mut O,
    network: &Network<O::Parts>,
    mtp: &Mtp<O::Parts>,
    layer: usize,
    mut hidden: Rows,
    drafts: &Drafts,
) -> Vec<Vec<u32>> {
    let mut drafted: Vec<Vec<u32>> = vec![vec![]; drafts.0.len()];
    let mut active: Vec<usize> = (0..drafts.0.len()).collect();
    for done in 0.. {
        // Rows of `hidden` that go on, and the drafts that they belong to.
        let rows: Vec<usize> =
            (0..active.len()).filter(|&row| drafts.0[active[row]].depth > done).collect();
        if rows.is_empty() {
            break;
        }
        hidden = ops.select_rows(&hidden, &rows);
        active = rows.iter().map(|&row| active[row]).collect();
        let (mut tokens, mut spans) = (vec![], vec![]);
        for (row, &i) in active.iter().enumerate() {
            let draft = &drafts.0[i];
            tokens.push(drafted[i].last().copied().unwrap_or(draft.token));
            spans.push(span(draft, row..row + 1, draft.position + done));
        }
        let batch = Batch::part_of_checked(tokens, spans);
        let rows = mtp_forward(ops, network, mtp, &hidden, layer, &batch);
        for (&i, logits) in active.iter().zip(rows.logits.iter()) {
            drafted[i].push(argmax(&logits[..drafts.0[i].vocab_used]));
        }
        hidden = rows.hidden;
    }
    drafted
}
