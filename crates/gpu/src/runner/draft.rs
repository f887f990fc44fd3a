//! Drafts: guesses one after the other, each from the hidden row of the one before.

use super::GpuRunner;
use super::plans::Work;
use crate::cache::StateError;
use crate::copy::copy;
use crate::device::{Device, DeviceError};
use crate::recorder::DraftBindings;
use crate::shape_constants::width;
use crate::tensor::{Dtype, Range, Tensor};
use calla_model::Shape;
use calla_ops::{Batch, Draft, Drafts, Span, SpanKind};
use std::collections::BTreeMap;

/// What drafts work on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    /// f32 `[sequences, hidden]`.
    hidden: Tensor,
    /// u32 `[sequences, 1]`.
    guesses: Tensor,
}

impl Buffers {
    pub(super) fn new(
        device: &mut dyn Device,
        shape: &Shape,
        sequences: usize,
    ) -> Result<Self, DeviceError> {
        // The cache has so many slots: they were counted as u32.
        let rows = width(sequences);
        let mut whole = |label, cols: usize, dtype: Dtype| {
            let cols = width(cols);
            let buffer =
                device.allocate(label, u64::from(rows) * u64::from(cols) * dtype.size())?;
            Ok(Tensor::whole(buffer, rows, cols, dtype))
        };
        Ok(Self {
            hidden: whole("hidden rows of drafts", shape.hidden, Dtype::F32)?,
            guesses: whole("guesses", 1, Dtype::U32)?,
        })
    }

    /// A row of `hidden`.
    fn hidden_row(&self, row: u32) -> Range {
        let len = self.hidden.row_bytes();
        Range { start: self.hidden.range.start + u64::from(row) * len, len, ..self.hidden.range }
    }

    /// The first `rows` rows.
    pub(super) fn bindings(&self, rows: u32, vocab_used: u32) -> DraftBindings {
        let first = |t: Tensor| Tensor {
            rows,
            range: Range { len: u64::from(rows) * t.row_bytes(), ..t.range },
            ..t
        };
        DraftBindings { hidden: first(self.hidden), vocab_used, guesses: first(self.guesses) }
    }
}

impl<D: Device> GpuRunner<D> {
    /// The tokens of each draft.
    pub(super) fn guess(&mut self, drafts: &Drafts) -> Result<Vec<Vec<u32>>, StateError> {
        let Some(buffers) = self.draft else {
            return Err(off("drafting is off").into());
        };
        self.has_recorded = false;
        let drafts = drafts.as_slice();
        let mut guesses = vec![vec![]; drafts.len()];
        // A plan guesses among one number of tokens.
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, draft) in drafts.iter().enumerate() {
            groups.entry(draft.vocab_used).or_default().push(i);
        }
        for (vocab_used, mut members) in groups {
            // Those that end first come last, so that rows which go on stay the first of the buffers.
            members.sort_by_key(|&i| std::cmp::Reverse(drafts[i].depth));
            for members in members.chunks(self.cache.max_spans().max(1)) {
                self.guess_together(&buffers, drafts, members, vocab_used, &mut guesses)?;
            }
        }
        Ok(guesses)
    }

    /// Guesses of `members`, indices of `drafts` in the order of falling depth.
    fn guess_together(
        &mut self,
        buffers: &Buffers,
        drafts: &[Draft],
        members: &[usize],
        vocab_used: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<(), StateError> {
        let work = Work::Draft { vocab_used: width(vocab_used) };
        self.take_kept_rows(buffers, members.iter().map(|&i| drafts[i].slot))?;
        for done in 0..drafts[members[0]].depth {
            let active = members.partition_point(|&i| drafts[i].depth > done);
            let active = &members[..active];
            let tokens: Vec<u32> = active
                .iter()
                .map(|&i| guesses[i].last().copied().unwrap_or(drafts[i].token))
                .collect();
            let batch = self.batch(drafts, active, &tokens, done)?;
            // Spans of a guess have no recurrent state that moves.
            let moves = self.cache.begin(batch.spans())?;
            self.run_plan(&batch, &moves, work)?;
            let mut next = vec![0_u32; active.len()];
            let guessed = buffers.bindings(width(active.len()), 1).guesses;
            self.device.read(guessed.range, bytemuck::cast_slice_mut(&mut next))?;
            active.iter().zip(next).for_each(|(&i, token)| guesses[i].push(token));
        }
        Ok(())
    }

    /// Copies the rows that the last step kept of the sequences in `slots`.
    fn take_kept_rows(
        &mut self,
        buffers: &Buffers,
        slots: impl Iterator<Item = usize>,
    ) -> Result<(), StateError> {
        let copies: Result<Vec<_>, StateError> = (0..)
            .zip(slots)
            .map(|(row, slot)| {
                let kept = self.cache.kept_row(slot)?.ok_or_else(|| off("no rows are kept"))?;
                Ok(copy(kept, buffers.hidden_row(row)))
            })
            .collect();
        let copies = copies?;
        Ok(self.device.run(&copies, &[copies.len()])?)
    }

    /// A row for each draft of `active`, `done` tokens on.
    fn batch(
        &self,
        drafts: &[Draft],
        active: &[usize],
        tokens: &[u32],
        done: usize,
    ) -> Result<Batch, DeviceError> {
        let span = |(row, &i): (usize, &usize)| {
            let Draft { position, slot, ref pages, .. } = drafts[i];
            Span::new(SpanKind::Decode, row..row + 1, position + done, slot, pages.clone())
        };
        let spans = active.iter().enumerate().map(span).collect();
        let (vocab, cache) = (self.shape.vocab_size, self.cache.size());
        // `Drafts` were checked to be a batch at any depth; a guess that is no token is the device's mistake.
        Batch::new(tokens.to_vec(), spans, vec![], vocab, cache)
            .map_err(|error| off(&error.to_string()))
    }
}

fn off(reason: &str) -> DeviceError {
    DeviceError::failed("a draft", reason)
}
