//! State of sequences in host memory: a pool of KV pages and slots of recurrent state.

use crate::zeroed::Zeroed;
use calla_model::shape::{LayerKind, PAGE_TOKENS, Shape};
use std::ops::{Deref, DerefMut, Range};

/// How much state a backend holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// KV pages of 64 tokens, shared by all sequences.
    pub pages: usize,
    /// Sequences whose recurrent state is held at once.
    pub slots: usize,
}

impl CacheSize {
    /// Enough for one sequence of `tokens`.
    #[must_use]
    pub fn one_sequence(tokens: usize) -> Self {
        Self { pages: tokens.div_ceil(PAGE_TOKENS), slots: 1 }
    }
}

/// KV pages and slots that hold nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeState {
    /// KV pages, as ascending ranges that do not touch.
    pub pages: Vec<Range<usize>>,
    /// Slots, as ascending ranges that do not touch.
    pub slots: Vec<Range<usize>>,
}

/// Why state cannot be held or moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// There is not the memory.
    #[error(
        "cannot allocate {bytes} bytes for {count} {what}; ask for a shorter context or fewer sequences"
    )]
    Allocation {
        /// Pages or slots.
        what: &'static str,
        /// How many of them.
        count: usize,
        /// Bytes of one layer's part of them, as far as they can be counted.
        bytes: u128,
    },
    /// A page or slot does not exist.
    #[error("there is no {what} {index}; there are {count}")]
    Missing {
        /// Page or slot.
        what: &'static str,
        /// Its index.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Bytes that are not those of a page or slot of this cache.
    #[error(
        "a {what} takes {expected} bytes, but {actual} were given; they are of another model or setting"
    )]
    Length {
        /// Page or slot.
        what: &'static str,
        /// Bytes it takes.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
}

/// Pages or slots of one kind of state: `count` entries of `len` values, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Entries {
    values: Zeroed,
    len: usize,
}

impl Entries {
    /// Zeroed entries; memory is taken up when they are first written.
    fn zeroed(what: &'static str, count: usize, len: usize) -> Result<Self, CacheError> {
        let bytes = count as u128 * len as u128 * size_of::<f32>() as u128;
        let values = count
            .checked_mul(len)
            .and_then(Zeroed::new)
            .ok_or(CacheError::Allocation { what, count, bytes })?;
        Ok(Self { values, len })
    }

    /// One entry.
    #[must_use]
    pub fn entry(&self, index: usize) -> &[f32] {
        &self.values[index * self.len..][..self.len]
    }

    /// One entry, to write.
    pub fn entry_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.values[index * self.len..][..self.len]
    }

    /// Where an entry starts among all values.
    #[must_use]
    pub fn entry_start(&self, index: usize) -> usize {
        index * self.len
    }

    /// All entries, to write.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.values.chunks_exact_mut(self.len)
    }

    /// Makes one entry a copy of another.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.values.copy_within(from * self.len..(from + 1) * self.len, to * self.len);
    }

    /// Hands the memory of free entries back to the system, as far as it is made of whole pages of the system's; those
    /// are zero then. Their bytes, whether or not they had been taken up.
    fn give_back(&mut self, free: &[Range<usize>]) -> u64 {
        let values = free.iter().map(|range| range.start * self.len..range.end * self.len);
        values.map(|range| self.values.give_back(range) as u64).sum()
    }
}

impl Deref for Entries {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

impl DerefMut for Entries {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

/// KV pages and recurrent state, all f32.
#[derive(Clone, Debug)]
pub struct HostCache {
    /// What it was made for.
    pub size: CacheSize,
    /// Per attention layer; when drafting, the draft layer's is the last.
    pub attention: Vec<KvPool>,
    /// Per DeltaNet layer.
    pub delta: Vec<DeltaSlots>,
    /// When drafting: the last row of each sequence after the main model's last norm `[slots, hidden]`,
    /// zero where there is none.
    pub hidden: Option<Entries>,
}

/// Keys and values of one attention layer.
#[derive(Clone, Debug)]
pub struct KvPool {
    /// Keys `[pages * 64, kv heads * 256]`, after norm and RoPE; an entry is a page.
    pub keys: Entries,
    /// Values `[pages * 64, kv heads * 256]`; an entry is a page.
    pub values: Entries,
}

impl KvPool {
    fn zeroed(shape: &Shape, size: CacheSize) -> Result<Self, CacheError> {
        let part = || Entries::zeroed(PAGES, size.pages, PAGE_TOKENS * shape.kv_dim());
        Ok(Self { keys: part()?, values: part()? })
    }
}

/// Recurrent state of one DeltaNet layer.
#[derive(Clone, Debug)]
pub struct DeltaSlots {
    /// States `[slots, value heads, 128 (key), 128 (value)]`.
    pub states: Entries,
    /// Last three rows before the convolution, oldest first: `[slots, 3, channels]`.
    pub windows: Entries,
}

const PAGES: &str = "KV pages";
const SLOTS: &str = "slots of recurrent state";

impl HostCache {
    /// Zeroed state.
    ///
    /// # Errors
    /// If there is not the memory for it.
    pub fn new(shape: &Shape, size: CacheSize) -> Result<Self, CacheError> {
        let slots = || {
            Ok(DeltaSlots {
                states: Entries::zeroed(SLOTS, size.slots, shape.delta_state_len())?,
                windows: Entries::zeroed(SLOTS, size.slots, shape.conv_state_len())?,
            })
        };
        let attention = (0..shape.layers_of(LayerKind::Attention))
            .map(|_| KvPool::zeroed(shape, size))
            .collect::<Result<_, _>>()?;
        let delta =
            (0..shape.layers_of(LayerKind::DeltaNet)).map(|_| slots()).collect::<Result<_, _>>()?;
        Ok(Self { size, attention, delta, hidden: None })
    }

    /// Adds the state that drafting needs, zeroed: the draft layer's KV pool and a hidden row for each slot.
    /// Does nothing where it is there already.
    ///
    /// # Errors
    /// If there is not the memory for it.
    pub fn add_drafting(&mut self, shape: &Shape) -> Result<(), CacheError> {
        if self.hidden.is_none() {
            let hidden = Entries::zeroed(SLOTS, self.size.slots, shape.hidden)?;
            self.attention.push(KvPool::zeroed(shape, self.size)?);
            self.hidden = Some(hidden);
        }
        Ok(())
    }

    /// What a slot consists of, in the order of its bytes: state and window of each layer, then the hidden
    /// row.
    fn slot_parts(&mut self) -> impl Iterator<Item = &mut Entries> {
        let layers =
            self.delta.iter_mut().flat_map(|layer| [&mut layer.states, &mut layer.windows]);
        layers.chain(self.hidden.as_mut())
    }

    /// What a page consists of, in the order of its bytes: keys and values of each layer.
    fn page_parts(&mut self) -> impl Iterator<Item = &mut Entries> {
        self.attention.iter_mut().flat_map(|layer| [&mut layer.keys, &mut layer.values])
    }

    /// Forgets the recurrent state of a slot: the state of a sequence without tokens.
    pub fn clear_slot(&mut self, slot: usize) {
        self.slot_parts().for_each(|part| part.entry_mut(slot).fill(0.0));
    }

    /// Makes one slot a copy of another.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        self.slot_parts().for_each(|part| part.copy(from, to));
    }

    /// Makes one KV page a copy of another.
    pub fn copy_page(&mut self, from: usize, to: usize) {
        self.page_parts().for_each(|part| part.copy(from, to));
    }

    /// Hands the memory of pages and slots that hold nothing back to the system, as far as it is made of whole pages of
    /// the system's: bytes, whether or not they had been taken up. The rest of these pages and slots is as before, and all
    /// of them can be used as ever.
    ///
    /// # Errors
    /// If there is no such page or slot; then nothing was handed back.
    pub fn give_back(&mut self, free: &FreeState) -> Result<u64, CacheError> {
        let check = |what, ranges: &[Range<usize>], count| {
            ranges
                .iter()
                .filter(|range| !range.is_empty())
                .try_for_each(|range| check_index(what, range.end - 1, count))
        };
        check("page", &free.pages, self.size.pages)?;
        check("slot", &free.slots, self.size.slots)?;
        let pages: u64 = self.page_parts().map(|part| part.give_back(&free.pages)).sum();
        let slots: u64 = self.slot_parts().map(|part| part.give_back(&free.slots)).sum();
        Ok(pages + slots)
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        let layers = self.delta.iter().flat_map(|layer| [&layer.states, &layer.windows]);
        layers.chain(&self.hidden).map(|part| part.len * size_of::<f32>()).sum()
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        let layers = self.attention.iter().flat_map(|layer| [&layer.keys, &layer.values]);
        layers.map(|part| part.len * size_of::<f32>()).sum()
    }

    /// Replaces `out` by the bytes of a slot, little-endian.
    ///
    /// # Errors
    /// If there is no such slot, or not the memory for its bytes.
    pub fn read_slot(&mut self, slot: usize, out: &mut Vec<u8>) -> Result<(), CacheError> {
        check_index("slot", slot, self.size.slots)?;
        resize("slots", self.slot_bytes(), out)?;
        read(self.slot_parts(), slot, out);
        Ok(())
    }

    /// Sets a slot to what [`HostCache::read_slot`] gave.
    ///
    /// # Errors
    /// If there is no such slot or the bytes are not as many as a slot takes.
    pub fn write_slot(&mut self, slot: usize, bytes: &[u8]) -> Result<(), CacheError> {
        check_index("slot", slot, self.size.slots)?;
        check_len("slot", self.slot_bytes(), bytes)?;
        write(self.slot_parts(), slot, bytes);
        Ok(())
    }

    /// Replaces `out` by the bytes of a page, little-endian.
    ///
    /// # Errors
    /// If there is no such page, or not the memory for its bytes.
    pub fn read_page(&mut self, page: usize, out: &mut Vec<u8>) -> Result<(), CacheError> {
        check_index("page", page, self.size.pages)?;
        resize("KV pages", self.page_bytes(), out)?;
        read(self.page_parts(), page, out);
        Ok(())
    }

    /// Sets a page to what [`HostCache::read_page`] gave.
    ///
    /// # Errors
    /// If there is no such page or the bytes are not as many as a page takes.
    pub fn write_page(&mut self, page: usize, bytes: &[u8]) -> Result<(), CacheError> {
        check_index("page", page, self.size.pages)?;
        check_len("page", self.page_bytes(), bytes)?;
        write(self.page_parts(), page, bytes);
        Ok(())
    }
}

/// Requires that a page or slot exists.
///
/// # Errors
/// If it does not.
pub fn check_index(what: &'static str, index: usize, count: usize) -> Result<(), CacheError> {
    if index < count { Ok(()) } else { Err(CacheError::Missing { what, index, count }) }
}

/// Requires as many bytes as a page or slot takes.
///
/// # Errors
/// If they are more or fewer.
pub fn check_len(what: &'static str, expected: usize, bytes: &[u8]) -> Result<(), CacheError> {
    let actual = bytes.len();
    if actual == expected { Ok(()) } else { Err(CacheError::Length { what, expected, actual }) }
}

/// Makes `out` hold one slot or page of `len` bytes.
///
/// # Errors
/// If there is not the memory.
pub fn resize(what: &'static str, len: usize, out: &mut Vec<u8>) -> Result<(), CacheError> {
    out.clear();
    let reserved = out.try_reserve_exact(len);
    reserved.map_err(|_| CacheError::Allocation { what, count: 1, bytes: len as u128 })?;
    out.resize(len, 0);
    Ok(())
}

fn read<'a>(parts: impl Iterator<Item = &'a mut Entries>, index: usize, out: &mut [u8]) {
    let mut rest = out.as_chunks_mut().0;
    for part in parts {
        let bytes;
        (bytes, rest) = rest.split_at_mut(part.len);
        for (bytes, value) in bytes.iter_mut().zip(part.entry(index)) {
            *bytes = value.to_le_bytes();
        }
    }
}

fn write<'a>(parts: impl Iterator<Item = &'a mut Entries>, index: usize, bytes: &[u8]) {
    let mut rest = bytes.as_chunks().0;
    for part in parts {
        let bytes;
        (bytes, rest) = rest.split_at(part.len);
        for (value, bytes) in part.entry_mut(index).iter_mut().zip(bytes) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: CacheSize = CacheSize { pages: 2, slots: 2 };

    fn numbered(drafting: bool) -> HostCache {
        let shape = Shape::demo();
        let mut cache = HostCache::new(&shape, SIZE).unwrap();
        if drafting {
            cache.add_drafting(&shape).unwrap();
        }
        // Every bit pattern counts, those of NaN included.
        let slots = cache.slot_parts().flat_map(|part| part.iter_mut());
        slots
            .enumerate()
            .for_each(|(i, v)| *v = f32::from_bits(0x9e37_79b9_u32.wrapping_mul(i as u32)));
        let pages = cache.page_parts().flat_map(|part| part.iter_mut());
        pages.enumerate().for_each(|(i, v)| *v = -(i as f32));
        cache
    }

    #[test]
    fn slots_and_pages_move_as_bytes_of_the_same_bits() {
        for drafting in [false, true] {
            let mut from = numbered(drafting);
            let mut to = HostCache::new(&Shape::demo(), SIZE).unwrap();
            if drafting {
                to.add_drafting(&Shape::demo()).unwrap();
            }
            let (mut bytes, mut again) = (vec![7; 3], vec![]);
            from.read_slot(1, &mut bytes).unwrap();
            assert_eq!(bytes.len(), from.slot_bytes());
            to.write_slot(0, &bytes).unwrap();
            to.read_slot(0, &mut again).unwrap();
            assert_eq!(bytes, again);
            to.copy_slot(0, 1);
            to.clear_slot(0);
            to.read_slot(1, &mut again).unwrap();
            assert_eq!(bytes, again);
            to.read_slot(0, &mut again).unwrap();
            assert!(again.iter().all(|&byte| byte == 0));

            from.read_page(1, &mut bytes).unwrap();
            assert_eq!(bytes.len(), from.page_bytes());
            to.write_page(1, &bytes).unwrap();
            to.copy_page(1, 0);
            to.read_page(0, &mut again).unwrap();
            assert_eq!(bytes, again);
        }
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is meant")]
    fn what_is_not_free_stays_when_memory_is_given_back() {
        let shape = Shape::full(4);
        let size = CacheSize { pages: 4, slots: 3 };
        let mut cache = HostCache::new(&shape, size).unwrap();
        cache.slot_parts().for_each(|part| part.fill(1.5));
        cache.page_parts().for_each(|part| part.fill(1.5));
        let (slot_bytes, page_bytes) = (cache.slot_bytes() as u64, cache.page_bytes() as u64);
        let free = FreeState { pages: vec![0..1, 2..4], slots: vec![1..3] };
        let given = cache.give_back(&free).unwrap();
        // At these widths a page or slot of a layer is whole pages of the system's; not so on every system.
        if cfg!(target_os = "linux") {
            assert_eq!(given, 3 * page_bytes + 2 * slot_bytes);
        }
        let mut bytes = vec![];
        let is = |bytes: &[u8], value: f32| {
            bytes.as_chunks::<4>().0.iter().all(|chunk| f32::from_le_bytes(*chunk) == value)
        };
        cache.read_page(1, &mut bytes).unwrap();
        assert!(is(&bytes, 1.5));
        cache.read_slot(0, &mut bytes).unwrap();
        assert!(is(&bytes, 1.5));
        // What was given back can be used: written, copied to and cleared.
        cache.copy_page(1, 3);
        cache.read_page(3, &mut bytes).unwrap();
        assert!(is(&bytes, 1.5));
        cache.copy_slot(0, 2);
        cache.read_slot(2, &mut bytes).unwrap();
        assert!(is(&bytes, 1.5));
        cache.clear_slot(1);
        cache.read_slot(1, &mut bytes).unwrap();
        assert!(is(&bytes, 0.0));
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is meant")]
    fn nothing_is_given_back_of_what_is_not_there() {
        let mut cache = numbered(true);
        let missing = FreeState { pages: vec![0..1, 1..3], slots: vec![] };
        let error = CacheError::Missing { what: "page", index: 2, count: 2 };
        assert_eq!(cache.give_back(&missing), Err(error));
        let missing = FreeState { pages: vec![0..1], slots: vec![2..3] };
        let error = CacheError::Missing { what: "slot", index: 2, count: 2 };
        assert_eq!(cache.give_back(&missing), Err(error));
        let none = FreeState { pages: vec![5..5], slots: vec![] };
        assert_eq!(cache.give_back(&none), Ok(0));
        let mut bytes = vec![];
        cache.read_page(0, &mut bytes).unwrap();
        let mut unchanged = numbered(true);
        let mut expected = vec![];
        unchanged.read_page(0, &mut expected).unwrap();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn slots_and_pages_take_what_the_budget_counts() {
        use calla_model::budget::*;
        for shape in [Shape::demo(), Shape::full(4)] {
            let size = CacheSize { pages: 1, slots: 1 };
            let mut cache = HostCache::new(&shape, size).unwrap();
            let mut slot = recurrent_state_bytes(&shape, 4);
            let mut page = kv_bytes(&shape, PAGE_TOKENS, 4);
            assert_eq!((cache.slot_bytes() as u64, cache.page_bytes() as u64), (slot, page));
            cache.add_drafting(&shape).unwrap();
            slot += draft_state_bytes(&shape);
            page += draft_kv_bytes(&shape, PAGE_TOKENS, 4);
            assert_eq!((cache.slot_bytes() as u64, cache.page_bytes() as u64), (slot, page));
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let shape = Shape::demo();
        let mut cache = HostCache::new(&shape, SIZE).unwrap();
        let mut bytes = vec![];
        let missing = CacheError::Missing { what: "slot", index: 2, count: 2 };
        assert_eq!(cache.read_slot(2, &mut bytes), Err(missing));
        cache.read_page(0, &mut bytes).unwrap();
        bytes.pop();
        assert!(matches!(
            cache.write_page(0, &bytes),
            Err(CacheError::Length { what: "page", .. })
        ));
        assert!(matches!(cache.write_slot(0, &[]), Err(CacheError::Length { what: "slot", .. })));
        // Another setting takes other bytes.
        let plain = cache.slot_bytes();
        cache.add_drafting(&shape).unwrap();
        assert_eq!(cache.slot_bytes(), plain + 4 * shape.hidden);
    }

    /// Beyond what can be counted, and beyond what any machine has.
    const ABSURD: [usize; 2] = [usize::MAX, 1 << 50];

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let shape = Shape::demo();
        for count in ABSURD {
            for (what, size) in [
                (PAGES, CacheSize { pages: count, slots: 1 }),
                (SLOTS, CacheSize { pages: 1, slots: count }),
            ] {
                let error = HostCache::new(&shape, size).unwrap_err();
                assert!(
                    matches!(error, CacheError::Allocation { what: w, count: c, .. } if w == what && c == count),
                    "{error}"
                );
                assert!(error.to_string().contains("ask for a shorter context"), "{error}");
            }
        }
        let mut bytes = vec![];
        let error = resize("slots", isize::MAX as usize, &mut bytes).unwrap_err();
        assert!(matches!(error, CacheError::Allocation { what: "slots", count: 1, .. }), "{error}");
    }

    #[test]
    fn drafting_that_does_not_fit_leaves_the_cache_as_it_was() {
        // Without attention layers, pages take nothing before there is the draft layer's.
        let layers = vec![LayerKind::DeltaNet];
        let shape = Shape { layers, ..Shape::demo() };
        for pages in ABSURD {
            let mut cache = HostCache::new(&shape, CacheSize { pages, slots: 1 }).unwrap();
            let error = cache.add_drafting(&shape).unwrap_err();
            assert!(matches!(error, CacheError::Allocation { what: PAGES, .. }), "{error}");
            assert!(cache.attention.is_empty() && cache.hidden.is_none());
        }
    }
}
