//! Random ways of feeding sequences: cut into spans, mixed into batches, laid out over slots and pages.
//!
//! A [`Schedule`] is one such way. What comes out for a row is identified by its sequence and position, so
//! that the results of two schedules over the same sequences can be compared.

use crate::random::Random;
use calla_model::shape::PAGE_TOKENS;
use calla_ops::{Batch, CacheSize, Rows, Span, SpanKind};
use std::fmt;

/// Where sequences are cut into spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Not at all: prefill in one span.
    Whole,
    /// Everywhere: decode from the first token.
    Single,
    /// At random points.
    Random,
    /// A prefill of a random length, the rest decoded.
    PrefillThenDecode,
}

/// Which spans share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// One sequence after the other.
    Alone,
    /// Spans of random sequences together.
    Together,
}

/// One row of a batch: a token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the sequence.
    pub sequence: usize,
    /// Position in it.
    pub position: usize,
}

/// A batch and what its rows are.
#[derive(Clone, Debug)]
pub struct Step {
    /// The batch; logits of all rows are wanted.
    pub batch: Batch,
    /// What each row is.
    pub places: Vec<Place>,
}

/// Batches that feed sequences completely, each in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The cache they need: a few pages and slots more than are used.
    pub cache: CacheSize,
    /// Length of each sequence.
    pub lengths: Vec<usize>,
    /// The batches.
    pub steps: Vec<Step>,
    cut: Cut,
    mix: Mix,
}

impl Schedule {
    /// Feeds `sequences` of tokens below `vocab_size`, over randomly chosen slots and pages.
    ///
    /// # Panics
    /// If a sequence is empty.
    #[must_use]
    pub fn new(
        random: &mut Random,
        sequences: &[Vec<u32>],
        vocab_size: usize,
        cut: Cut,
        mix: Mix,
    ) -> Self {
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        let pages_of = |len: usize| len.div_ceil(PAGE_TOKENS);
        let pages: usize = lengths.iter().map(|&len| pages_of(len)).sum();
        let cache = CacheSize { pages: pages + 3, slots: sequences.len() + 1 };
        let slots = random.distinct(sequences.len(), cache.slots);
        let mut free = random.distinct(pages, cache.pages);
        let tables: Vec<Vec<usize>> =
            lengths.iter().map(|&len| free.split_off(free.len() - pages_of(len))).collect();
        let mut cuts: Vec<Vec<usize>> =
            lengths.iter().map(|&len| pieces(random, len, cut)).collect();

        let mut fed = vec![0; sequences.len()];
        let mut steps = Vec::new();
        while let Some(next) = (0..sequences.len()).find(|&s| !cuts[s].is_empty()) {
            let mut chosen = vec![next];
            if mix == Mix::Together {
                chosen = (0..sequences.len())
                    .filter(|&s| !cuts[s].is_empty() && (s == next || !random.one_in(4)))
                    .collect();
                random.shuffle(&mut chosen);
            }
            let (mut tokens, mut spans, mut places) = (vec![], vec![], vec![]);
            for s in chosen {
                let (position, len) = (fed[s], cuts[s].remove(0));
                let rows = tokens.len()..tokens.len() + len;
                tokens.extend(&sequences[s][position..position + len]);
                places.extend(
                    (position..position + len).map(|position| Place { sequence: s, position }),
                );
                spans.push(Span::new(
                    SpanKind::Prefill,
                    rows,
                    position,
                    slots[s],
                    tables[s].clone(),
                ));
                fed[s] += len;
            }
            let outputs = (0..tokens.len()).collect();
            let batch = Batch::new(tokens, spans, outputs, vocab_size, cache)
                .unwrap_or_else(|e| panic!("a schedule's batch: {e}"));
            steps.push(Step { batch, places });
        }
        Self { cache, lengths, steps, cut, mix }
    }

    /// Rows of a batch out of values per sequence `[length, cols]`.
    #[must_use]
    pub fn gather(step: &Step, values: &[Rows]) -> Rows {
        let row = |place: &Place| values[place.sequence].row(place.position);
        let data = step.places.iter().flat_map(row).copied().collect();
        Rows::from_vec(values[0].cols(), data)
    }

    /// Writes rows of a batch into values per sequence, which start out empty. Where an operation has
    /// several output rows per input row, they become one.
    ///
    /// # Panics
    /// If the rows are not a multiple of the batch's.
    pub fn scatter(&self, step: &Step, rows: Rows, values: &mut Vec<Rows>) {
        let cols = rows.rows() * rows.cols() / step.places.len();
        assert_eq!(cols * step.places.len(), rows.rows() * rows.cols(), "rows of a batch");
        if values.is_empty() {
            // Not zero: a row that is never written must not pass for one that is.
            let unwritten = |&len: &usize| Rows::from_vec(cols, vec![f32::NAN; len * cols]);
            values.extend(self.lengths.iter().map(unwritten));
        }
        let rows = Rows::from_vec(cols, rows.into_vec());
        for (place, row) in step.places.iter().zip(rows.iter()) {
            values[place.sequence].row_mut(place.position).copy_from_slice(row);
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.steps.iter().map(|s| s.places.len()).max().unwrap_or(0);
        write!(
            f,
            "sequences of {:?}, cut {:?}, {:?}, {} batches of at most {rows} rows",
            self.lengths,
            self.cut,
            self.mix,
            self.steps.len()
        )
    }
}

/// Lengths of spans that add up to `len`.
fn pieces(random: &mut Random, len: usize, cut: Cut) -> Vec<usize> {
    assert!(len > 0, "an empty sequence has no spans");
    match cut {
        Cut::Whole => vec![len],
        Cut::Single => vec![1; len],
        Cut::PrefillThenDecode => {
            let prefill = random.range(1..=len);
            std::iter::once(prefill).chain(std::iter::repeat_n(1, len - prefill)).collect()
        }
        Cut::Random => {
            let mut left = len;
            let mut pieces = vec![];
            while left > 0 {
                // Often short, so that decode rows and long spans meet in one batch.
                let longest =
                    if random.one_in(3) { 1 } else { left.min(*random.pick(&[5, 40, 300])) };
                let piece = random.range(1..=longest);
                pieces.push(piece);
                left -= piece;
            }
            pieces
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_fed_once_and_in_order() {
        for (seed, cut) in
            [Cut::Whole, Cut::Single, Cut::Random, Cut::PrefillThenDecode].into_iter().enumerate()
        {
            for mix in [Mix::Alone, Mix::Together] {
                let mut random = Random::new(seed as u64);
                let sequences = [1, 64, 65, 130].map(|len| random.tokens(len, 50)).to_vec();
                let schedule = Schedule::new(&mut random, &sequences, 50, cut, mix);
                let mut fed = vec![vec![]; 4];
                for step in &schedule.steps {
                    for (place, &token) in step.places.iter().zip(step.batch.tokens()) {
                        assert_eq!(fed[place.sequence].len(), place.position);
                        fed[place.sequence].push(token);
                    }
                }
                assert_eq!(fed, sequences, "{schedule}");
            }
        }
    }
}
