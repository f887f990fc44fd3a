//! A device that never fails: it keeps the first error of the one behind it, and does nothing from then on.

use calla_gpu::{BufferId, Device, DeviceError, Dispatch, Range};

/// So that making inputs and reading results need not ask after each step.
pub(crate) struct Lab<'a> {
    device: &'a mut dyn Device,
    failed: Option<DeviceError>,
    buffers: Vec<BufferId>,
    entries: Vec<&'static str>,
    /// Buffers that were asked for after the failure: each has a number of its own from the last one down, as kernels are
    /// still described with them, and parts of two buffers never overlap.
    absent: u32,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(device: &'a mut dyn Device) -> Self {
        Self { device, failed: None, buffers: vec![], entries: vec![], absent: 0 }
    }

    /// Gives all buffers back: which entry points ran, and the first error if there was one.
    pub(crate) fn end(mut self) -> (Vec<&'static str>, Result<(), DeviceError>) {
        for buffer in std::mem::take(&mut self.buffers) {
            if let Err(error) = self.device.release(buffer) {
                self.failed.get_or_insert(error);
            }
        }
        (self.entries, self.failed.map_or(Ok(()), Err))
    }

    /// Asks the device, unless it has failed.
    fn ask<T>(
        &mut self,
        otherwise: T,
        ask: impl FnOnce(&mut dyn Device) -> Result<T, DeviceError>,
    ) -> T {
        if self.failed.is_some() {
            return otherwise;
        }
        ask(self.device).unwrap_or_else(|error| {
            self.failed = Some(error);
            otherwise
        })
    }
}

impl Device for Lab<'_> {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        if let Some(buffer) = self.ask(None, |device| device.allocate(label, bytes).map(Some)) {
            self.buffers.push(buffer);
            return Ok(buffer);
        }
        self.absent += 1;
        Ok(BufferId(u32::MAX - self.absent))
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.buffers.retain(|&other| other != buffer);
        self.ask((), |device| device.release(buffer));
        Ok(())
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.ask((), |device| device.write(range, bytes));
        Ok(())
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.ask((), |device| device.read(range, bytes));
        Ok(())
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        for dispatch in dispatches {
            if !self.entries.contains(&dispatch.entry) {
                self.entries.push(dispatch.entry);
            }
        }
        self.ask((), |device| device.run(dispatches, stages));
        Ok(())
    }
}
