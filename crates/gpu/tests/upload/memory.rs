//! A device that only has memory, and a comparison of what lies there with a checkpoint.

use calla_gpu::{
    BufferId, Device, DeviceError, Dispatch, GpuMatrix, GpuParts, Place, Range, Tensor,
};
use calla_model::budget::{Size, SizeParts};
use calla_model::network::{CheckpointParts, Source};
use calla_model::{MappedPages, Matrix, MatrixData, Network, Shape, VectorKind};
use std::collections::BTreeMap;
use std::convert::Infallible;

/// Buffers in memory, as far as it goes, and nothing that runs.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) buffers: Vec<Vec<u8>>,
    /// Most bytes of a mapped file that it takes at once.
    pub(crate) adoptable: u64,
    /// Whether it takes none after all.
    pub(crate) refuses: bool,
    /// Pages of files, by the buffer that they are; it has no bytes itself.
    pub(crate) adopted: BTreeMap<BufferId, MappedPages>,
    /// Where the next write ends, if writes are to fail then.
    pub(crate) writes_left: Option<usize>,
    /// Bytes that there are.
    pub(crate) limit: Option<u64>,
    pub(crate) longest_write: usize,
}

impl Memory {
    fn bytes(&self, range: Range) -> &[u8] {
        let Place::Buffer(id) = range.place else { panic!("{range:?}") };
        let whole = self.adopted.get(&id).map_or(&self.buffers[id.0 as usize][..], |pages| {
            assert!(pages.as_ptr().addr().is_multiple_of(pages.page_bytes() as usize), "{pages:?}");
            pages.file_bytes()
        });
        &whole[range.start as usize..][..range.len as usize]
    }

    pub(crate) fn is_adopted(&self, range: Range) -> bool {
        matches!(range.place, Place::Buffer(id) if self.adopted.contains_key(&id))
    }

    pub(crate) fn used(&self) -> u64 {
        let adopted: u64 = self.adopted.values().map(MappedPages::len).sum();
        adopted + self.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>()
    }

    fn require(&self, label: &str, bytes: u64) -> Result<(), DeviceError> {
        if self.limit.is_some_and(|limit| self.used() + bytes > limit) {
            let label = label.to_owned();
            return Err(DeviceError::OutOfMemory { device: "test", label, bytes });
        }
        Ok(())
    }
}

impl Device for Memory {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.require(label, bytes)?;
        assert!((1..1 << 32).contains(&bytes), "{label}: {bytes} bytes");
        self.buffers.push(vec![0xff; bytes as usize]);
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    fn adoptable_bytes(&self) -> u64 {
        self.adoptable
    }

    fn adopt(&mut self, label: &str, pages: MappedPages) -> Result<Option<BufferId>, DeviceError> {
        self.require(label, pages.len())?;
        assert!(pages.len() <= self.adoptable && pages.len() < 1 << 32, "{label}: {pages:?}");
        if self.refuses {
            return Ok(None);
        }
        let id = BufferId(self.buffers.len() as u32);
        self.buffers.push(vec![]);
        self.adopted.insert(id, pages);
        Ok(Some(id))
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.buffers[buffer.0 as usize].clear();
        Ok(())
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(left) = &mut self.writes_left {
            if *left == 0 {
                let (label, reason) = ("a write".to_owned(), "it was unplugged".to_owned());
                return Err(DeviceError::Failed { label, reason });
            }
            *left -= 1;
        }
        assert!(range.start.is_multiple_of(16), "{range:?}");
        self.longest_write = self.longest_write.max(bytes.len());
        let Place::Buffer(id) = range.place else { panic!("{range:?}") };
        // An adopted buffer has no bytes here, so this panics if it is written.
        let buffer = &mut self.buffers[id.0 as usize];
        buffer[range.start as usize..][..range.len as usize].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(self.bytes(range));
        Ok(())
    }

    fn run(&mut self, _: &[Dispatch], _: &[usize]) -> Result<(), DeviceError> {
        Err(DeviceError::Failed { label: "a run".to_owned(), reason: "it cannot".to_owned() })
    }
}

/// Reads modules back, compares them with the checkpoint's, and keeps the ranges that it saw.
struct Compared<'a> {
    memory: &'a Memory,
    expected: &'a Network<CheckpointParts>,
    actual: &'a Network<GpuParts>,
    ranges: Vec<Range>,
}

impl Compared<'_> {
    /// `alignment`: what a range in a file starts at a multiple of.
    fn compare(&mut self, name: &str, range: Range, parts: &[&[u8]], alignment: u64) {
        let alignment = if self.memory.is_adopted(range) { alignment } else { 256 };
        assert!(range.start.is_multiple_of(alignment), "{name}: {range:?}");
        assert!(self.memory.bytes(range) == parts.concat(), "{name}");
        self.ranges.push(range);
    }

    fn stacked(&mut self, name: &str, matrices: &[&Matrix], actual: &GpuMatrix) {
        let mut arrays = [vec![], vec![], vec![]];
        for matrix in matrices {
            let MatrixData::Affine { format, packed, scales, biases, .. } = matrix.data() else {
                panic!("{name}: {matrix:?}")
            };
            assert_eq!(format.bits(), actual.bits as usize, "{name}");
            for (all, array) in arrays.iter_mut().zip([packed, scales, biases]) {
                all.push(&array[..]);
            }
        }
        let dims = (matrices.len() * matrices[0].rows(), matrices[0].cols());
        assert_eq!((actual.rows as usize, actual.cols as usize), dims, "{name}");
        let ranges = [actual.packed, actual.scales, actual.biases];
        let alignments = GpuMatrix::alignments(actual.bits);
        for ((range, parts), alignment) in ranges.into_iter().zip(arrays).zip(alignments) {
            self.compare(name, range, &parts, alignment);
        }
    }
}

/// Walks over the network by its names.
impl Source<SizeParts> for Compared<'_> {
    type Error = Infallible;

    fn matrix(&mut self, name: &str, _: usize, _: usize) -> Result<Size, Infallible> {
        let (expected, actual) = (self.expected.matrix(name), self.actual.matrix(name));
        self.stacked(name, &[expected.expect(name)], actual.expect(name));
        Ok(Size::default())
    }

    fn experts(
        &mut self,
        layer_mlp: &str,
        projection: &'static str,
        count: usize,
        _: usize,
        _: usize,
    ) -> Result<Size, Infallible> {
        let expected = self.expected.experts(layer_mlp, projection).expect(projection);
        let actual = self.actual.experts(layer_mlp, projection).expect(projection);
        assert_eq!(actual.count as usize, count);
        let matrices: Vec<&Matrix> = expected.iter().collect();
        self.stacked(&format!("{layer_mlp}.{projection}"), &matrices, &actual.stacked);
        Ok(Size::default())
    }

    fn vector(&mut self, name: &str, _: VectorKind, len: usize) -> Result<Size, Infallible> {
        let expected = self.expected.vector(name).expect(name);
        let actual: &Tensor = self.actual.vector(name).expect(name);
        assert_eq!((actual.rows, actual.cols as usize), (1, len), "{name}");
        let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(!self.memory.is_adopted(actual.range), "{name}");
        self.compare(name, actual.range, &[&bytes], 256);
        Ok(Size::default())
    }

    fn has_mtp(&self) -> bool {
        assert_eq!(self.actual.mtp.is_some(), self.expected.mtp.is_some());
        self.expected.mtp.is_some()
    }
}

/// Compares all that lies on a device with the checkpoint's: ranges of all arrays, of which no two overlap.
pub(crate) fn compared(
    memory: &Memory,
    expected: &Network<CheckpointParts>,
    actual: &Network<GpuParts>,
    shape: &Shape,
) -> Vec<Range> {
    let mut compared = Compared { memory, expected, actual, ranges: vec![] };
    let walked = Network::build(shape, &mut compared);
    assert!(walked.is_ok_and(|walked| walked.layers.len() == shape.layers.len()));
    let mut ranges = compared.ranges;
    ranges.sort_by_key(|range| (range.place, range.start));
    for pair in ranges.windows(2) {
        assert!(!pair[0].overlaps(&pair[1]), "{pair:?}");
    }
    ranges
}
