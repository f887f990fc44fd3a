//! Faults that a driver could have, planted one at a time: the model of Metal must notice each.

mod common;

use calla_gpu::copy::copy;
use calla_gpu::{Device as _, Place, Range};
use calla_gpu_metal::{Kernels, MetalDevice};
use common::contract::{Contract, Plant};
use common::files;
use common::network::{demo, drive, runner, runner_of};

/// What is noted with a fault planted.
fn violations(plant: Plant) -> Vec<String> {
    let contract = Contract::with(|_, world| world.plant = Some(plant));
    let shape = demo();
    let mut runner = runner(&shape, &contract);
    drive(&shape, &mut runner).unwrap();
    contract.world().violations()
}

#[test]
fn each_planted_fault_is_noticed() {
    // In the middle of things; the pipeline where its predecessor has another.
    let plants = [
        (Plant::NoBarrier(5), "no barrier after"),
        (Plant::NoBarrier(200), "no barrier after"),
        (Plant::SlotsSwapped(40), "is buffer"),
        (Plant::SlotOffByOne(40), "is not bound"),
        (Plant::SlotUnset(40), "is not bound"),
        (Plant::OffsetLost, "at 0, not"),
        (Plant::OffsetShifted(40), "offset 4"),
        (Plant::ShortBuffer(3), "is too short"),
        (Plant::ParamsUnset(9), "has no bytes"),
        (Plant::ParamsShort(9), "bytes, of"),
        (Plant::ParamsAtWrongSlot(9), "has no bytes"),
        (Plant::ParamsOfOther(9), "bytes, of"),
        (Plant::StalePipeline(60), "in place of"),
        (Plant::ConstantLost, "in place of"),
        (Plant::ConstantWrong, "in place of"),
        (Plant::TooManyThreads(9), "threads, at most"),
        (Plant::PartialSimdgroup(9), "threads, at most"),
        (Plant::GridTooLarge(9), "threadgroups of"),
        (Plant::DispatchLost(9), "was never dispatched"),
        (Plant::DispatchTwice(9), "nobody asked for"),
        (Plant::EndLost, "before its encoder has ended"),
        (Plant::EndEarly(9), "after the end of its encoder"),
        (Plant::CommitLost, "was never committed"),
        (Plant::CommitTwice, "is committed twice"),
        (Plant::ErrorUnread, "nobody read how"),
        (Plant::ErrorUnread, "a read of a buffer that"),
        (Plant::WaitLost(3), "of a buffer that"),
        (Plant::WaitLost(3), "nobody read how"),
        (Plant::ReleasedWhileRunning(9), "which was released"),
    ];
    for (plant, due) in plants {
        let found = violations(plant);
        assert!(found.iter().any(|text| text.contains(due)), "{plant:?}: {found:#?}");
    }
}

/// The same with weights in mapped files.
fn violations_in_place(demo: &files::Demo, plant: Plant) -> Vec<String> {
    let contract = Contract::with(|_, world| world.plant = Some(plant));
    let (device, network) = files::bring(demo, &contract, &demo.files);
    let mut runner = runner_of(&demo.shape, device, network);
    drive(&demo.shape, &mut runner).unwrap();
    contract.world().violations()
}

#[test]
fn each_planted_fault_with_a_mapped_file_is_noticed() {
    let demo = files::demo(&[0, 16]);
    let plants = [
        (Plant::PagesMisaligned(0), "not from where one starts"),
        (Plant::PagesMisaligned(1), "not from where one starts"),
        (Plant::PagesPartial(1), "not of whole pages"),
        (Plant::PagesBeyondFile(1), "behind the file's pages"),
        (Plant::PagesUnmapped(1), "was released"),
        (Plant::PagesUnmapped(1), "was unmapped while"),
        (Plant::FileWritten(3), "which is a mapped file"),
        (Plant::FileBoundToWrite(40), "writes mapped weights from"),
    ];
    for (plant, due) in plants {
        let found = violations_in_place(&demo, plant);
        assert!(found.iter().any(|text| text.contains(due)), "{plant:?}: {found:#?}");
    }
}

/// Steps that follow one another without a wait: tracking is what orders them.
#[test]
fn command_buffers_that_nothing_orders_are_noticed() {
    let ordered = |plant| {
        let contract = Contract::with(|_, world| world.plant = plant);
        let mut device = MetalDevice::new(contract.clone(), Kernels::Plain).unwrap();
        let buffer = device.allocate("a buffer", 128).unwrap();
        let part = |start| Range { place: Place::Buffer(buffer), start, len: 64 };
        for _ in 0..2 {
            device.run(&[copy(part(0), part(64))], &[1]).unwrap();
        }
        device.read(part(0), &mut [0; 64]).unwrap();
        contract.world().violations()
    };
    assert_eq!(ordered(None), Vec::<String>::new());
    let found = ordered(Some(Plant::Untracked(0)));
    assert!(found.iter().any(|text| text.contains("nothing orders")), "{found:#?}");
}
