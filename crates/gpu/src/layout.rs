//! Where weights lie in a device's buffers.

use crate::device::Device;
use crate::shape_constants::width;
use crate::tensor::{BufferId, Dtype, Place, Range, Tensor};
use crate::upload::UploadError;
use crate::weights::GpuMatrix;

/// Arrays start at multiples of this: lines of caches, and more than any load needs.
const ALIGNMENT: u64 = 256;
/// Modules share a buffer up to this size. Few buffers are cheap to make resident and to bind; one for all would be more
/// than a device gives at once.
const BUFFER_BYTES: u64 = 1 << 30;
/// A module that needs as much is refused: not every device has larger buffers.
pub(crate) const BUFFER_BYTES_END: u64 = 1 << 32;

/// Buffers that are filled with one module after the other.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    buffers: Vec<Buffer>,
    /// What a device calls them; those that it was not asked for yet go by their index.
    ids: Vec<BufferId>,
    /// The last buffer takes no more modules.
    is_closed: bool,
}

#[derive(Debug)]
struct Buffer {
    label: String,
    bytes: u64,
    is_released: bool,
}

impl Layout {
    /// A layout that starts anew, in the buffers of one that took the same modules.
    pub(crate) fn on(ids: Vec<BufferId>) -> Self {
        Self { ids, ..Self::default() }
    }

    /// Places the arrays of a quantised matrix.
    pub(crate) fn matrix(
        &mut self,
        module: &str,
        rows: usize,
        cols: usize,
        bits: usize,
    ) -> Result<GpuMatrix, UploadError> {
        let [rows, cols, bits] = [rows, cols, bits].map(width);
        let lens = GpuMatrix::array_bytes(rows, cols, bits);
        let [packed, scales, biases] = self.arrays(module, lens)?;
        Ok(GpuMatrix { rows, cols, bits, packed, scales, biases })
    }

    /// Places a vector of f32.
    pub(crate) fn vector(&mut self, module: &str, len: usize) -> Result<Tensor, UploadError> {
        let cols = width(len);
        let [range] = self.arrays(module, [u64::from(cols) * Dtype::F32.size()])?;
        Ok(Tensor { range, rows: 1, cols, dtype: Dtype::F32 })
    }

    /// Adds a buffer that holds something else.
    pub(crate) fn other(&mut self, label: &str, bytes: u64) -> BufferId {
        self.buffers.push(Buffer { label: label.to_owned(), bytes, is_released: false });
        self.is_closed = true;
        self.id()
    }

    /// Takes a buffer away: `false` if there is no such.
    pub(crate) fn release(&mut self, id: BufferId) -> bool {
        let buffer = self.buffers.get_mut(id.0 as usize).filter(|buffer| !buffer.is_released);
        let Some(buffer) = buffer else { return false };
        (buffer.bytes, buffer.is_released, self.is_closed) = (0, true, true);
        true
    }

    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }

    /// Bytes of one buffer.
    pub(crate) fn buffer_bytes(&self, id: BufferId) -> Option<u64> {
        let buffer = self.buffers.get(id.0 as usize).filter(|buffer| !buffer.is_released);
        buffer.map(|buffer| buffer.bytes)
    }

    /// Allocates the buffers, after `done` bytes that are there already.
    pub(crate) fn allocate(
        &self,
        device: &mut dyn Device,
        mut done: u64,
    ) -> Result<Vec<BufferId>, UploadError> {
        let (mut ids, total) = (vec![], done + self.bytes());
        for Buffer { label, bytes, .. } in &self.buffers {
            let id = device.allocate(label, *bytes);
            ids.push(id.map_err(|source| UploadError::Memory { done, total, source })?);
            done += bytes;
        }
        Ok(ids)
    }

    /// Places arrays of a module one behind the other in one buffer.
    pub(crate) fn arrays<const N: usize>(
        &mut self,
        module: &str,
        lens: [u64; N],
    ) -> Result<[Range; N], UploadError> {
        let padded = |len: u64| len.next_multiple_of(ALIGNMENT);
        let bytes: u64 = lens.into_iter().map(padded).sum();
        if bytes >= BUFFER_BYTES_END {
            return Err(UploadError::Size { module: module.to_owned(), bytes });
        }
        let full = |buffer: &Buffer| buffer.bytes + bytes > BUFFER_BYTES;
        if self.is_closed || self.buffers.last().is_none_or(full) {
            let label = format!("weights from {module} on");
            self.buffers.push(Buffer { label, bytes: 0, is_released: false });
            self.is_closed = false;
        }
        let place = Place::Buffer(self.id());
        let end = self.buffers.last_mut().map(|buffer| &mut buffer.bytes);
        let end = end.expect("there is one, just made if need be");
        Ok(lens.map(|len| {
            let start = *end;
            *end += padded(len);
            Range { place, start, len }
        }))
    }

    /// The last buffer.
    fn id(&self) -> BufferId {
        let index = self.buffers.len() - 1;
        self.ids.get(index).copied().unwrap_or(BufferId(width(index)))
    }
}
