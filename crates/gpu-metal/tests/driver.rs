//! What the driver refuses, and what it makes of a GPU that fails.

mod common;

use calla_gpu::{BufferId, Device as _, DeviceError, Dispatch, Dtype, Place, Range, Tensor};
use calla_gpu_metal::capabilities::Unsuitable;
use calla_gpu_metal::driver::UNDER_WAY;
use calla_gpu_metal::self_test;
use calla_gpu_metal::{Fault, Kernels, MetalDevice, OpenError};
use calla_ops::{Runner as _, SpanKind};
use common::contract::Contract;
use common::network::{batch, demo, drive, runner};

fn device(contract: &Contract) -> MetalDevice<Contract> {
    MetalDevice::new(contract.clone(), Kernels::Plain).unwrap()
}

fn reason(result: Result<(), DeviceError>) -> String {
    match result.unwrap_err() {
        DeviceError::Kernel { reason, .. } | DeviceError::Failed { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// Waits for what runs.
fn wait(device: &mut MetalDevice<Contract>, buffer: BufferId) -> Result<(), DeviceError> {
    device.read(Range { place: Place::Buffer(buffer), start: 0, len: 4 }, &mut [0; 4])
}

/// Has the model pass the self-test.
fn compute_rightly(contract: &Contract) {
    let bytes = self_test::expected().into_iter().flat_map(f32::to_le_bytes).collect();
    contract.world().contents.insert(self_test::LABEL.to_owned(), bytes);
}

/// A copy of 64 bytes, in parts of one buffer.
fn copy(buffer: BufferId, from: u64, to: u64) -> Dispatch {
    let place = Place::Buffer(buffer);
    let half = |start| Tensor::new(place, start, 1, 16, Dtype::F32);
    Dispatch::new("copy")
        .read(half(from))
        .write(half(to))
        .params(&[4_u32, 0])
        .grid([1; 3], [256, 1, 1])
}

#[test]
fn a_dispatch_that_does_not_fit_is_refused_before_anything_runs() {
    let contract = Contract::new();
    let mut device = device(&contract);
    let buffer = device.allocate("a buffer", 128).unwrap();
    device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
    wait(&mut device, buffer).unwrap();
    let made = contract.world().command_buffers();
    let refused = [
        (Dispatch { threads: [512, 1, 1], ..copy(buffer, 0, 64) }, "at most 256"),
        (Dispatch { threads: [0, 1, 1], ..copy(buffer, 0, 64) }, "at most 256"),
        (Dispatch { grid: [1, 0, 1], ..copy(buffer, 0, 64) }, "[1, 0, 1] threadgroups"),
        (copy(buffer, 0, 80), "64 bytes from 80 on end after its 128 bytes"),
        (copy(buffer, u64::MAX - 32, 64), "end after its 128 bytes"),
        (copy(BufferId(7), 0, 64), "there is no buffer 7"),
        (Dispatch { params: vec![0; 4100], ..copy(buffer, 0, 64) }, "Metal takes 4096"),
        (Dispatch { entry: "kopy", ..copy(buffer, 0, 64) }, "no kernel has this name"),
    ];
    for (dispatch, due) in refused {
        // Behind one that could run: nothing of a plan runs if some of it cannot.
        let found = reason(device.run(&[copy(buffer, 0, 64), dispatch], &[1, 1]));
        assert!(found.contains(due), "{found}");
    }
    let mut unplaced = copy(buffer, 0, 64);
    unplaced.bindings[0].range.place = Place::Scratch(0);
    assert!(reason(device.run(&[unplaced], &[1])).contains("no place"));
    assert!(reason(device.run(&[copy(buffer, 0, 64)], &[2])).contains("stages hold 2"));
    assert_eq!(contract.world().command_buffers(), made);
    assert_eq!(contract.world().violations(), Vec::<String>::new());
}

#[test]
fn memory_is_counted_and_refused_beyond_the_working_set() {
    let contract = Contract::with(|capabilities, _| {
        capabilities.working_set_bytes = 1000;
        capabilities.buffer_bytes = 800;
    });
    let mut device = device(&contract);
    let too_large = device.allocate("weights", 801).unwrap_err();
    let most = "maxBufferLength, for one buffer, is 800 bytes; use a smaller --ctx";
    for due in ["allocate 801 bytes for weights: 0 bytes are allocated", most] {
        assert!(too_large.to_string().contains(due), "{too_large}");
    }
    let first = device.allocate("weights", 793).unwrap();
    let second = device.allocate("nothing", 0).unwrap();
    assert_eq!(device.allocated_bytes(), 800 + 16);
    let too_many = device.allocate("state", 200).unwrap_err();
    for due in [
        "200 bytes for state: 816 bytes are allocated",
        "is 1000 bytes",
        "recommendedMaxWorkingSetSize",
        "iogpu.wired_limit_mb",
    ] {
        assert!(too_many.to_string().contains(due), "{too_many}");
    }
    device.allocate("state", u64::MAX).unwrap_err();
    device.release(first).unwrap();
    let third = device.allocate("state", 200).unwrap();
    assert_ne!(third, first);
    assert_eq!(device.allocated_bytes(), 208 + 16);
    assert!(reason(device.release(first)).contains("there is no buffer 0"));
    let whole = |buffer, len| Range { place: Place::Buffer(buffer), start: 0, len };
    assert!(reason(device.write(whole(first, 4), &[0; 4])).contains("there is no buffer 0"));
    assert!(reason(device.write(whole(third, 4), &[0; 5])).contains("5 bytes are given"));
    assert!(reason(device.read(whole(third, 209), &mut [0; 209])).contains("after its 208"));
    device.read(whole(third, 208), &mut [0; 208]).unwrap();
    device.write(whole(second, 0), &[]).unwrap();
    assert_eq!(contract.world().violations(), Vec::<String>::new());
}

#[test]
fn what_a_device_lacks_is_said_at_the_start() {
    let open = |change: fn(&mut _, &mut _)| {
        MetalDevice::new(Contract::with(change), Kernels::Plain).err().unwrap()
    };
    let old = open(|capabilities: &mut calla_gpu_metal::Capabilities, _| {
        capabilities.macos = (13, 4);
    });
    assert_eq!(old, OpenError::Unsuitable(Unsuitable::Macos((13, 4))));
    let broken = open(|_, world: &mut common::contract::World| {
        world.compiler_errors.insert("qmm.metal".to_owned(), "qmm.h:3: error".to_owned());
    });
    assert!(broken.to_string().contains("qmm.metal does not compile"), "{broken}");
    assert!(broken.to_string().contains("qmm.h:3: error"), "{broken}");

    let contract = Contract::with(|_, world| world.threadgroup_bytes = (32 << 10) + 16);
    let mut device = device(&contract);
    let buffer = device.allocate("a buffer", 128).unwrap();
    let found = reason(device.run(&[copy(buffer, 0, 64)], &[1]));
    assert!(found.contains("32784 bytes of threadgroup memory"), "{found}");
}

#[test]
fn a_failed_command_buffer_is_an_error_and_the_next_run_works() {
    let fault = Fault::Timeout("kIOGPUCommandBufferCallbackErrorTimeout".to_owned());
    let shape = demo();
    // Which of the command buffers fails does not matter: none goes unread.
    let (first, all) = {
        let contract = Contract::new();
        let mut runner = runner(&shape, &contract);
        let first = contract.world().command_buffers();
        drive(&shape, &mut runner).unwrap();
        (first, contract.world().command_buffers())
    };
    assert!(all - first >= 9, "{first} to {all}");
    for number in first..all {
        let contract = Contract::new();
        let mut runner = runner(&shape, &contract);
        contract.world().faults.insert(number, fault.clone());
        compute_rightly(&contract);
        let error = drive(&shape, &mut runner).unwrap_err().to_string();
        assert!(error.contains("Metal") && error.contains("took too long"), "{error}");
        assert_eq!(runner.device().last_fault(), Some(&fault), "command buffer {number}");
        runner.step(&batch(&shape, SpanKind::Decode, 1, 1, 700)).unwrap();
        assert_eq!(contract.world().violations(), Vec::<String>::new());
    }
}

#[test]
fn a_lost_device_runs_nothing_more() {
    let fault = Fault::AccessRevoked("too many timeouts".to_owned());
    let contract = Contract::with(|_, world| {
        world.faults.insert(0, fault.clone());
    });
    let mut device = device(&contract);
    let buffer = device.allocate("a buffer", 128).unwrap();
    device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
    assert!(reason(wait(&mut device, buffer)).contains("start it again"));
    assert!(reason(device.run(&[copy(buffer, 0, 64)], &[1])).contains("was lost before"));
    assert_eq!(contract.world().command_buffers(), 1);
}

#[test]
fn a_long_plan_is_spread_over_command_buffers_that_are_all_read() {
    let contract = Contract::new();
    let mut device = device(&contract);
    let buffer = device.allocate("a buffer", 128).unwrap();
    let mut dispatches = vec![];
    for i in 0..40 {
        let mut dispatch = copy(buffer, 64 * (i % 2), 64 * (1 - i % 2));
        dispatch.traffic.read = 1 << 29;
        dispatches.push(dispatch);
    }
    device.run(&dispatches, &[1; 40]).unwrap();
    wait(&mut device, buffer).unwrap();
    assert_eq!(contract.world().under_way_max, UNDER_WAY);
    let made = contract.world().command_buffers();
    assert!((4..=40).contains(&made), "{made} command buffers");
    assert_eq!(contract.world().violations(), Vec::<String>::new());

    // A failure in the first: none is left unread, and the rest is not even committed.
    contract.world().faults.insert(made, Fault::PageFault("gone".to_owned()));
    let result = device.run(&dispatches, &[1; 40]).and_then(|()| wait(&mut device, buffer));
    assert!(reason(result).contains("does not have"));
    assert_eq!(contract.world().violations(), Vec::<String>::new());
    assert!(contract.world().command_buffers() <= made + 3);
}

#[test]
fn a_missing_barrier_in_the_plan_itself_is_noticed() {
    let contract = Contract::new();
    let mut device = device(&contract);
    let buffer = device.allocate("a buffer", 128).unwrap();
    let dependent = [copy(buffer, 0, 64), copy(buffer, 64, 0)];
    device.run(&dependent, &[1, 1]).unwrap();
    wait(&mut device, buffer).unwrap();
    assert_eq!(contract.world().violations(), Vec::<String>::new());
    device.run(&dependent, &[2]).unwrap();
    let violations = contract.world().violations();
    assert!(violations[0].contains("no barrier after copy"), "{violations:?}");
}

#[test]
fn plans_follow_one_another_without_a_wait_and_their_time_is_counted() {
    let contract = Contract::new();
    let mut device = device(&contract);
    let buffer = device.allocate("a buffer", 128).unwrap();
    for _ in 0..10 {
        device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
    }
    assert_eq!(contract.world().under_way_max, UNDER_WAY);
    assert!(device.gpu_seconds() < 0.08, "{}", device.gpu_seconds());
    wait(&mut device, buffer).unwrap();
    assert!((device.gpu_seconds() - 0.1).abs() < 1e-9, "{}", device.gpu_seconds());
    // One that is dropped with work under way reads how that ended.
    device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
    drop(device);
    assert_eq!(contract.world().violations(), Vec::<String>::new());
}

#[test]
fn a_failure_is_said_once_by_the_next_call_whichever_it_is() {
    for call in 0..4 {
        let contract = Contract::with(|_, world| {
            world.faults.insert(0, Fault::PageFault("gone".to_owned()));
        });
        compute_rightly(&contract);
        let mut device = device(&contract);
        let buffer = device.allocate("a buffer", 128).unwrap();
        let other = device.allocate("another", 16).unwrap();
        let word = Range { place: Place::Buffer(buffer), start: 0, len: 4 };
        device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
        let result = match call {
            0 => device.read(word, &mut [0; 4]),
            1 => device.write(word, &[0; 4]),
            2 => device.release(other),
            // As many as may be under way, and one that waits.
            _ => (0..=UNDER_WAY).try_for_each(|_| device.run(&[copy(buffer, 0, 64)], &[1])),
        };
        assert!(reason(result).contains("does not have"), "call {call}");
        wait(&mut device, buffer).unwrap();
        device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
        wait(&mut device, buffer).unwrap();
        assert_eq!(contract.world().violations(), Vec::<String>::new());
    }
}

#[test]
fn a_gpu_that_computes_wrongly_after_a_failure_runs_nothing_more() {
    let contract = Contract::with(|_, world| {
        world.faults.insert(0, Fault::Timeout("slow".to_owned()));
    });
    let mut device = device(&contract);
    let buffer = device.allocate("a buffer", 128).unwrap();
    device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
    assert!(reason(wait(&mut device, buffer)).contains("took too long"));
    // The model computes zeros.
    for _ in 0..2 {
        let found = reason(device.run(&[copy(buffer, 0, 64)], &[1]));
        assert!(found.contains("the self-test found 0 in place of 15.5"), "{found}");
        assert!(found.contains("took too long"), "{found}");
    }
    compute_rightly(&contract);
    device.self_test().unwrap();
    device.run(&[copy(buffer, 0, 64)], &[1]).unwrap();
    wait(&mut device, buffer).unwrap();
    assert_eq!(device.allocated_bytes(), 128);
    assert_eq!(contract.world().violations(), Vec::<String>::new());
}
