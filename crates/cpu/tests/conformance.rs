//! The conformance suite of `calla-testkit` on the CPU backend, on the best instruction set here and on the
//! one that every machine has.

use calla_cpu::{Cpu, Isa};
use calla_testkit::conformance::Suite;
use calla_testkit::tolerance;

fn suite(isa: Isa) -> Suite {
    // Three threads, so that no row count of the suite splits evenly.
    let make = move |shape: &calla_model::Shape, cache| {
        Cpu::with_isa(shape.clone(), cache, 3, isa).expect("an available instruction set")
    };
    Suite::new(make, tolerance::F32)
}

mod best {
    use super::*;

    calla_testkit::conformance_tests!(suite(Isa::detect()));
}

mod portable {
    use super::*;

    calla_testkit::conformance_tests!(suite(Isa::Portable).longest(80));
}
