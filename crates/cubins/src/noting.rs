//! A device that notes which pipelines are asked of it.

use calla_gpu::{BufferId, Described, Device, DeviceError, Dispatch, Range};

/// Has no memory: what is written is forgotten, what is read is 0, what runs does nothing.
pub struct Blank(Described);

impl Blank {
    /// Without buffers yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Described::new(false))
    }
}

impl Default for Blank {
    fn default() -> Self {
        Self::new()
    }
}

impl Device for Blank {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.0.allocate(label, bytes)
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.0.release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write(range, bytes)
    }

    fn read(&mut self, _: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(0);
        Ok(())
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        self.0.run(dispatches, stages)
    }
}

/// Hands all to a device, and keeps one dispatch for each entry point and its function constants.
pub struct Noting<D> {
    device: D,
    noted: Vec<Dispatch>,
}

impl<D: Device> Noting<D> {
    /// Nothing was asked yet.
    #[must_use]
    pub fn new(device: D) -> Self {
        Self { device, noted: vec![] }
    }

    /// What was asked so far.
    pub fn take(&mut self) -> Vec<Dispatch> {
        std::mem::take(&mut self.noted)
    }
}

impl<D: Device> Device for Noting<D> {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.device.allocate(label, bytes)
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.device.release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(range, bytes)
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(range, bytes)
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        for dispatch in dispatches {
            let is_same = |other: &&Dispatch| {
                other.entry == dispatch.entry && other.constants == dispatch.constants
            };
            if !self.noted.iter().any(|other| is_same(&other)) {
                self.noted.push(dispatch.clone());
            }
        }
        self.device.run(dispatches, stages)
    }
}
