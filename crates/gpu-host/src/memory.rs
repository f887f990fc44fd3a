//! The buffers: one file in memory that this process and the executor both map, so that nothing is copied.

use crate::error::{Kind, io_error};
use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::{io, ops};

/// Address space that is set aside; only what is allocated takes memory.
pub(crate) const RESERVED_BYTES: u64 = 1 << 38;
/// Buffers start at multiples of this and have at least as much between them.
const GAP: u64 = 256;

/// All buffers, one after the other.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    map: MmapMut,
    used: u64,
    buffers: Vec<ops::Range<u64>>,
}

impl Memory {
    pub(crate) fn new() -> Result<Self, Kind> {
        // SAFETY: the name is a C string, and the descriptor that comes back is nobody else's. It stays open across
        // `exec`: that is how the executor gets it.
        let fd = unsafe { libc::memfd_create(c"calla-gpu-buffers".as_ptr(), 0) };
        if fd < 0 {
            return Err(io_error("make a file in memory")(io::Error::last_os_error()));
        }
        // SAFETY: `fd` was just opened, and nothing else owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let len = usize::try_from(RESERVED_BYTES).unwrap_or(usize::MAX);
        // SAFETY: only this device and its executor have the file. Pages beyond its end are never touched, as `allocate`
        // lengthens the file first and it never shrinks; the executor writes only while `run` waits for it.
        let map = unsafe { MmapOptions::new().len(len).no_reserve_swap().map_mut(&file) };
        let map = map.map_err(io_error("map the buffers"))?;
        Ok(Self { file, map, used: 0, buffers: vec![] })
    }

    /// Index of a new buffer of undefined values, which read as NaN.
    pub(crate) fn allocate(&mut self, bytes: u64) -> io::Result<u32> {
        let start = self.used;
        let len = bytes.checked_next_multiple_of(16).ok_or(io::ErrorKind::OutOfMemory)?;
        let end = start
            .checked_add(len)
            .and_then(|end| end.checked_add(GAP)?.checked_next_multiple_of(GAP))
            .filter(|&end| end <= RESERVED_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        self.file.set_len(end)?;
        self.used = end;
        self.map[start as usize..(start + len) as usize].fill(0xff);
        self.buffers.push(start..start + len);
        Ok(self.buffers.len() as u32 - 1)
    }

    /// Where a buffer lies in the file.
    pub(crate) fn buffer(&self, index: u32) -> Option<ops::Range<u64>> {
        self.buffers.get(index as usize).cloned()
    }

    /// Whether something was written between a buffer and the next one. Puts it right.
    pub(crate) fn strayed_after(&mut self, index: u32) -> bool {
        let Some(buffer) = self.buffers.get(index as usize) else { return false };
        let next = self.buffers.get(index as usize + 1).map_or(self.used, |next| next.start);
        let gap = &mut self.map[buffer.end as usize..next as usize];
        let strayed = gap.iter().any(|&byte| byte != 0);
        gap.fill(0);
        strayed
    }

    /// Bytes of the file.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Bytes of the file, as [`Memory::buffer`] gives them.
    pub(crate) fn bytes(&mut self, range: ops::Range<u64>) -> &mut [u8] {
        &mut self.map[range.start as usize..range.end as usize]
    }
}
