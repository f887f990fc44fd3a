//! The buffers: one file in memory that this process and the executor both map, so that nothing is copied.

use crate::error::{Kind, io_error};
use calla_gpu::{BufferId, Range, check};
use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
#[cfg(target_os = "linux")]
use std::os::fd::{FromRawFd as _, OwnedFd};
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
    buffers: Vec<Buffer>,
}

#[derive(Debug)]
struct Buffer {
    place: ops::Range<u64>,
    released: bool,
}

impl Memory {
    pub(crate) fn new() -> Result<Self, Kind> {
        let file = memory_file().map_err(io_error("make a file in memory"))?;
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
        self.buffers.push(Buffer { place: start..start + len, released: false });
        Ok(self.buffers.len() as u32 - 1)
    }

    /// Gives the memory of a buffer back. Its place in the file stays its own, so that nothing else is found there.
    pub(crate) fn release(&mut self, index: u32) -> Result<(), String> {
        let place = self.buffer(index)?;
        punch_hole(&self.file, &place).map_err(|error| error.to_string())?;
        self.buffers[index as usize].released = true;
        Ok(())
    }

    /// Where a buffer lies in the file.
    pub(crate) fn buffer(&self, index: u32) -> Result<ops::Range<u64>, String> {
        match self.buffers.get(index as usize) {
            None => Err(format!("there is no buffer {index}")),
            Some(buffer) if buffer.released => Err(format!("buffer {index} was released")),
            Some(buffer) => Ok(buffer.place.clone()),
        }
    }

    /// Bytes of a buffer.
    pub(crate) fn len(&self, id: BufferId) -> Result<u64, String> {
        self.buffer(id.0).map(|place| place.end - place.start)
    }

    /// Where a range lies in the file.
    pub(crate) fn place(&self, range: Range) -> Result<ops::Range<u64>, String> {
        let id = check::range(range, &|id| self.len(id))?;
        let start = self.buffer(id.0)?.start + range.start;
        Ok(start..start + range.len)
    }

    /// Whether something was written between a buffer and the next one. Puts it right.
    pub(crate) fn strayed_after(&mut self, index: u32) -> bool {
        let Some(buffer) = self.buffers.get(index as usize) else { return false };
        let next = self.buffers.get(index as usize + 1).map_or(self.used, |next| next.place.start);
        let gap = &mut self.map[buffer.place.end as usize..next as usize];
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

/// A file without a name that is nowhere but in memory.
#[cfg(target_os = "linux")]
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string, and the descriptor that comes back is nobody else's. It stays open across `exec`: that
    // is how the executor gets it.
    let fd = unsafe { libc::memfd_create(c"calla-gpu-buffers".as_ptr(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Gives the memory of a part of the file back.
#[cfg(target_os = "linux")]
fn punch_hole(file: &File, place: &ops::Range<u64>) -> io::Result<()> {
    let (offset, len) = (place.start.cast_signed(), (place.end - place.start).cast_signed());
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open. What the hole takes away reads as zeros; the caller holds no reference to it, and the
    // executor touches buffers only while `run` waits for it.
    if len > 0 && unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Kernels are run on Linux only, and the compiler says so before this is asked for.
#[cfg(not(target_os = "linux"))]
fn memory_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn punch_hole(_: &File, _: &ops::Range<u64>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn what_is_released_takes_no_memory() {
        let mut memory = Memory::new().unwrap();
        let sizes = [100, 1 << 20, 0, 200];
        let buffers = sizes.map(|bytes| memory.allocate(bytes).unwrap());
        let taken = |memory: &Memory| memory.file.metadata().unwrap().blocks() * 512;
        let before = taken(&memory);
        memory.release(buffers[1]).unwrap();
        memory.release(buffers[2]).unwrap();
        // All but the pages that it has in common with its neighbours.
        assert!(before - taken(&memory) >= (1 << 20) - 2 * 4096);
        for index in [0, 3] {
            let place = memory.buffer(buffers[index]).unwrap();
            assert!(memory.bytes(place).iter().all(|&byte| byte == 0xff));
            assert!(!memory.strayed_after(buffers[index]));
        }
        assert!(memory.release(buffers[2]).unwrap_err().contains("was released"));
    }
}
