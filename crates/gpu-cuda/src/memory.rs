//! Buffers on the GPU.

use cudarc::driver::CudaContext;
use cudarc::driver::result::{DriverError, free_sync, malloc_sync};
use cudarc::driver::sys::CUdeviceptr;
use std::sync::Arc;

/// Memory that is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    context: Arc<CudaContext>,
    pub(crate) address: CUdeviceptr,
    /// Bytes, a multiple of 16.
    pub(crate) len: u64,
}

impl Buffer {
    /// `len` bytes of undefined values. The context is the thread's.
    pub(crate) fn new(context: &Arc<CudaContext>, len: u64) -> Result<Self, DriverError> {
        // SAFETY: nothing reads the memory before it is written, or what it reads is undefined by contract.
        let address = unsafe { malloc_sync(usize::try_from(len).unwrap_or(usize::MAX)) }?;
        Ok(Self { context: Arc::clone(context), address, len })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: it was allocated here and is freed once; freeing waits for kernels that use it. Where the GPU was lost
            // this fails, and the memory went with it.
            let _ = unsafe { free_sync(self.address) };
        }
    }
}
