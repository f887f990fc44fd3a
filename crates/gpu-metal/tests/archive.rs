//! Translated kernels that are kept from one start to the next.

mod common;

use calla_gpu::copy::copy;
use calla_gpu::{Device as _, Place, Range};
use calla_gpu_metal::driver::RUNS_UNTIL_KEPT;
use calla_gpu_metal::{Kernels, MetalDevice};
use common::contract::Contract;
use common::network::{demo, drive, runner_on};
use std::fs;
use std::path::{Path, PathBuf};

fn device(contract: &Contract, folder: &Path) -> MetalDevice<Contract> {
    let mut device = MetalDevice::new(contract.clone(), Kernels::Plain).unwrap();
    device.keep_archive(folder).unwrap();
    device
}

/// Pipelines that a start compiles which runs the demo's steps.
fn compiled(contract: &Contract, folder: &Path) -> usize {
    let shape = demo();
    let mut runner = runner_on(&shape, device(contract, folder));
    drive(&shape, &mut runner).unwrap();
    drop(runner);
    assert_eq!(contract.world().violations(), Vec::<String>::new());
    contract.world().compiled
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Runs one small kernel `times`.
fn run(device: &mut MetalDevice<Contract>, times: u32) {
    let buffer = device.allocate("a buffer", 128).unwrap();
    let part = |start| Range { place: Place::Buffer(buffer), start, len: 64 };
    for _ in 0..times {
        device.run(&[copy(part(0), part(64))], &[1]).unwrap();
    }
    device.read(part(0), &mut [0; 64]).unwrap();
}

#[test]
fn a_second_start_compiles_no_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let first = compiled(&Contract::new(), folder.path());
    assert!(first > 20, "{first}");
    assert_eq!(files(folder.path()).len(), 1);
    assert_eq!(compiled(&Contract::new(), folder.path()), 0);
    // Another system has machine code of its own.
    let other = Contract::with(|mac, _| mac.system = "Version 14.0 (Build 23A345)".to_owned());
    assert_eq!(compiled(&other, folder.path()), first);
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn an_entry_point_is_specialised_once_for_archive_and_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    for is_there in [false, true] {
        let contract = Contract::new();
        compiled(&contract, folder.path());
        let world = contract.world();
        assert!(world.specialised > 20, "{}", world.specialised);
        assert_eq!(world.compiled, if is_there { 0 } else { world.specialised });
    }
}

#[test]
fn a_damaged_archive_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let first = compiled(&Contract::new(), folder.path());
    let path = files(folder.path()).remove(0);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert_eq!(compiled(&Contract::new(), folder.path()), first);
    assert_eq!(compiled(&Contract::new(), folder.path()), 0);
    // One that is whole, and that Metal does not take.
    let path = files(folder.path()).remove(0);
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let digest = blake3::hash(b"not an archive").to_hex();
    let key = name.rsplit_once('-').unwrap().0;
    fs::remove_file(path).unwrap();
    let path = folder.path().join(format!("{key}-{}.binarchive", &digest[..32]));
    fs::write(&path, "not an archive").unwrap();
    assert_eq!(compiled(&Contract::new(), folder.path()), first);
    assert!(!path.exists());
    assert_eq!(compiled(&Contract::new(), folder.path()), 0);
}

#[test]
fn an_archive_that_cannot_be_written_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let full = Contract::with(|_, world| world.archive_error = Some("no space".to_owned()));
    let first = compiled(&full, folder.path());
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    assert_eq!(compiled(&Contract::new(), folder.path()), first);
}

#[test]
fn an_archive_is_written_once_nothing_new_comes() {
    let folder = tempfile::tempdir().unwrap();
    let contract = Contract::new();
    let mut device = device(&contract, folder.path());
    run(&mut device, RUNS_UNTIL_KEPT);
    assert_eq!(files(folder.path()).len(), 0);
    run(&mut device, 1);
    let path = files(folder.path()).remove(0);
    // It is not written again.
    fs::remove_file(path).unwrap();
    run(&mut device, 2 * RUNS_UNTIL_KEPT);
    drop(device);
    assert_eq!(files(folder.path()).len(), 0);
}

#[test]
fn an_archive_is_given_up_when_the_gpu_computes_wrongly() {
    let folder = tempfile::tempdir().unwrap();
    compiled(&Contract::new(), folder.path());
    // The model computes zeros.
    device(&Contract::new(), folder.path()).self_test().unwrap_err();
    assert_eq!(files(folder.path()).len(), 0);
}
