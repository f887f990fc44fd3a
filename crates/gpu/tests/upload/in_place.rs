//! Weights that stay in their files.

use super::common::sequences::{decode, homes, prefill, recorded};
use super::common::{self, TestDevice};
use super::memory::{Memory, compared};
use calla_gpu::{
    BufferId, Device, DeviceError, Dispatch, GpuRunner, InPlace, Place, Range, RunnerSize,
    UploadError, in_place, upload_mapped,
};
use calla_model::network::CheckpointParts;
use calla_model::{MappedFile, MappedPages, Network, Shape};
use calla_testkit::shards::write_demo;
use calla_weights::{Checkpoint, header};
use std::path::Path;
use tempfile::TempDir;

/// More than all files have.
const ALL: u64 = 1 << 30;

/// The demo in files whose data start at these remainders of 64.
struct Demo {
    network: Network<CheckpointParts>,
    shape: Shape,
    files: Vec<MappedFile>,
    dir: TempDir,
}

fn demo(starts: &[usize]) -> Demo {
    let dir = tempfile::tempdir().unwrap();
    write_demo(dir.path(), starts);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (network, shape) = (checkpoint.load().unwrap(), checkpoint.shape().clone());
    Demo { network, shape, files: checkpoint.mapped_files(), dir }
}

/// Bytes of arrays that files of a folder have as kernels read them, by what their headers say.
fn expected_in_place(dir: &Path) -> u64 {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let entries: Vec<_> =
        files.flat_map(|path| header::read(&std::fs::read(path).unwrap()).unwrap()).collect();
    let mut sum = 0;
    for entry in &entries {
        let alignment = if let Some(module) = entry.name.strip_suffix(".weight")
            && format!("{:?}", entry.dtype) == "U32"
        {
            let scales = entries.iter().find(|scales| scales.name == format!("{module}.scales"));
            let groups = scales.unwrap().shape.last().unwrap();
            2 * (entry.shape.last().unwrap() * 32 / (groups * 64))
        } else if entry.name.ends_with(".scales") || entry.name.ends_with(".biases") {
            4
        } else {
            continue;
        };
        if entry.range.start.is_multiple_of(alignment) {
            sum += entry.range.len() as u64;
        }
    }
    sum
}

/// A device that takes so many bytes of a file at once.
fn adopting(adoptable: u64) -> Memory {
    Memory { adoptable, ..Memory::default() }
}

/// Uploads to a device, and compares all that lies there: the device, and the bytes of arrays that it adopted.
fn uploaded(demo: &Demo, mut memory: Memory) -> (Memory, u64) {
    let Demo { network, shape, files, .. } = demo;
    let actual = upload_mapped(&mut memory, network, shape, files).unwrap();
    let ranges = compared(&memory, network, &actual, shape);
    let adopted = ranges.iter().filter(|range| memory.is_adopted(**range));
    let adopted = adopted.map(|range| range.len).sum();
    (memory, adopted)
}

#[test]
fn what_lies_as_kernels_read_it_stays_in_its_file() {
    let mut seen = vec![];
    for starts in [&[0][..], &[8], &[4], &[2], &[5], &[0, 8], &[3, 40, 16, 1]] {
        let demo = demo(starts);
        let (memory, adopted) = uploaded(&demo, adopting(ALL));
        assert_eq!(adopted, expected_in_place(demo.dir.path()), "{starts:?}");
        let total = uploaded(&demo, Memory::default());
        assert_eq!((total.0.adopted.len(), total.1), (0, 0));
        let InPlace { in_place, copied } =
            in_place(&demo.network, &demo.shape, &demo.files).unwrap();
        assert_eq!(in_place, adopted, "{starts:?}");
        let all: u64 = total.0.buffers.iter().map(|buffer| buffer.len() as u64).sum();
        // Copies are padded to 256 bytes.
        assert!(
            (all - (1 << 18)..=all).contains(&(in_place + copied)),
            "{in_place} {copied} {all}"
        );
        assert!(starts.len() < 3 || memory.adopted.len() >= 2, "{:?}", memory.adopted);
        seen.push((starts, adopted, memory.adopted.len()));
    }
    println!("{seen:?}");
    // 14.5 MB are all; odd files have none of it.
    assert!(seen[0].1 > 13_000_000 && seen[1].1 > 13_000_000, "{seen:?}");
    assert!((1..5_000_000).contains(&seen[2].1), "{seen:?}");
    assert_eq!((seen[3].1, seen[4].1), (0, 0), "{seen:?}");
}

#[test]
fn the_last_page_may_end_behind_the_file() {
    let demo = demo(&[0]);
    let (memory, _) = uploaded(&demo, adopting(ALL));
    let last = memory.adopted.values().last().unwrap();
    let len = std::fs::metadata(demo.dir.path().join("model.safetensors")).unwrap().len();
    assert!(!len.is_multiple_of(last.page_bytes()));
    assert_eq!(last.start() + last.file_bytes().len() as u64, len);
    assert_eq!(last.start() + last.len(), len.next_multiple_of(last.page_bytes()));
}

#[test]
fn an_array_lies_within_one_window_or_is_copied() {
    let demo = demo(&[0, 0]);
    let (whole, all) = uploaded(&demo, adopting(ALL));
    let page = demo.files[0].page_bytes();
    let mut before = all;
    for most in [1 << 22, 1 << 20, 1 << 17, 4 * page, page, page - 1] {
        let (memory, adopted) = uploaded(&demo, adopting(most));
        assert!(memory.adopted.len() > whole.adopted.len() || adopted == 0);
        assert!(adopted <= before, "{most}: {adopted}");
        before = adopted;
    }
    assert_eq!(before, 0);
    // Windows overlap where an array starts in the page that another ends in.
    let (memory, _) = uploaded(&demo, adopting(1 << 17));
    let pages: Vec<&MappedPages> = memory.adopted.values().collect();
    let overlap = |pair: &[&MappedPages]| {
        pair[0].start() < pair[1].start() && pair[1].start() < pair[0].start() + pair[0].len()
    };
    assert!(pages.windows(2).any(overlap), "{pages:?}");
}

#[test]
fn what_a_device_does_not_take_after_all_is_copied() {
    let demo = demo(&[0]);
    let refusing = Memory { refuses: true, ..adopting(ALL) };
    let (memory, adopted) = uploaded(&demo, refusing);
    assert_eq!((memory.adopted.len(), adopted), (0, 0));
    assert_eq!(memory.buffers, uploaded(&demo, Memory::default()).0.buffers);
}

#[test]
fn no_memory_is_said_before_anything_is_written() {
    let Demo { network, shape, files, .. } = &demo(&[0]);
    let len = files.iter().map(|file| file.pages(0..1).map_or(0, |page| page.len())).sum::<u64>();
    for (limit, adopts) in [(len, 0), (14_600_000, 1)] {
        // Nothing may be written.
        let writes_left = Some(0);
        let mut memory = Memory { limit: Some(limit), writes_left, ..adopting(1 << 23) };
        let error = upload_mapped(&mut memory, network, shape, files).err().unwrap();
        let UploadError::Memory { done, total, source } = &error else { panic!("{error}") };
        assert!(matches!(source, DeviceError::OutOfMemory { .. }), "{error}");
        assert!(memory.adopted.len() >= adopts && *total > 14_000_000, "{error}");
        assert_eq!(*done, memory.adopted.values().map(MappedPages::len).sum::<u64>());
    }
}

#[test]
fn a_network_that_lies_elsewhere_is_copied() {
    let shape = super::tiny();
    let network = common::quantised::network(&shape, 1);
    let other = demo(&[0]);
    let mut memory = adopting(ALL);
    let actual = upload_mapped(&mut memory, &network, &shape, &other.files).unwrap();
    compared(&memory, &network, &actual, &shape);
    assert!(memory.adopted.is_empty());
    let InPlace { in_place, copied } = in_place(&network, &shape, &other.files).unwrap();
    assert!(in_place == 0 && copied > 0);
}

/// A device that uses pages as it finds them in a file, which nothing may write. Where the driver takes none, their bytes lie
/// in a buffer of its own at the same offsets.
struct Adopting {
    device: TestDevice,
    adopted: Vec<BufferId>,
}

impl Adopting {
    fn require_not_adopted(&self, range: Range) {
        let Place::Buffer(id) = range.place else { panic!("{range:?}") };
        assert!(!self.adopted.contains(&id), "{range:?} is a part of a file");
    }
}

impl Device for Adopting {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.device.allocate(label, bytes)
    }

    fn adoptable_bytes(&self) -> u64 {
        ALL
    }

    fn adopt(&mut self, label: &str, pages: MappedPages) -> Result<Option<BufferId>, DeviceError> {
        if self.device.adoptable_bytes() > 0 {
            let id = self.device.adopt(label, pages)?;
            self.adopted.extend(id);
            return Ok(id);
        }
        let id = self.device.allocate(label, pages.len())?;
        let len = pages.file_bytes().len() as u64;
        let range = Range { place: Place::Buffer(id), start: 0, len };
        self.device.write(range, pages.file_bytes())?;
        self.adopted.push(id);
        Ok(Some(id))
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.device.release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.require_not_adopted(range);
        self.device.write(range, bytes)
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(range, bytes)
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        let bindings = dispatches.iter().flat_map(|dispatch| &dispatch.bindings);
        let written = bindings.filter(|binding| binding.access.writes());
        written.for_each(|binding| self.require_not_adopted(binding.range));
        self.device.run(dispatches, stages)
    }
}

/// Logits of a prompt and of a token after it, and buffers that were adopted.
fn logits(demo: &Demo, files: &[MappedFile]) -> Option<(Vec<Vec<f32>>, usize)> {
    let device = common::device()?;
    if device.name() != "host" {
        println!(
            "skipped: a GPU's kernels take no weights at these places, and its driver adopts none"
        );
        return None;
    }
    let mut device = Adopting { device, adopted: vec![] };
    let network = upload_mapped(&mut device, &demo.network, &demo.shape, files).unwrap();
    let adopted = device.adopted.len();
    let (homes, cache) = homes(1);
    let size = RunnerSize { cache, sequences: 1, drafting: false };
    let mut runner = GpuRunner::new(device, "test", &demo.shape, network, size).unwrap();
    let (ids, prompt) = (recorded(1).remove(0).0, 20);
    let rows = [
        prefill(&mut runner, &[(&homes[0], &ids[..prompt])]),
        decode(&mut runner, &[(&homes[0], ids[prompt], prompt)]),
    ];
    let rows = rows.iter().flat_map(|rows| rows.iter().map(<[f32]>::to_vec)).collect();
    Some((rows, adopted))
}

#[test]
fn logits_of_the_demo_are_the_same_in_place() {
    if std::env::var_os("CALLA_GPU_SANITIZE").is_some() {
        println!("skipped: with sanitizers the demo takes minutes, and runs without them too");
        return;
    }
    let Some((copied, none)) = logits(&demo(&[0]), &[]) else { return };
    assert!(copied.iter().flatten().all(|value| value.is_finite()));
    assert_eq!((copied.len(), none), (2, 0));
    // Loads of 8 bytes at multiples of 8 that are none of 16, and scales at multiples of 4 that are none of 8.
    for starts in [&[8, 24, 5][..], &[44]] {
        let demo = demo(starts);
        let (in_place, adopted) = logits(&demo, &demo.files).unwrap();
        assert!(adopted > 0 && in_place == copied, "{starts:?}: {adopted} buffers");
    }
}
