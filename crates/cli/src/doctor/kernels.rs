//! Every kernel against the reference.

use super::report::Kernel;
use calla_conformance::CASES;
use calla_cpu::Cpu;
use calla_gpu::Device;
use calla_testkit::conformance::{Model, Suite};
use calla_testkit::weights::Formats;
use calla_testkit::{operations, shapes, tolerance};

/// Kernels of a GPU. A device that has failed is asked on: other kernels may say what is wrong with it.
pub(super) fn gpu(device: &mut dyn Device) -> Vec<Kernel> {
    let outcomes = CASES.iter().map(|case| calla_conformance::run(device, case));
    outcomes
        .map(|outcome| {
            let (agreement, error) = match outcome.result {
                Ok(agreement) => (Some(agreement), None),
                Err(failure) => (None, Some(failure.to_string())),
            };
            Kernel {
                name: outcome.kernel,
                entries: outcome.entries,
                off: agreement.map(|found| found.off),
                allowed: agreement.map(|found| found.allowed),
                error,
            }
        })
        .collect()
}

/// Operations of the CPU backend, with so many threads (0: all).
pub(super) fn cpu(threads: usize) -> Vec<Kernel> {
    let make = move |shape: &calla_model::Shape, cache| {
        Cpu::new(shape.clone(), cache, threads).expect("threads, and memory for a small shape")
    };
    let suite = Suite::new(make, tolerance::F32);
    let model = Model::with_seed(shapes::small(), Formats::Mixed, 1);
    // One has no bound: which of equal experts it chooses is nobody's business.
    let bounded = operations::all().into_iter().filter_map(|op| Some((op.bound?, op)));
    bounded
        .map(|(bound, operation)| {
            let found = suite.check(&operation, &model);
            Kernel {
                name: operation.name,
                entries: vec![],
                off: found.as_ref().ok().copied(),
                allowed: Some(bound(suite.tolerance())),
                error: found.err(),
            }
        })
        .collect()
}
