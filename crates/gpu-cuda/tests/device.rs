//! What a device refuses, and how it says so, where there is one.

use calla_gpu::copy::{clear, copy};
use calla_gpu::{
    Access, BoundPlan, BufferId, Device as _, DeviceError, Dispatch, Dtype, Part, Plan, Range,
    Recording, Tensor,
};
use calla_gpu_cuda::{Architecture, CudaDevice, Options, Replay, devices, driver_version};

/// A device with a cache of its own, or `None` with the reason printed.
fn device() -> Option<(CudaDevice, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let cache = Some(folder.path().to_path_buf());
    match CudaDevice::new(&Options { cache, poison: true, ..Options::default() }) {
        Ok(device) => Some((device, folder)),
        Err(error) if error.is_missing() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn tensor(device: &mut CudaDevice, cols: u32) -> Tensor {
    Tensor::whole(device.allocate("test", u64::from(cols) * 4).unwrap(), 1, cols, Dtype::U32)
}

#[test]
fn a_machine_without_a_gpu_says_what_is_missing() {
    let options = Options { ordinal: 1000, ..Options::default() };
    let error = CudaDevice::new(&options).unwrap_err();
    assert!(error.is_missing(), "{error}");
    let known = ["no NVIDIA driver", "there is no CUDA device 1000"];
    assert!(known.iter().any(|text| error.to_string().contains(text)), "{error}");
}

#[test]
fn memory_is_poisoned_written_read_and_released() {
    let Some((mut device, _folder)) = device() else { return };
    let x = tensor(&mut device, 64);
    let mut bytes = [0; 256];
    device.read(x.range, &mut bytes).unwrap();
    assert_eq!(bytes, [0xff; 256]);
    let middle = Range { start: 16, len: 32, ..x.range };
    device.write(middle, &[7; 32]).unwrap();
    device.read(x.range, &mut bytes).unwrap();
    assert_eq!((bytes[15], bytes[16], bytes[47], bytes[48]), (0xff, 7, 7, 0xff));
    assert!(device.write(middle, &[7; 31]).is_err());
    assert!(device.read(Range { start: 225, len: 32, ..x.range }, &mut [0; 32]).is_err());
    let many = device.allocate("too much", 1 << 50).unwrap_err();
    assert!(matches!(many, DeviceError::OutOfMemory { bytes, .. } if bytes == 1 << 50), "{many}");
    device.release(BufferId(0)).unwrap();
    for error in [device.read(x.range, &mut bytes), device.release(BufferId(0))] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("buffer 0 was released"), "{error}");
    }
    assert!(device.release(BufferId(9)).is_err());
    // What is left still works.
    let y = tensor(&mut device, 64);
    device.write(y.range, &[3; 256]).unwrap();
    device.read(y.range, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 256]);
}

#[test]
fn dispatches_that_do_not_fit_are_refused() {
    let Some((mut device, folder)) = device() else { return };
    let (x, y) = (tensor(&mut device, 64), tensor(&mut device, 64));
    device.write(x.range, &[5; 256]).unwrap();
    let fine = copy(x.range, y.range);
    type Change = fn(&mut Dispatch);
    let changes: [(Change, &str); 8] = [
        (|d| d.entry = "none", "no kernel has this name"),
        (|d| d.grid[1] = 1 << 16, "threadgroups"),
        (|d| d.grid[0] = 0, "threadgroups"),
        (|d| d.threads[0] = 1024, "at most 256"),
        (|d| d.threads[0] = 33, "a multiple of 32"),
        (|d| d.bindings[0].range.start = 4, "not at a multiple of 16"),
        (|d| d.bindings[1].access = Access::Read, "bound to be read"),
        (|d| d.params.truncate(3), "parameters are 3 bytes"),
    ];
    for (change, expected) in changes {
        let mut dispatch = fine.clone();
        // Room for a range that starts later.
        dispatch.bindings[0].range.len = 128;
        change(&mut dispatch);
        let error = device.run(&[dispatch], &[1]).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
    assert!(device.run(std::slice::from_ref(&fine), &[2]).is_err());
    device.run(&[fine], &[1]).unwrap();
    let mut bytes = [0; 256];
    device.read(y.range, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 256]);
    assert!(std::fs::read_dir(folder.path()).unwrap().count() > 0, "machine code is kept");
}

/// A plan of copies along a chain of buffers, of which the last is cleared at its start.
fn chain(tensors: &[Tensor], arena: BufferId) -> BoundPlan {
    let mut recording = Recording::default();
    recording.push(Part::Moe, clear(tensors[tensors.len() - 1].range));
    for pair in tensors.windows(2) {
        recording.push(Part::Moe, copy(pair[0].range, pair[1].range));
    }
    BoundPlan::new(&Plan::new(recording), arena)
}

#[test]
fn plans_are_replayed_in_every_way_until_a_buffer_is_gone() {
    let Some((mut device, _folder)) = device() else { return };
    let tensors: Vec<Tensor> = (0..20).map(|_| tensor(&mut device, 64)).collect();
    let arena = device.allocate("arena", 16).unwrap();
    let plan = chain(&tensors, arena);
    let ways = [Replay::Graph, Replay::Launches, Replay::Shuffled(1), Replay::Shuffled(2)];
    for (i, way) in (1..).zip(ways) {
        device.set_replay(way, false);
        // Twice with the same graph: what it reads is what was written in between.
        for value in [i, 100 + i] {
            device.write(tensors[0].range, &[value; 256]).unwrap();
            device.replay(&plan).unwrap();
            let mut bytes = [0; 256];
            device.read(tensors[19].range, &mut bytes).unwrap();
            assert_eq!(bytes, [value; 256], "{way:?}");
        }
        device.forget(plan.id());
        device.replay(&plan).unwrap();
    }
    device.set_replay(Replay::Launches, true);
    device.replay(&plan).unwrap();
    let profile = device.take_profile();
    assert_eq!(profile.rows().values().map(|row| row.count).sum::<u64>(), 20);
    assert!(profile.rows().values().all(|row| row.microseconds > 0.0), "{profile}");
    for way in ways {
        device.set_replay(way, false);
        device.replay(&plan).unwrap();
        let gone = tensor(&mut device, 64);
        let other = chain(&[tensors[0], gone], arena);
        device.replay(&other).unwrap();
        device
            .release(match gone.range.place {
                calla_gpu::Place::Buffer(id) => id,
                calla_gpu::Place::Scratch(_) => unreachable!("it was allocated"),
            })
            .unwrap();
        let error = device.replay(&other).unwrap_err().to_string();
        assert!(error.contains("was released"), "{way:?}: {error}");
        device.replay(&plan).unwrap();
    }
}

#[test]
fn devices_are_listed_or_what_is_missing_is_said() {
    let (found, driver) = match (devices(), driver_version()) {
        (Ok(found), Ok(driver)) => (found, driver),
        (Err(error), _) | (_, Err(error)) => {
            assert!(error.is_missing(), "{error}");
            println!("skipped: {error}");
            return;
        }
    };
    println!("{driver:?} {found:?}");
    assert!(driver.major >= 12, "{driver}");
    for (ordinal, info) in (0..).zip(&found) {
        assert_eq!(info.ordinal, ordinal);
        assert!(info.memory > 1 << 30 && !info.name.is_empty(), "{info:?}");
        if info.architecture >= Architecture::OLDEST {
            let free = CudaDevice::free_memory(&Options { ordinal, ..Options::default() }).unwrap();
            assert!(free <= info.memory, "{free} of {info:?}");
        }
    }
}
