//! Weights that a device uses where their files are mapped, on the model of Metal.

mod common;

use bytes::Bytes;
use calla_gpu::copy::copy;
use calla_gpu::{Device as _, DeviceError, MappedFile, Place, Range, UploadError, upload_mapped};
use calla_gpu_metal::{Kernels, MetalDevice};
use common::contract::Contract;
use common::files::{bring, bytes, demo};
use common::network::{drive, runner_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A page of Apple's processors.
const PAGE: usize = 16 << 10;

/// Three of them.
#[repr(align(16384))]
struct Pages([u8; 3 * PAGE]);

/// A file that ends in the third, and notes when it is no longer mapped.
struct File {
    pages: Box<Pages>,
    is_mapped: Arc<AtomicBool>,
}

/// Its length.
const LEN: usize = 3 * PAGE - 1000;

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        &self.pages.0[..LEN]
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.is_mapped.store(false, Ordering::Relaxed);
    }
}

/// A file of such pages, with a byte for each of its lines of 256, and whether it is mapped.
fn file() -> (MappedFile, Arc<AtomicBool>) {
    let mut pages = Box::new(Pages([0; 3 * PAGE]));
    for (i, byte) in pages.0[..LEN].iter_mut().enumerate() {
        *byte = (i / 256) as u8;
    }
    let is_mapped = Arc::new(AtomicBool::new(true));
    let bytes = Bytes::from_owner(File { pages, is_mapped: Arc::clone(&is_mapped) });
    // SAFETY: the box is aligned to a page, has three of which the file ends in the last, zeros behind it, is freed with the
    // last clone of `bytes`, and nothing writes it.
    (unsafe { MappedFile::new(bytes, PAGE) }, is_mapped)
}

/// A Mac with such pages.
fn mac() -> Contract {
    Contract::with(|_, world| world.page_bytes = Some(PAGE as u64))
}

fn device(contract: &Contract) -> MetalDevice<Contract> {
    MetalDevice::new(contract.clone(), Kernels::Plain).unwrap()
}

fn none(contract: &Contract) {
    assert_eq!(contract.world().violations(), Vec::<String>::new());
}

#[test]
fn steps_of_the_demo_in_place_keep_to_the_rules() {
    for starts in [&[0][..], &[8, 40], &[4, 5, 0]] {
        let demo = demo(starts);
        let contract = Contract::new();
        let (device, network) = bring(&demo, &contract, &demo.files);
        assert!(contract.world().mapped_and_own().0 >= 1, "{starts:?}");
        let mut runner = runner_of(&demo.shape, device, network);
        drive(&demo.shape, &mut runner).unwrap();
        assert!(contract.world().dispatches > 500);
        drop(runner);
        none(&contract);
    }
}

#[test]
fn kernels_see_the_same_bytes_in_place_and_copied() {
    let seen = |starts: &[usize], in_place: bool| {
        let demo = demo(starts);
        let contract = Contract::with(|_, world| world.is_written_kept = true);
        let files = if in_place { &demo.files[..] } else { &[] };
        let (mut device, network) = bring(&demo, &contract, files);
        // The network and the files go; what the device uses stays.
        let shape = demo.shape.clone();
        drop(demo);
        let bytes = bytes(&mut device, &network, &shape);
        none(&contract);
        let (mapped, own) = contract.world().mapped_and_own();
        (bytes, mapped, own, device.allocated_bytes())
    };
    let (copied, none, one, all) = seen(&[0], false);
    assert_eq!((none, one), (0, 1));
    assert!(copied.iter().map(Vec::len).sum::<usize>() > 14_000_000);
    // Each file in one window, and what is copied in one buffer.
    for (starts, windows) in [(&[0][..], 1), (&[8, 16], 2), (&[5], 0), (&[5, 0], 1)] {
        let (in_place, mapped, own, allocated) = seen(starts, true);
        assert!(in_place == copied, "{starts:?}");
        assert_eq!((mapped, own), (windows, 1), "{starts:?}");
        // No second copy: pages, of the system's size or of 16 KiB, and padding are what there is more.
        assert!(allocated <= all + (1 << 18), "{starts:?}: {allocated} of {all}");
    }
}

#[test]
fn windows_keep_below_the_longest_buffer_and_a_refusal_of_metal_is_a_copy() {
    let demo = demo(&[0]);
    let small = Contract::with(|capabilities, _| capabilities.buffer_bytes = 4 << 20);
    let (device, _) = bring(&demo, &small, &demo.files);
    assert!(small.world().mapped_and_own().0 >= 4);
    let allocated = device.allocated_bytes();
    assert!((14_000_000..15_500_000).contains(&allocated), "{allocated}");
    none(&small);

    let refusing = Contract::with(|_, world| world.refuses_pages = true);
    let (device, _) = bring(&demo, &refusing, &demo.files);
    assert_eq!(refusing.world().mapped_and_own(), (0, 1));
    let (copied, _) = bring(&demo, &Contract::new(), &[]);
    assert_eq!(device.allocated_bytes(), copied.allocated_bytes());
    none(&refusing);
}

#[test]
fn mapped_files_count_towards_the_working_set() {
    let demo = demo(&[0]);
    let tight = Contract::with(|capabilities, _| capabilities.working_set_bytes = 14_000_000);
    let mut device = device(&tight);
    let error = upload_mapped(&mut device, &demo.network, &demo.shape, &demo.files).err().unwrap();
    let UploadError::Memory { done: 0, source, .. } = &error else { panic!("{error}") };
    for due in [
        "bytes for mapped weights from mtp.layers.0.mlp.down_proj on: 0 bytes",
        "recommendedMaxWorkingSetSize",
        "iogpu.wired_limit_mb",
    ] {
        assert!(source.to_string().contains(due), "{source}");
    }
    assert_eq!(device.allocated_bytes(), 0);

    let contract = mac();
    let mut device = self::device(&contract);
    let (file, _) = file();
    let pages = file.pages(0..LEN as u64).unwrap();
    let buffer = device.adopt("weights", pages).unwrap().unwrap();
    assert_eq!(device.allocated_bytes(), 3 * PAGE as u64);
    device.release(buffer).unwrap();
    assert_eq!(device.allocated_bytes(), 0);
    none(&contract);
}

#[test]
fn a_file_is_read_to_its_end_and_never_written() {
    let contract = mac();
    let mut device = device(&contract);
    let (file, _) = file();
    let pages = file.pages(PAGE as u64..LEN as u64).unwrap();
    let weights = device.adopt("weights", pages).unwrap().unwrap();
    let own = device.allocate("a buffer", 256).unwrap();
    let range = |buffer, start, len| Range { place: Place::Buffer(buffer), start, len };

    let mut last = [1; 256];
    device.read(range(weights, 2 * PAGE as u64 - 1256, 256), &mut last).unwrap();
    assert!(
        last.iter().all(|&byte| byte == ((LEN - 256) / 256) as u8 || byte == (LEN / 256) as u8)
    );
    // Behind the end of the file, in its last page.
    device.read(range(weights, 2 * PAGE as u64 - 256, 256), &mut last).unwrap();
    assert_eq!(last, [0; 256]);
    device.read(range(weights, 2 * PAGE as u64 - 255, 256), &mut last).unwrap_err();

    device.run(&[copy(range(weights, 64, 64), range(own, 0, 64))], &[1]).unwrap();
    let written = copy(range(own, 0, 64), range(weights, 64, 64));
    let DeviceError::Kernel { reason, .. } = device.run(&[written], &[1]).unwrap_err() else {
        panic!("a kernel")
    };
    assert!(reason.contains("buffer 1: it is a mapped file, which nothing writes"), "{reason}");
    let error = device.write(range(weights, 0, 4), &[0; 4]).unwrap_err().to_string();
    assert!(error.contains("a write failed: it is a mapped file"), "{error}");
    device.read(range(own, 0, 64), &mut [0; 64]).unwrap();
    none(&contract);
}

#[test]
fn a_file_stays_mapped_until_its_buffer_is_released_or_the_device_goes() {
    let copies = |device: &mut MetalDevice<Contract>, weights, own| {
        let range = |buffer| Range { place: Place::Buffer(buffer), start: 0, len: 64 };
        device.run(&[copy(range(weights), range(own))], &[1]).unwrap();
    };
    for is_released in [true, false] {
        let contract = mac();
        let mut device = device(&contract);
        let own = device.allocate("a buffer", 256).unwrap();
        let (file, is_mapped) = file();
        let weights = device.adopt("weights", file.pages(0..64).unwrap()).unwrap().unwrap();
        drop(file);
        copies(&mut device, weights, own);
        assert!(is_mapped.load(Ordering::Relaxed));
        if is_released {
            // With work under way, which is waited for first.
            device.release(weights).unwrap();
            assert!(!is_mapped.load(Ordering::Relaxed));
            let range = Range { place: Place::Buffer(weights), start: 0, len: 4 };
            device.read(range, &mut [0; 4]).unwrap_err();
        }
        drop(device);
        assert!(!is_mapped.load(Ordering::Relaxed));
        none(&contract);
    }
}
