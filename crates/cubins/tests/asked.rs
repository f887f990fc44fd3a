//! Whether the pipelines that are compiled ahead are those that programs ask for.

use calla_cubins::asked::{asked, by_checks, by_model, by_network};
use calla_cubins::make;
use calla_cubins::noting::{Blank, Noting};
use calla_gpu::estimate::Estimate;
use calla_gpu::{BufferId, Dispatch, upload};
use calla_gpu_cuda::{Architecture, Library};
use calla_model::Shape;
use calla_ops::SpanKind;
use calla_weights::Checkpoint;
use std::collections::BTreeSet;
use std::path::Path;

type Pipelines = BTreeSet<(&'static str, Vec<(u32, u32)>)>;

fn pipelines(dispatches: &[Dispatch]) -> Pipelines {
    dispatches.iter().map(|dispatch| (dispatch.entry, dispatch.constants.clone())).collect()
}

#[test]
fn plans_of_the_whole_network_need_nothing_else() {
    let ahead = pipelines(&asked().unwrap());
    for shape in [Shape::full(40), Shape::demo()] {
        let mut estimate = Estimate::new(&shape).unwrap();
        let mut found = Pipelines::new();
        for (kind, sequences, rows, context) in [
            (SpanKind::Decode, 1, 1, 1),
            (SpanKind::Decode, 1, 1, 30_000),
            (SpanKind::Decode, 3, 1, 500),
            (SpanKind::Decode, 40, 3, 900),
            (SpanKind::Prefill, 1, 1, 1),
            (SpanKind::Prefill, 1, 77, 300),
            (SpanKind::Prefill, 1, 2048, 30_000),
            (SpanKind::Prefill, 20, 100, 1000),
        ] {
            let plan = estimate.step(kind, sequences, rows, context).unwrap();
            found.extend(pipelines(&plan.bind(BufferId(0))));
        }
        let missing: Vec<_> = found.difference(&ahead).collect();
        assert!(missing.is_empty(), "{missing:?}");
        // Each layer and its products: a plan that asks for little would prove little.
        assert!(found.len() > 30, "{} pipelines", found.len());
    }
}

#[test]
fn other_numbers_of_rows_need_nothing_else() {
    let shape = Shape::full(4);
    let ahead = pipelines(&by_model(&shape, false).unwrap());
    let mut estimate = Estimate::new(&shape).unwrap();
    for rows in 1..=2048 {
        let plan = estimate.step(SpanKind::Prefill, 1, rows, 2048).unwrap();
        let found = pipelines(&plan.bind(BufferId(0)));
        assert!(found.is_subset(&ahead), "{rows} rows: {:?}", found.difference(&ahead));
    }
    for sequences in 1..=64 {
        let plan = estimate.step(SpanKind::Decode, sequences, 1, 64).unwrap();
        let found = pipelines(&plan.bind(BufferId(0)));
        assert!(found.is_subset(&ahead), "{sequences} rows: {:?}", found.difference(&ahead));
    }
}

#[test]
fn the_demo_asks_for_what_its_shape_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let network = checkpoint.load().unwrap();
    let shape = checkpoint.config().shape.clone();
    let has_mtp = network.mtp.is_some();
    let mut device = Noting::new(Blank::new());
    let network = upload(&mut device, &network, &shape).unwrap();
    let found = pipelines(&by_network(&shape, network, device).unwrap());
    assert_eq!(found, pipelines(&by_model(&Shape::demo(), has_mtp).unwrap()));
}

#[test]
fn checks_ask_for_the_same_where_nothing_is_computed() {
    let host = match calla_gpu_host::HostDevice::new(&calla_gpu_host::Options::default()) {
        Ok(host) => host,
        Err(error) if error.is_missing_compiler() => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut device = Noting::new(host);
    calla_conformance::self_test(&mut device).unwrap();
    assert_eq!(pipelines(&device.take()), pipelines(&by_checks()));
}

#[test]
fn each_gpu_is_served_with_the_kernels_that_fit_its_memory() {
    let usual = make::USUAL.map(|(major, minor)| Architecture { major, minor });
    let all = BTreeSet::from(usual);
    let names = |architecture| -> Vec<String> {
        make::served(architecture, &all).map(|gpu| gpu.to_string()).collect()
    };
    assert_eq!(
        usual.map(names),
        [vec!["8.0", "8.6", "8.9"], vec!["9.0"], vec!["10.0", "10.3"], vec!["12.0", "12.1"]]
    );
    let dispatches = asked().unwrap();
    for architecture in usual {
        let sources = make::sources(&dispatches, make::served(architecture, &all)).unwrap();
        let keys: Vec<_> = sources.iter().map(calla_gpu_cuda::Source::key).collect();
        for gpu in make::served(architecture, &all) {
            let library = Library::new(Some(gpu.block_memory())).unwrap();
            for dispatch in &dispatches {
                let key = library.source(dispatch).unwrap().key();
                assert!(keys.contains(&key), "{gpu}: {}", dispatch.entry);
            }
        }
    }
}
