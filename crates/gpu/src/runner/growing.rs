//! A buffer of a device that grows when more is asked of it.

use super::plans::Plans;
use crate::device::{Device, DeviceError};
use crate::tensor::BufferId;

/// A buffer for one purpose, without content that would have to be kept.
#[derive(Debug)]
pub(super) struct Growing {
    label: &'static str,
    buffer: Option<(BufferId, u64)>,
}

/// Most bytes that are held in reserve.
const RESERVE_MAX: u64 = 1 << 20;

impl Growing {
    pub(super) fn new(label: &'static str) -> Self {
        Self { label, buffer: None }
    }

    /// Bytes that it has now.
    pub(super) fn bytes(&self) -> u64 {
        self.buffer.map_or(0, |(_, bytes)| bytes)
    }

    /// The buffer that it has now.
    pub(super) fn id(&self) -> Option<BufferId> {
        self.buffer.map(|(id, _)| id)
    }

    /// The buffer and its size, of at least `bytes`. Plans that bind the one before are forgotten.
    ///
    /// # Errors
    /// If the device has not the memory; there is no buffer then.
    pub(super) fn at_least(
        &mut self,
        device: &mut dyn Device,
        plans: &mut Plans,
        bytes: u64,
    ) -> Result<(BufferId, u64), DeviceError> {
        if let Some(buffer) = self.buffer.filter(|&(_, held)| held >= bytes) {
            return Ok(buffer);
        }
        plans.clear(device);
        if let Some((old, _)) = self.buffer.take() {
            device.release(old)?;
        }
        // With a reserve, so that steps which grow row by row do not end in a new buffer each.
        let bytes = (bytes + (bytes / 2).min(RESERVE_MAX)).next_multiple_of(256).max(256);
        let buffer = (device.allocate(self.label, bytes)?, bytes);
        Ok(*self.buffer.insert(buffer))
    }
}
