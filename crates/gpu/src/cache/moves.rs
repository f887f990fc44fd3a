//! Which physical slot holds the recurrent state of a slot, and where steps put what becomes of it.

use super::StateError;
use calla_ops::cache::check_index;
use calla_ops::{CacheError, Span};
use std::collections::HashMap;

/// Slots and spare slots.
#[derive(Debug)]
pub(super) struct Slots {
    /// Physical slot of each slot.
    physical: Vec<u32>,
    /// Physical slots that hold nothing.
    spare: Vec<u32>,
}

/// Where a step reads and writes recurrent state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMoves {
    /// By slot of a span: which it is read from and which it is written to, and the place of the latter among the
    /// spare ones.
    moves: HashMap<usize, (u32, u32, usize)>,
    /// Physical slots of checkpoints.
    checkpoints: HashMap<usize, u32>,
}

impl SlotMoves {
    /// Physical slots that the span with slot `slot` reads and writes: `[slot_in, slot_out]`.
    #[must_use]
    pub fn of(&self, slot: usize) -> Option<[u32; 2]> {
        self.moves.get(&slot).map(|&(from, to, _)| [from, to])
    }

    /// The moves of some slots alone; `None` if one of them does not move.
    pub(crate) fn only(mut self, slots: &[usize]) -> Option<Self> {
        if !slots.iter().all(|slot| self.moves.contains_key(slot)) {
            return None;
        }
        self.moves.retain(|slot, _| slots.contains(slot));
        Some(self)
    }

    /// Physical slot of a checkpoint.
    #[must_use]
    pub fn checkpoint(&self, slot: usize) -> Option<u32> {
        self.checkpoints.get(&slot).copied()
    }
}

impl Slots {
    /// So many of each. Their sum is a `u32`.
    pub(super) fn new(slots: usize, spares: usize) -> Self {
        let mut all = 0_u32..;
        let physical = all.by_ref().take(slots).collect();
        Self { physical, spare: all.take(spares).collect() }
    }

    pub(super) fn spares(&self) -> usize {
        self.spare.len()
    }

    /// Where the state of a slot is.
    pub(super) fn physical(&self, slot: usize) -> Result<u32, CacheError> {
        check_index("slot", slot, self.physical.len())?;
        Ok(self.physical[slot])
    }

    pub(super) fn begin(&self, spans: &[Span]) -> Result<SlotMoves, StateError> {
        let spares = self.spare.len();
        if spans.len() > spares {
            return Err(StateError::Spares { spans: spans.len(), spares });
        }
        let mut moves = HashMap::with_capacity(spans.len());
        let mut checkpoints = HashMap::new();
        for (place, (span, &to)) in spans.iter().zip(&self.spare).enumerate() {
            moves.insert(span.slot, (self.physical(span.slot)?, to, place));
            for &slot in &span.checkpoints {
                checkpoints.insert(slot, self.physical(slot)?);
            }
        }
        Ok(SlotMoves { moves, checkpoints })
    }

    pub(super) fn commit(&mut self, moves: SlotMoves) {
        let now = |slot: usize, place: usize| (self.physical[slot], self.spare[place]);
        let current =
            moves.moves.iter().all(|(&slot, &(from, to, at))| now(slot, at) == (from, to));
        assert!(current, "other moves were committed after these were begun");
        for (slot, (_, _, place)) in moves.moves {
            std::mem::swap(&mut self.physical[slot], &mut self.spare[place]);
        }
    }
}
