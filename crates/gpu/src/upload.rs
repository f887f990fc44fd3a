//! A checkpoint's weights, brought to a device.

use crate::device::{Device, DeviceError};
use crate::in_place::{InFile, windows};
use crate::layout::Layout;
use crate::limits::{self, GROUP, ShapeLimit};
use crate::shape_constants::width;
use crate::tensor::{Place, Range, Tensor};
use crate::weights::{GpuExperts, GpuMatrix, GpuParts};
use calla_model::network::{CheckpointParts, Source};
use calla_model::{FloatType, MappedFile, Matrix, MatrixData, Network, Shape, VectorKind};
use std::array;

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
        /// Bytes that had been allocated, or adopted.
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
    upload_mapped(device, network, shape, &[])
}

/// The same, but that arrays that lie in one of these files as kernels read them stay there, where the device can use them
/// so ([`Device::adopt`]): their ranges start at multiples of [`GpuMatrix::alignments`]. What it does not take is copied. The
/// device's buffers keep the files mapped.
///
/// # Errors
/// As [`upload`].
pub fn upload_mapped(
    device: &mut dyn Device,
    network: &Network<CheckpointParts>,
    shape: &Shape,
    files: &[MappedFile],
) -> Result<Network<GpuParts>, UploadError> {
    limits::check(shape)?;
    let mut all = Placed::new(network, Layout::default(), vec![]);
    Network::build(shape, &mut all)?;
    let Adopted { ranges, bytes } = adopt(device, &all, files)?;
    let mut copied = Placed::new(network, Layout::default(), ranges.clone());
    Network::build(shape, &mut copied)?;
    let buffers = copied.layout.allocate(device, bytes)?;
    let mut placed = Placed::new(network, Layout::on(buffers), ranges);
    let on_device = Network::build(shape, &mut placed)?;
    placed.arrays.retain(|array| !array.is_adopted);
    write(device, &placed.arrays)?;
    Ok(on_device)
}

/// Checks what [`upload`] would refuse whatever the memory: the shape, the format of each matrix, sizes of modules.
///
/// # Errors
/// If kernels do not take shape or format.
pub fn check_upload(network: &Network<CheckpointParts>, shape: &Shape) -> Result<(), UploadError> {
    limits::check(shape)?;
    Network::build(shape, &mut Placed::new(network, Layout::default(), vec![])).map(drop)
}

/// Bytes of weights on a device that uses mapped files in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// Those that stay in their files.
    pub in_place: u64,
    /// Those that are copied: where the file does not have them as kernels read them, and all vectors, as f32.
    pub copied: u64,
}

/// What [`upload_mapped`] would leave in place if the device took it all.
///
/// # Errors
/// If kernels do not take shape or format.
pub fn in_place(
    network: &Network<CheckpointParts>,
    shape: &Shape,
    files: &[MappedFile],
) -> Result<InPlace, UploadError> {
    limits::check(shape)?;
    let mut all = Placed::new(network, Layout::default(), vec![]);
    Network::build(shape, &mut all)?;
    let found = all.in_files(files);
    let windows = windows(files, &found, u64::MAX);
    let adopted = windows.iter().flat_map(|window| &window.arrays);
    let in_place: u64 = adopted.map(|&(array, _)| all.arrays[array].range.len).sum();
    Ok(InPlace { in_place, copied: all.bytes() - in_place })
}

/// What a device has adopted.
struct Adopted {
    /// Where arrays are in adopted buffers, in the order of the walk; the others have to be copied.
    ranges: Vec<Option<Range>>,
    /// Bytes of the buffers.
    bytes: u64,
}

/// Has a device adopt what it can use of files.
fn adopt(
    device: &mut dyn Device,
    all: &Placed<'_>,
    files: &[MappedFile],
) -> Result<Adopted, UploadError> {
    let mut adopted = Adopted { ranges: vec![None; all.arrays.len()], bytes: 0 };
    let most = device.adoptable_bytes();
    if most == 0 {
        return Ok(adopted);
    }
    let found = all.in_files(files);
    let windows = windows(files, &found, most);
    let total = all.bytes();
    for window in windows {
        let label = format!("mapped weights from {} on", all.arrays[window.arrays[0].0].module);
        let bytes = window.pages.len();
        let id = device.adopt(&label, window.pages);
        let done = adopted.bytes;
        let Some(id) = id.map_err(|source| UploadError::Memory { done, total, source })? else {
            continue;
        };
        adopted.bytes += bytes;
        for (array, start) in window.arrays {
            let (place, len) = (Place::Buffer(id), all.arrays[array].range.len);
            adopted.ranges[array] = Some(Range { place, start, len });
        }
    }
    Ok(adopted)
}

/// A source that gives each module its place.
struct Placed<'n> {
    network: &'n Network<CheckpointParts>,
    layout: Layout,
    /// Places of arrays that are on the device already, in the order of the walk.
    adopted: Vec<Option<Range>>,
    /// All arrays so far.
    arrays: Vec<Array<'n>>,
}

/// Where bytes of a module go.
struct Array<'n> {
    module: String,
    range: Range,
    /// Whether they are there already.
    is_adopted: bool,
    /// What they may start at a multiple of in a file; `None` if no file has them as kernels read them.
    alignment: Option<u64>,
    /// The bytes, in parts of equal length.
    parts: Vec<&'n [u8]>,
}

impl<'n> Placed<'n> {
    fn new(
        network: &'n Network<CheckpointParts>,
        layout: Layout,
        adopted: Vec<Option<Range>>,
    ) -> Self {
        Self { network, layout, adopted, arrays: vec![] }
    }

    /// Bytes of all arrays.
    fn bytes(&self) -> u64 {
        self.arrays.iter().map(|array| array.range.len).sum()
    }

    /// Where each array lies in files as kernels read it.
    fn in_files(&self, files: &[MappedFile]) -> Vec<Option<InFile>> {
        let find = |array: &Array<'_>| InFile::find(files, &array.parts, array.alignment?);
        self.arrays.iter().map(find).collect()
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
        let [rows, cols, bits] = [rows, matrices[0].cols(), bits].map(width);
        let lens = GpuMatrix::array_bytes(rows, cols, bits);
        let alignments = GpuMatrix::alignments(bits);
        let first = self.arrays.len();
        let adopted: [Option<Range>; 3] =
            array::from_fn(|i| self.adopted.get(first + i).copied().flatten());
        let ranges = self.three(module, lens, adopted)?;
        for (i, range) in ranges.into_iter().enumerate() {
            let (is_adopted, alignment) = (adopted[i].is_some(), Some(alignments[i]));
            let parts = formats.iter().map(|stored| stored.arrays[i]).collect();
            let module = module.to_owned();
            self.arrays.push(Array { module, range, is_adopted, alignment, parts });
        }
        let [packed, scales, biases] = ranges;
        Ok(GpuMatrix { rows, cols, bits, packed, scales, biases })
    }

    /// Places those of three arrays that are not adopted.
    fn three(
        &mut self,
        module: &str,
        lens: [u64; 3],
        adopted: [Option<Range>; 3],
    ) -> Result<[Range; 3], UploadError> {
        if let [Some(packed), Some(scales), Some(biases)] = adopted {
            return Ok([packed, scales, biases]);
        }
        let copied: [u64; 3] = array::from_fn(|i| if adopted[i].is_some() { 0 } else { lens[i] });
        let placed = self.layout.arrays(module, copied)?;
        Ok(array::from_fn(|i| adopted[i].unwrap_or(placed[i])))
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
        let (module, range) = (name.to_owned(), tensor.range);
        self.arrays.push(Array { module, range, is_adopted: false, alignment: None, parts });
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
