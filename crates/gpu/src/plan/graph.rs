//! Which dispatch must wait for which, from the bytes that each declares to read and write.

use crate::dispatch::Dispatch;
use crate::tensor::{Place, Range};
use std::collections::{BTreeMap, HashMap};

/// Dependencies among dispatches `0..n`, transitively reduced: only those that no others imply.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Graph {
    /// What each dispatch waits for, ascending. All are before it.
    needs: Vec<Vec<u32>>,
}

/// Part of a temporary that a dispatch reads and none before it wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Undefined {
    /// Index of the dispatch.
    pub(super) dispatch: usize,
    /// What it reads.
    pub(super) range: Range,
}

impl Graph {
    /// The dependencies that running `dispatches` in this order obeys: a read after the write of a byte (RAW), a write
    /// after its reads (WAR) and after the write before (WAW).
    ///
    /// # Errors
    /// If one reads a byte of a temporary that none before it wrote.
    pub(super) fn new<'a>(
        dispatches: impl Iterator<Item = &'a Dispatch>,
    ) -> Result<Self, Undefined> {
        let mut history: HashMap<Place, History> = HashMap::new();
        let mut needs = vec![];
        for (index, dispatch) in dispatches.enumerate() {
            let mut found = vec![];
            let bound = || dispatch.bindings.iter().filter(|binding| binding.range.len > 0);
            // All reads first: what a dispatch reads is not what it writes itself.
            for binding in bound().filter(|binding| binding.access.reads()) {
                let range = binding.range;
                let defined =
                    history.entry(range.place).or_default().read(range, index as u32, &mut found);
                if !defined && matches!(range.place, Place::Scratch(_)) {
                    return Err(Undefined { dispatch: index, range });
                }
            }
            for binding in bound().filter(|binding| binding.access.writes()) {
                let range = binding.range;
                history.entry(range.place).or_default().write(range, index as u32, &mut found);
            }
            found.retain(|&other| other != index as u32);
            needs.push(found);
        }
        Ok(Self { needs: reduce(needs) })
    }

    /// Stage of each dispatch: the length of the longest path that leads to it.
    pub(super) fn stages(&self) -> Vec<u32> {
        let mut stages: Vec<u32> = Vec::with_capacity(self.needs.len());
        for needs in &self.needs {
            let stage = needs.iter().map(|&other| stages[other as usize] + 1).max();
            stages.push(stage.unwrap_or(0));
        }
        stages
    }

    /// The dependencies as pairs `[from, to]`, by `to` and then by `from`.
    pub(super) fn edges(&self) -> Vec<[u32; 2]> {
        let of = |(to, needs): (usize, &Vec<u32>)| {
            needs.iter().map(move |&from| [from, to as u32]).collect::<Vec<_>>()
        };
        self.needs.iter().enumerate().flat_map(of).collect()
    }
}

/// The last accesses to the bytes of a place: segments that do not overlap, by first byte. What an older write did to a
/// byte is of no matter once a newer one covers it, so a dispatch meets few others, and their number stays small.
#[derive(Default)]
struct History {
    segments: BTreeMap<u64, Segment>,
}

/// Bytes that the same dispatches touched last.
#[derive(Clone)]
struct Segment {
    /// The byte after the last.
    end: u64,
    /// Who wrote them last.
    writer: Option<u32>,
    /// Who has read them since.
    readers: Vec<u32>,
}

impl History {
    /// Adds the writers of a range to `needs`. Whether all of its bytes have been written.
    fn read(&mut self, range: Range, reader: u32, needs: &mut Vec<u32>) -> bool {
        let end = range.start + range.len;
        self.split(range.start);
        self.split(end);
        let mut defined = true;
        let mut gaps = vec![];
        let mut at = range.start;
        for (&start, segment) in self.segments.range_mut(range.start..end) {
            gaps.push((at, start));
            at = segment.end;
            needs.extend(segment.writer);
            defined &= segment.writer.is_some();
            segment.readers.push(reader);
        }
        gaps.push((at, end));
        for (start, end) in gaps.into_iter().filter(|(start, end)| start < end) {
            defined = false;
            let segment = Segment { end, writer: None, readers: vec![reader] };
            self.segments.insert(start, segment);
        }
        defined
    }

    /// Adds the last readers of a range to `needs`, and where there are none, the last writers.
    fn write(&mut self, range: Range, writer: u32, needs: &mut Vec<u32>) {
        let end = range.start + range.len;
        self.split(range.start);
        self.split(end);
        let covered: Vec<u64> =
            self.segments.range(range.start..end).map(|(&start, _)| start).collect();
        for start in covered {
            let Some(segment) = self.segments.remove(&start) else { continue };
            // Readers wait for the writer, so that who waits for them waits for it.
            if segment.readers.is_empty() {
                needs.extend(segment.writer);
            }
            needs.extend(segment.readers);
        }
        let segment = Segment { end, writer: Some(writer), readers: vec![] };
        self.segments.insert(range.start, segment);
    }

    /// Lets no segment lie on both sides of a byte's start.
    fn split(&mut self, at: u64) {
        let Some((_, segment)) = self.segments.range_mut(..at).next_back() else { return };
        if segment.end > at {
            let rest = segment.clone();
            segment.end = at;
            self.segments.insert(at, rest);
        }
    }
}

/// Leaves out of each list what other entries of it wait for already. The result is unique: the least that implies the
/// same order.
fn reduce(mut needs: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let words = needs.len().div_ceil(64);
    // A bit for each dispatch that comes before: row after row, `words` each.
    let mut before = vec![0_u64; needs.len() * words];
    for (to, list) in needs.iter_mut().enumerate() {
        let (earlier, row) = before[..(to + 1) * words].split_at_mut(to * words);
        // From the last to the first: what implies another comes after it.
        list.sort_unstable_by(|a, b| b.cmp(a));
        list.retain(|&from| {
            let from = from as usize;
            let new = row[from / 64] >> (from % 64) & 1 == 0;
            if new {
                row[from / 64] |= 1 << (from % 64);
                for (word, other) in row.iter_mut().zip(&earlier[from * words..]) {
                    *word |= other;
                }
            }
            new
        });
        list.reverse();
    }
    needs
}
