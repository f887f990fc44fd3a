//! A device and a network without data, for plans that nobody runs.

use crate::device::{Device, DeviceError};
use crate::dispatch::Dispatch;
use crate::layout::Layout;
use crate::limits::GROUP;
use crate::shape_constants::width;
use crate::tensor::{BufferId, Place, Range, Tensor};
use crate::upload::UploadError;
use crate::weights::{GpuExperts, GpuMatrix, GpuParts};
use calla_model::VectorKind;
use calla_model::budget::mlx_4bit_format;
use calla_model::network::Source;

/// Gives addresses as a device would, but has no memory: what is written is forgotten, what runs does nothing, and to read
/// is an error. As a source it lays out a network of any size in the format of the published MLX conversion (4 bits,
/// routers and gates of shared experts 8).
///
/// ```
/// use calla_gpu::{Described, GpuParts, Rotations};
/// use calla_model::{Network, Shape};
///
/// let shape = Shape::full(40);
/// let mut device = Described::new(false);
/// let network: Network<GpuParts> = Network::build(&shape, &mut device)?;
/// let rotations = Rotations::upload(&mut device, &shape)?;
/// assert!(device.bytes() > 19_500_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Described {
    layout: Layout,
    mtp: bool,
}

impl Described {
    /// No buffers yet. `mtp`: networks have a multi-token-prediction layer.
    #[must_use]
    pub fn new(mtp: bool) -> Self {
        Self { layout: Layout::default(), mtp }
    }

    /// Bytes of all buffers, gaps between weights included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    fn check(&self, what: &str, range: Range) -> Result<(), DeviceError> {
        let bytes = match range.place {
            Place::Buffer(id) => self.layout.buffer_bytes(id),
            Place::Scratch(_) => None,
        };
        let end = range.start.checked_add(range.len);
        if bytes.zip(end).is_some_and(|(bytes, end)| end <= bytes) {
            return Ok(());
        }
        let reason = format!("{range:?} is beyond the buffers");
        Err(DeviceError::failed(what, reason))
    }
}

impl Device for Described {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        Ok(self.layout.other(label, bytes.next_multiple_of(16)))
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        if self.layout.release(buffer) {
            return Ok(());
        }
        let reason = format!("there is no buffer {}", buffer.0);
        Err(DeviceError::failed("a release", reason))
    }

    fn write(&mut self, range: Range, _: &[u8]) -> Result<(), DeviceError> {
        self.check("a write", range)
    }

    fn read(&mut self, _: Range, _: &mut [u8]) -> Result<(), DeviceError> {
        let reason = "this device has no memory".to_owned();
        Err(DeviceError::failed("a read", reason))
    }

    fn run(&mut self, _: &[Dispatch], _: &[usize]) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Source<GpuParts> for Described {
    type Error = UploadError;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<GpuMatrix, UploadError> {
        if !cols.is_multiple_of(GROUP) {
            let found = format!("rows of {cols} values");
            return Err(UploadError::Format { module: name.to_owned(), found });
        }
        self.layout.matrix(name, rows, cols, mlx_4bit_format(name).bits())
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<GpuExperts, UploadError> {
        let stacked = self.matrix(&format!("{layer_mlp}.{projection}"), count * rows, cols)?;
        Ok(GpuExperts { count: width(count), stacked })
    }

    fn vector(&mut self, name: &str, _: VectorKind, len: usize) -> Result<Tensor, UploadError> {
        self.layout.vector(name, len)
    }

    fn has_mtp(&self) -> bool {
        self.mtp
    }
}
