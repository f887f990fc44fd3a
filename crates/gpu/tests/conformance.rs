//! The cases that `calla doctor` runs: they cover every kernel, hold in any order of threads, and find planted faults.

mod common;

use calla_conformance::{CASES, Failure, run, self_test};
use calla_gpu::sources::{HEADERS, KERNELS};
use calla_gpu::{BufferId, Device, DeviceError, Dispatch, Place, Range};
use calla_msl::{Target, translate};
use common::TestDevice;
use std::collections::{BTreeMap, BTreeSet};

/// Entry points by the name of their file.
fn all_entries() -> BTreeMap<String, BTreeSet<String>> {
    let headers: Vec<(&str, &str)> = HEADERS.iter().map(|h| (h.name, h.text)).collect();
    KERNELS
        .iter()
        .map(|source| {
            let translated = translate(Target::Host, source.name, source.text, &headers);
            let translated = translated.unwrap_or_else(|error| panic!("{error}"));
            let entries = translated.entries.into_iter().map(|entry| entry.name);
            (source.name.trim_end_matches(".metal").to_owned(), entries.collect())
        })
        .collect()
}

#[test]
fn every_kernel_is_the_references_in_any_order_of_threads() {
    let Some(mut device) = common::device() else { return };
    for order in common::ORDERS {
        device.set_order(order);
        let mut ran: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for case in CASES {
            let outcome = run(&mut device, case);
            let agreement = outcome.result.unwrap_or_else(|e| panic!("{}: {e}", case.kernel));
            assert!(agreement.off <= agreement.allowed, "{}: {agreement:?}", case.kernel);
            println!("{}: {:.1e}, allowed {:.1e}", case.kernel, agreement.off, agreement.allowed);
            let entries = outcome.entries.into_iter().map(str::to_owned).collect();
            ran.insert(case.kernel.to_owned(), entries);
        }
        for (kernel, entries) in all_entries() {
            let covered = ran.get(&kernel).cloned().unwrap_or_default();
            let left: Vec<_> = entries.difference(&covered).collect();
            assert!(left.is_empty(), "{kernel}: no case runs {left:?}");
        }
    }
}

/// What is wrong with a device.
#[derive(Clone, Copy)]
enum Fault {
    /// It flips the highest bit of the exponent of a word of each result.
    Flip,
    /// It fails where it runs.
    Fails,
    /// It runs nothing, and says that all went well.
    Idle,
}

/// A device with a fault in one entry point.
struct Faulty {
    device: TestDevice,
    entry: &'static str,
    fault: Fault,
    /// Buffers that are there.
    alive: BTreeSet<u32>,
}

impl Device for Faulty {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        let buffer = self.device.allocate(label, bytes)?;
        self.alive.insert(buffer.0);
        Ok(buffer)
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.alive.remove(&buffer.0);
        self.device.release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(range, bytes)
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(range, bytes)
    }

    fn run(&mut self, dispatches: &[Dispatch], _: &[usize]) -> Result<(), DeviceError> {
        for dispatch in dispatches {
            let one = std::slice::from_ref(dispatch);
            if dispatch.entry != self.entry {
                self.device.run(one, &[1])?;
                continue;
            }
            match self.fault {
                Fault::Idle => {}
                Fault::Fails => return Err(DeviceError::failed(&dispatch.label, "it was lost")),
                Fault::Flip => {
                    self.device.run(one, &[1])?;
                    let mut written = dispatch
                        .bindings
                        .iter()
                        .filter(|binding| binding.access.writes() && binding.range.len > 0);
                    let range = written.next_back().expect("a result").range;
                    assert!(matches!(range.place, Place::Buffer(_)));
                    // The last byte of the first word: sign and exponent of f32, and of the second of two bf16.
                    let byte = Range { start: range.start + 3.min(range.len - 1), len: 1, ..range };
                    let mut value = [0];
                    self.device.read(byte, &mut value)?;
                    self.device.write(byte, &[value[0] ^ 0x40])?;
                }
            }
        }
        Ok(())
    }
}

#[test]
fn planted_faults_are_found_and_nothing_is_left_behind() {
    for fault in [Fault::Flip, Fault::Fails, Fault::Idle] {
        for (kernel, entries) in all_entries() {
            let Some(device) = common::device() else { return };
            if device.name() != "host" {
                // A kernel that takes a flipped index reaches out of its memory, which no GPU survives.
                println!("skipped: faults are planted on the host driver");
                return;
            }
            let case = CASES.iter().find(|case| case.kernel == kernel).expect("a case");
            let mut faulty = Faulty { device, entry: "", fault, alive: BTreeSet::new() };
            for entry in entries {
                faulty.entry = Box::leak(entry.into_boxed_str());
                let outcome = run(&mut faulty, case);
                let Err(failure) = outcome.result else {
                    panic!("{kernel}: a fault of {} was not found", faulty.entry)
                };
                // A flipped bit of an index may make another kernel fail.
                let is_error = matches!(failure, Failure::Device(_));
                assert!(is_error || !matches!(fault, Fault::Fails), "{kernel}: {failure}");
                assert!(!failure.to_string().is_empty());
                assert!(
                    faulty.alive.is_empty(),
                    "{kernel}: {} buffers are left",
                    faulty.alive.len()
                );
            }
        }
    }
}

#[test]
fn the_self_test_names_kernel_and_error() {
    let Some(mut device) = common::device() else { return };
    self_test(&mut device).unwrap_or_else(|error| panic!("{error}"));
    let (entry, alive) = ("combine", BTreeSet::new());
    let mut faulty = Faulty { device, entry, fault: Fault::Flip, alive };
    let message = self_test(&mut faulty).unwrap_err().to_string();
    assert!(message.starts_with("kernel combine: sums: row 0"), "{message}");
}
