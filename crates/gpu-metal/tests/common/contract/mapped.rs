//! Buffers that are pages of mapped files: Metal's rules for them, and that nobody writes them.

use super::{Buffer, Plant, World};
use crate::common::declared::Slot;
use calla_gpu::MappedPages;
use calla_msl::Memory;
use std::sync::{Arc, Weak};

/// Offsets in a file: Metal asks for as much, and scales are used from there on.
pub(super) const ALIGNMENT: u64 = 4;
/// Offsets of packed integers: kernels load eight bytes at a time.
const PACKED_ALIGNMENT: u64 = 8;

/// An `MTLBuffer` as the driver holds it. As with Metal's own, it is what keeps the pages of a file mapped.
pub struct Handle {
    pub index: usize,
    _pages: Option<Arc<MappedPages>>,
}

impl Handle {
    pub(super) fn of(index: usize) -> Self {
        Self { index, _pages: None }
    }
}

/// Pages that a buffer lies in.
pub(super) struct Mapped {
    /// What holds them, if anything still does.
    pages: Weak<MappedPages>,
}

impl Buffer {
    /// Whether it was released, or its file is no longer mapped.
    pub(super) fn is_gone(&self) -> bool {
        let is_unmapped = |mapped: &Mapped| mapped.pages.strong_count() == 0;
        self.released || self.mapped.as_ref().is_some_and(is_unmapped)
    }

    /// What is wrong with binding it, if it is a file, from `offset` on.
    pub(super) fn misused(&self, slot: &Slot, offset: u64) -> Option<String> {
        self.mapped.as_ref()?;
        if slot.memory == Memory::Write {
            return Some(format!("writes {}, which is a mapped file", self.label));
        }
        let is_aligned = !slot.is_uint || offset.is_multiple_of(PACKED_ALIGNMENT);
        (!is_aligned)
            .then(|| format!("starts at {offset}, not at a multiple of {PACKED_ALIGNMENT}"))
    }
}

impl World {
    pub(super) fn buffer_no_copy(
        &mut self,
        label: &str,
        pages: MappedPages,
        most: u64,
    ) -> Option<Handle> {
        if self.refuses_pages {
            return None;
        }
        let page = self.page_bytes.unwrap_or(pages.page_bytes());
        let (mut start, mut bytes) = (pages.as_ptr().addr() as u64, pages.len());
        let end = start + bytes;
        // One counter for each, so that all count these calls.
        if self.is_planted("misaligned pages", Plant::PagesMisaligned) {
            (start, bytes) = (start + 256, bytes - 256);
        }
        if self.is_planted("partial pages", Plant::PagesPartial) {
            bytes = pages.file_bytes().len() as u64 - 1;
        }
        if self.is_planted("pages beyond", Plant::PagesBeyondFile) {
            bytes += page;
        }
        if !start.is_multiple_of(page) {
            self.violation(format!("{label}: pages from {start:#x} on, not from where one starts"));
        }
        if bytes == 0 || bytes > most || !bytes.is_multiple_of(page) {
            self.violation(format!("{label}: {bytes} bytes, not of whole pages of {page}"));
        }
        if start + bytes > end {
            self.violation(format!(
                "{label}: {} bytes behind the file's pages",
                start + bytes - end
            ));
        }
        let index = self.buffers.len();
        let pages = Arc::new(pages);
        let mapped = Some(Mapped { pages: Arc::downgrade(&pages) });
        self.buffers.push(Buffer { label: label.to_owned(), bytes, mapped, ..Buffer::default() });
        let is_lost = self.is_planted("unmapped", Plant::PagesUnmapped);
        Some(Handle { index, _pages: (!is_lost).then_some(pages) })
    }

    /// Requires that files stayed mapped while a command buffer used them.
    pub(super) fn require_mapped(&mut self, commands: usize) {
        let uses = self.commands[commands].uses.iter().map(|&buffer| &self.buffers[buffer]);
        let gone = uses.filter(|buffer| buffer.mapped.is_some() && buffer.is_gone());
        let gone: Vec<String> = gone.map(|buffer| buffer.label.clone()).collect();
        let label = self.commands[commands].label.clone();
        for buffer in gone {
            self.violation(format!("{buffer} was unmapped while {label} ran"));
        }
    }

    /// Buffers that are pages of files, and those that are not.
    pub fn mapped_and_own(&self) -> (usize, usize) {
        let mapped = self.buffers.iter().filter(|buffer| buffer.mapped.is_some()).count();
        (mapped, self.buffers.len() - mapped)
    }

    /// A buffer that is a file.
    fn a_file(&self) -> usize {
        self.buffers.iter().position(|buffer| buffer.mapped.is_some()).expect("a mapped file")
    }

    /// Binds a file where the dispatch that was described writes first.
    pub(super) fn bind_file_to_write(&mut self, encoder: usize) {
        let file = self.a_file();
        let described = self.encoders[encoder].described.as_ref().expect("a dispatch");
        let written = described.bindings.iter().position(|binding| binding.access.writes());
        let index = written.expect("each dispatch writes something") as u32;
        self.encoders[encoder].buffers.insert(index, (file, 0));
    }

    pub(super) fn write(&mut self, buffer: usize, offset: u64, bytes: &[u8]) {
        let is_planted = self.is_planted("write", Plant::FileWritten);
        let buffer = if is_planted { self.a_file() } else { buffer };
        self.touch("a write", buffer, offset, bytes.len());
        let is_kept = self.is_written_kept;
        let found = &mut self.buffers[buffer];
        if found.mapped.is_some() {
            let text = format!("a write of {}, which is a mapped file", found.label);
            return self.violation(text);
        }
        if is_kept {
            found.written.resize(found.bytes as usize, 0);
            found.written[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Reads a file, what was written, or what a test has put there; zeros elsewhere.
    pub(super) fn read(&mut self, buffer: usize, offset: u64, bytes: &mut [u8]) {
        self.touch("a read", buffer, offset, bytes.len());
        bytes.fill(0);
        let found = &self.buffers[buffer];
        let pages = found.mapped.as_ref().and_then(|mapped| mapped.pages.upgrade());
        if let Some(contents) = self.contents.get(&found.label) {
            return bytes.copy_from_slice(&contents[..bytes.len()]);
        }
        let all = pages.as_ref().map_or(&found.written[..], |pages| pages.file_bytes());
        let there = all.get(offset as usize..).unwrap_or_default();
        let len = there.len().min(bytes.len());
        bytes[..len].copy_from_slice(&there[..len]);
    }
}
