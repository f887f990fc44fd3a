//! A checkpoint's weights, brought to a device.

use crate::device::{Device, DeviceError};
use crate::layout::Layout;
use crate::limits::{self, GROUP, ShapeLimit};
use crate::shape_constants::width;
use crate::tensor::{Range, Tensor};
use crate::weights::{GpuExperts, GpuMatrix, GpuParts};
use calla_model::network::{CheckpointParts, Source};
use calla_model::{FloatType, Matrix, MatrixData, Network, Shape, VectorKind};

/// What is written at once.
const PIECE_BYTES: usize = 16 << 20;
/// Parts of a stack that are shorter are gathered, which costs a copy, and written together.
const PART_BYTES_MIN: usize = 256 << 10;

/// Why weights cannot be used on a device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UploadError {
    /// Kernels do not take the shape.
    #[error(transparent)]
    Shape(#[from] ShapeLimit),
    /// Kernels do not take a matrix.
    #[error(
        "{module} is stored as {found}, but a GPU takes 4 or 8 bits in groups of 64 with bf16 scales alone: \
         use --device cpu, which takes every format"
    )]
    Format {
        /// Its canonical name.
        module: String,
        /// Its format.
        found: String,
    },
    /// A module is beyond the size of buffers.
    #[error(
        "{module} takes {bytes} bytes, but a buffer of a GPU holds less than 4 GiB: use --device cpu"
    )]
    Size {
        /// Its canonical name.
        module: String,
        /// What it needs.
        bytes: u64,
    },
    /// The network was built for another shape.
    #[error("the network has no {module} of {expected:?}, which its shape asks for")]
    Module {
        /// Its canonical name.
        module: String,
        /// Its dimensions.
        expected: Vec<usize>,
    },
    /// The device has not the memory. Nothing was written yet.
    #[error("no memory for the weights, {total} bytes, after {done} of them: {source}")]
    Memory {
        /// Bytes that had been allocated.
        done: u64,
        /// Bytes of all weights.
        total: u64,
        /// What the device said, with the first module that it has no memory for.
        source: DeviceError,
    },
    /// The device failed.
    #[error("cannot load {module}, after {done} of {total} bytes: {source}")]
    Device {
        /// What was being written.
        module: String,
        /// Bytes that had been written.
        done: u64,
        /// Bytes of all weights.
        total: u64,
        /// What the device said.
        source: DeviceError,
    },
}

/// Brings all weights to a device, in pieces of at most 16 MiB. `network` was built for `shape`; it may go when this is
/// done.
///
/// Everything is checked before anything is allocated, and allocated before anything is written. Matrices keep their bytes;
/// those of a layer's experts lie one after the other. Vectors are f32 `[1, len]`, taps of convolutions `[channels, 4]` in
/// a row. All ranges start at multiples of 256; buffers are below 4 GiB. Tied embeddings stay one matrix.
///
/// # Errors
/// If kernels do not take shape or format, or the device has not the memory or failed.
pub fn upload(
    device: &mut dyn Device,
    network: &Network<CheckpointParts>,
    shape: &Shape,
) -> Result<Network<GpuParts>, UploadError> {
    limits::check(shape)?;
    let mut sizes = Placed::new(network, Layout::default());
    Network::build(shape, &mut sizes)?;
    let buffers = sizes.layout.allocate(device)?;
    let mut placed = Placed::new(network, Layout::on(buffers));
    let on_device = Network::build(shape, &mut placed)?;
    write(device, &placed.arrays)?;
    Ok(on_device)
}

/// Checks what [`upload`] would refuse whatever the memory: the shape, the format of each matrix, sizes of modules.
///
/// # Errors
/// If kernels do not take shape or format.
pub fn check_upload(network: &Network<CheckpointParts>, shape: &Shape) -> Result<(), UploadError> {
    limits::check(shape)?;
    Network::build(shape, &mut Placed::new(network, Layout::default())).map(drop)
}

/// A source that gives each module its place.
struct Placed<'n> {
    network: &'n Network<CheckpointParts>,
    layout: Layout,
    /// What has to be written.
    arrays: Vec<Array<'n>>,
}

/// Where bytes of a module go.
struct Array<'n> {
    module: String,
    range: Range,
    /// The bytes, in parts of equal length.
    parts: Vec<&'n [u8]>,
}

impl<'n> Placed<'n> {
    fn new(network: &'n Network<CheckpointParts>, layout: Layout) -> Self {
        Self { network, layout, arrays: vec![] }
    }

    /// Places matrices of one shape, stacked.
    fn stacked(&mut self, module: &str, matrices: &[&'n Matrix]) -> Result<GpuMatrix, UploadError> {
        let formats: Result<Vec<Stored<'n>>, UploadError> =
            matrices.iter().map(|matrix| Stored::of(module, matrix)).collect();
        let formats = formats?;
        let bits = formats[0].bits;
        if let Some(other) = formats.iter().find(|stored| stored.bits != bits) {
            let found = format!("experts of {bits} and of {} bits", other.bits);
            return Err(UploadError::Format { module: module.to_owned(), found });
        }
        let rows = matrices.len() * matrices[0].rows();
        let placed = self.layout.matrix(module, rows, matrices[0].cols(), bits)?;
        let ranges = [placed.packed, placed.scales, placed.biases];
        for (index, range) in ranges.into_iter().enumerate() {
            let parts = formats.iter().map(|stored| stored.arrays[index]).collect();
            self.arrays.push(Array { module: module.to_owned(), range, parts });
        }
        Ok(placed)
    }
}

fn missing(module: &str, expected: &[usize]) -> UploadError {
    UploadError::Module { module: module.to_owned(), expected: expected.to_vec() }
}

impl Source<GpuParts> for Placed<'_> {
    type Error = UploadError;

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<GpuMatrix, UploadError> {
        let matrix = self.network.matrix(name);
        let matrix = matrix
            .filter(|matrix| (matrix.rows(), matrix.cols()) == (rows, cols))
            .ok_or_else(|| missing(name, &[rows, cols]))?;
        self.stacked(name, &[matrix])
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<GpuExperts, UploadError> {
        let name = format!("{layer_mlp}.{projection}");
        let experts = self.network.experts(layer_mlp, projection);
        let experts = experts
            .filter(|all| (all.count(), all.rows(), all.cols()) == (count, rows, cols))
            .ok_or_else(|| missing(&name, &[count, rows, cols]))?;
        let matrices: Vec<&Matrix> = experts.iter().collect();
        let stacked = self.stacked(&name, &matrices)?;
        Ok(GpuExperts { count: width(count), stacked })
    }

    fn vector(&mut self, name: &str, _: VectorKind, len: usize) -> Result<Tensor, UploadError> {
        let values = self.network.vector(name).filter(|values| values.len() == len);
        let values = values.ok_or_else(|| missing(name, &[len]))?;
        let tensor = self.layout.vector(name, len)?;
        let parts = vec![bytemuck::cast_slice(values)];
        self.arrays.push(Array { module: name.to_owned(), range: tensor.range, parts });
        Ok(tensor)
    }

    fn has_mtp(&self) -> bool {
        self.network.mtp.is_some()
    }
}

/// A matrix in a format that kernels take.
struct Stored<'n> {
    bits: usize,
    /// Packed integers, scales, biases.
    arrays: [&'n [u8]; 3],
}

impl<'n> Stored<'n> {
    fn of(module: &str, matrix: &'n Matrix) -> Result<Self, UploadError> {
        let found = match matrix.data() {
            MatrixData::Dense { dtype, .. } => format!("plain {}", dtype.name()),
            MatrixData::Affine { format, packed, dtype, scales, biases } => {
                let (bits, group) = (format.bits(), format.group());
                if matches!(bits, 4 | 8) && group == GROUP && *dtype == FloatType::Bf16 {
                    return Ok(Self { bits, arrays: [packed, scales, biases] });
                }
                format!("{bits} bits in groups of {group} with {} scales", dtype.name())
            }
        };
        Err(UploadError::Format { module: module.to_owned(), found })
    }
}

impl Array<'_> {
    /// Whether its parts are written one by one. Small ones would be many writes, and where a part ends that is no multiple
    /// of 16 bytes no device has to be able to start.
    fn is_direct(&self) -> bool {
        let part = self.parts[0].len();
        self.parts.len() == 1 || part >= PART_BYTES_MIN && part.is_multiple_of(16)
    }
}

/// Writes all arrays, in order of their places.
fn write(device: &mut dyn Device, arrays: &[Array<'_>]) -> Result<(), UploadError> {
    let total = arrays.iter().map(|array| array.range.len).sum();
    let mut done = 0;
    let mut gathered = vec![];
    for array in arrays {
        let before = done;
        let mut write = |piece: &[u8]| -> Result<(), UploadError> {
            let len = piece.len() as u64;
            let start = array.range.start + (done - before);
            let written = device.write(Range { start, len, ..array.range }, piece);
            written.map_err(|source| {
                let module = array.module.clone();
                UploadError::Device { module, done, total, source }
            })?;
            done += len;
            Ok(())
        };
        if array.is_direct() {
            let mut pieces = array.parts.iter().flat_map(|part| part.chunks(PIECE_BYTES));
            pieces.try_for_each(&mut write)?;
            continue;
        }
        let len = array.range.len as usize;
        for start in (0..len).step_by(PIECE_BYTES) {
            gathered.resize(PIECE_BYTES.min(len - start), 0);
            gather(&array.parts, start, &mut gathered);
            write(&gathered)?;
        }
    }
    Ok(())
}

/// Copies what lies from `start` on in parts of equal length, one after the other.
fn gather(parts: &[&[u8]], start: usize, to: &mut [u8]) {
    let (mut at, mut rest) = (start, to);
    while !rest.is_empty() {
        let part = parts[at / parts[0].len()];
        let from = &part[at % part.len()..];
        let len = from.len().min(rest.len());
        let (now, later) = rest.split_at_mut(len);
        now.copy_from_slice(&from[..len]);
        (at, rest) = (at + len, later);
    }
}
