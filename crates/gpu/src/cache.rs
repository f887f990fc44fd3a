//! State of sequences on a device: a pool of KV pages and slots of recurrent state.
//!
//! A step never writes a slot that it reads, so each sequence's slot is one of more *physical* slots, of which the
//! spare ones receive what the step makes of its sequences. Where the step succeeds they take the place of those that
//! it read; where it fails nothing is lost.

mod moves;
mod storage;

pub use moves::SlotMoves;

use crate::copy::{clear, copy};
use crate::device::{Device, DeviceError};
use crate::dispatch::Dispatch;
use crate::state::{DeltaSlots, KvPool};
use crate::tensor::{Range, Tensor};
use calla_model::Shape;
use calla_model::budget::{kv_bytes, recurrent_state_bytes};
use calla_model::shape::PAGE_TOKENS;
use calla_ops::cache::{check_index, check_len, resize};
use calla_ops::{CacheError, CacheSize, Span};
use moves::Slots;
use storage::Storage;

/// Why state could not be moved, or a step not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// There is no such page or slot, or not the memory for its bytes, or they are not as many as it takes.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A step has more sequences than there are spare slots.
    #[error(
        "a step has {spans} sequences, but there are spare slots of recurrent state for {spares}; run it in parts, \
         or hold more spare slots"
    )]
    Spares {
        /// Sequences of the step.
        spans: usize,
        /// Spare slots.
        spares: usize,
    },
}

/// State of sequences: what `calla_ops::HostCache` holds, with keys, values and windows in bf16.
///
/// Methods take slots as the engine counts them, `0 .. size.slots`; tensors have physical ones.
#[derive(Debug)]
pub struct DeviceCache {
    size: CacheSize,
    storage: Storage,
    slots: Slots,
}

impl DeviceCache {
    /// Zeroed state of `size`, for steps of at most `spares` sequences. `drafting` adds what drafts need: a KV pool for
    /// the draft layer and a hidden row for each slot.
    ///
    /// # Errors
    /// If the device has not the memory, or failed. It then holds nothing more than before.
    pub fn new(
        device: &mut dyn Device,
        shape: &Shape,
        size: CacheSize,
        spares: usize,
        drafting: bool,
    ) -> Result<Self, DeviceError> {
        let physical = size.slots.saturating_add(spares);
        let pages = counted("KV pages", size.pages, kv_bytes(shape, PAGE_TOKENS, 2))?;
        let physical = counted("slots", physical, recurrent_state_bytes(shape, 2))?;
        let mut allocated = vec![];
        let storage = Storage::new(shape, pages, physical, drafting, &mut |label, bytes| {
            let buffer = device.allocate(label, bytes)?;
            allocated.push(buffer);
            Ok(buffer)
        });
        let cleared = storage.and_then(|storage| {
            let clears: Vec<Dispatch> = storage.tensors().flat_map(clears).collect();
            device.run(&clears, &[clears.len()])?;
            Ok(Self { size, storage, slots: Slots::new(size.slots, spares) })
        });
        if cleared.is_err() {
            // What failed first says more than one of these could.
            allocated.into_iter().for_each(|buffer| drop(device.release(buffer)));
        }
        cleared
    }

    /// What it was made for.
    #[must_use]
    pub fn size(&self) -> CacheSize {
        self.size
    }

    /// KV pages per attention layer; when drafting, the draft layer's are the last.
    #[must_use]
    pub fn attention(&self) -> &[KvPool] {
        &self.storage.attention
    }

    /// Recurrent state per DeltaNet layer, in physical slots.
    #[must_use]
    pub fn delta(&self) -> &[DeltaSlots] {
        &self.storage.delta
    }

    /// When drafting: the last row of each sequence after the main model's last norm, f32 `[physical slots, hidden]`,
    /// zero where there is none.
    #[must_use]
    pub fn kept(&self) -> Option<Tensor> {
        self.storage.kept
    }

    /// Bytes of all pages and slots, the spare ones too.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.storage.tensors().map(|tensor| tensor.range.len).sum()
    }

    /// Most sequences of a step.
    #[must_use]
    pub fn max_spans(&self) -> usize {
        self.slots.spares()
    }

    /// Where the spans of one [`calla_ops::Batch`] read and write recurrent state.
    ///
    /// Nothing changes until [`DeviceCache::commit`], so a step that failed leaves all sequences as they were. Only its
    /// checkpoints are lost: they are written in place, as no step reads what they held before.
    ///
    /// # Errors
    /// If a slot does not exist, or there are more spans than spare slots.
    pub fn begin(&self, spans: &[Span]) -> Result<SlotMoves, StateError> {
        self.slots.begin(spans)
    }

    /// The state that a step wrote is its sequences' from now on.
    ///
    /// Of decode steps that followed one another without the host ([`crate::advance`]), that is so after an odd number
    /// of them; after an even number it is where it was.
    ///
    /// # Panics
    /// If other moves have been committed since these were begun.
    pub fn commit(&mut self, moves: SlotMoves) {
        self.slots.commit(moves);
    }

    /// Forgets the recurrent state of a slot. The dispatches do not depend on one another.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn clear_slot(&self, slot: usize) -> Result<Vec<Dispatch>, CacheError> {
        let slot = self.slot(slot)?;
        Ok(self.storage.slot_parts().map(|part| clear(entry(part, slot))).collect())
    }

    /// Makes the recurrent state of one slot a copy of another's. The dispatches do not depend on one another.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn copy_slot(&self, from: usize, to: usize) -> Result<Vec<Dispatch>, CacheError> {
        let (from, to) = (self.slot(from)?, self.slot(to)?);
        Ok(copies(self.storage.slot_parts(), from, to))
    }

    /// Makes one KV page a copy of another. The dispatches do not depend on one another.
    ///
    /// # Errors
    /// If there is no such page.
    pub fn copy_page(&self, from: usize, to: usize) -> Result<Vec<Dispatch>, CacheError> {
        let (from, to) = (self.page(from)?, self.page(to)?);
        Ok(copies(self.storage.page_parts(), from, to))
    }

    /// The hidden row of a slot: a row of [`DeviceCache::kept`], or nothing without drafts.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn kept_row(&self, slot: usize) -> Result<Option<Range>, CacheError> {
        let slot = self.slots.physical(slot)?;
        Ok(self.storage.kept.map(|kept| entry(kept, slot.into())))
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        bytes_of(self.storage.slot_parts())
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        bytes_of(self.storage.page_parts())
    }

    /// Replaces `out` by the bytes of a slot, little-endian: of each DeltaNet layer the state `[value heads, 128 (key),
    /// 128 (value)]` in f32 and the window `[3, channels]` in bf16, then the hidden row in f32 when drafting.
    ///
    /// # Errors
    /// If there is no such slot, not the memory for its bytes, or the device failed.
    pub fn read_slot(
        &self,
        device: &mut dyn Device,
        slot: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), StateError> {
        let slot = self.slot(slot)?;
        resize("slots", self.slot_bytes(), out)?;
        Ok(read(device, self.storage.slot_parts(), slot, out)?)
    }

    /// Sets a slot to what [`DeviceCache::read_slot`] gave.
    ///
    /// # Errors
    /// If there is no such slot, the bytes are not as many as a slot takes, or the device failed.
    pub fn write_slot(
        &self,
        device: &mut dyn Device,
        slot: usize,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let slot = self.slot(slot)?;
        check_len("slot", self.slot_bytes(), bytes)?;
        Ok(write(device, self.storage.slot_parts(), slot, bytes)?)
    }

    /// Replaces `out` by the bytes of a page, little-endian: of each attention layer keys and values `[kv heads, 64,
    /// 256]` in bf16.
    ///
    /// # Errors
    /// If there is no such page, not the memory for its bytes, or the device failed.
    pub fn read_page(
        &self,
        device: &mut dyn Device,
        page: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), StateError> {
        let page = self.page(page)?;
        resize("KV pages", self.page_bytes(), out)?;
        Ok(read(device, self.storage.page_parts(), page, out)?)
    }

    /// Sets a page to what [`DeviceCache::read_page`] gave.
    ///
    /// # Errors
    /// If there is no such page, the bytes are not as many as a page takes, or the device failed.
    pub fn write_page(
        &self,
        device: &mut dyn Device,
        page: usize,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let page = self.page(page)?;
        check_len("page", self.page_bytes(), bytes)?;
        Ok(write(device, self.storage.page_parts(), page, bytes)?)
    }

    /// Where a slot lies in its tensors.
    fn slot(&self, slot: usize) -> Result<u64, CacheError> {
        self.slots.physical(slot).map(u64::from)
    }

    /// Where a page lies in its tensors.
    fn page(&self, page: usize) -> Result<u64, CacheError> {
        check_index("page", page, self.size.pages)?;
        Ok(page as u64)
    }
}

/// A number of pages or slots, which take `bytes` each, as kernels count them.
fn counted(what: &str, count: usize, bytes: u64) -> Result<u32, DeviceError> {
    let (label, bytes) = (format!("{count} {what}"), bytes.saturating_mul(count as u64));
    u32::try_from(count).map_err(|_| DeviceError::OutOfMemory { device: "GPU", label, bytes })
}

/// Most bytes that one dispatch clears.
const CLEAR_BYTES: usize = 1 << 30;

fn clears(tensor: Tensor) -> impl Iterator<Item = Dispatch> {
    let Range { place, start, len } = tensor.range;
    (0..len).step_by(CLEAR_BYTES).map(move |at| {
        let len = (len - at).min(CLEAR_BYTES as u64);
        clear(Range { place, start: start + at, len })
    })
}

/// One page or slot of a layer's part.
fn entry(part: Tensor, index: u64) -> Range {
    let len = part.row_bytes();
    Range { place: part.range.place, start: part.range.start + index * len, len }
}

fn copies(parts: impl Iterator<Item = Tensor>, from: u64, to: u64) -> Vec<Dispatch> {
    // A copy onto itself is none.
    let parts = parts.filter(|_| from != to);
    parts.map(|part| copy(entry(part, from), entry(part, to))).collect()
}

fn bytes_of(parts: impl Iterator<Item = Tensor>) -> usize {
    parts.map(|part| part.row_bytes() as usize).sum()
}

fn read(
    device: &mut dyn Device,
    parts: impl Iterator<Item = Tensor>,
    index: u64,
    out: &mut [u8],
) -> Result<(), DeviceError> {
    let mut rest = out;
    for part in parts {
        let bytes;
        (bytes, rest) = rest.split_at_mut(part.row_bytes() as usize);
        device.read(entry(part, index), bytes)?;
    }
    Ok(())
}

fn write(
    device: &mut dyn Device,
    parts: impl Iterator<Item = Tensor>,
    index: u64,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let mut rest = bytes;
    for part in parts {
        let bytes;
        (bytes, rest) = rest.split_at(part.row_bytes() as usize);
        device.write(entry(part, index), bytes)?;
    }
    Ok(())
}
