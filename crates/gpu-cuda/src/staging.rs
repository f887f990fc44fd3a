//! Host memory that the GPU reads and writes by itself, between the program's and its own.

use cudarc::driver::CudaContext;
use cudarc::driver::result::{DriverError, free_host, malloc_host};
use std::sync::Arc;

/// Pinned memory for copies that nobody waits for.
#[derive(Debug)]
pub(crate) struct Staging {
    context: Arc<CudaContext>,
    start: *mut u8,
    len: usize,
    /// Bytes that copies under way may use.
    used: usize,
}

// SAFETY: nothing else has the memory, and a thread that copies has made the context its own.
unsafe impl Send for Staging {}

impl Staging {
    /// `len` bytes. The context is the thread's.
    pub(crate) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        // SAFETY: what is read of it was written before.
        let start = unsafe { malloc_host(len, 0) }?.cast();
        Ok(Self { context: Arc::clone(context), start, len, used: 0 })
    }

    /// Bytes that it has.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Says that no copy is under way any more.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Room for a copy of `len` bytes, until the next [`Staging::clear`]; `None` if that has to come first.
    pub(crate) fn take(&mut self, len: usize) -> Option<*mut u8> {
        let end = self.used.checked_add(len).filter(|&end| end <= self.len)?;
        // SAFETY: it lies within the memory.
        let place = unsafe { self.start.add(self.used) };
        self.used = end.next_multiple_of(64).min(self.len);
        Some(place)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: it was allocated here and is freed once, after the device has waited for its stream.
            let _ = unsafe { free_host(self.start.cast()) };
        }
    }
}
