//! Every kernel against the reference, on any device.
//!
//! [`CASES`] are few and small, so that all of them take seconds: `calla doctor` runs them, and so does the self-test of a
//! GPU before it is used and after it has failed. The tests of the kernels share bounds ([`tolerance`]), inputs and
//! references with them, and go much further.

mod cases;
mod check;
pub mod delta;
mod lab;
pub mod paged;
pub mod quantised;
pub mod routed;
pub mod temporaries;
pub mod tolerance;
pub mod values;

pub use cases::CASES;

use calla_gpu::{Device, DeviceError};
use lab::Lab;

/// One kernel and the kernels beside it in its file, with inputs that are always the same.
pub struct Case {
    /// Name of the file.
    pub kernel: &'static str,
    run: fn(&mut dyn Device) -> Result<Agreement, Failure>,
}

/// How far results are from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// The largest difference, relative to the root mean square of the expected row; 0 where all bits have to agree.
    pub off: f32,
    /// How large it may be.
    pub allowed: f32,
}

/// Why a kernel cannot be relied on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Results are not the reference's.
    #[error("{what}: {difference}")]
    Differs {
        /// Which results.
        what: String,
        /// Where they differ, and how.
        difference: String,
    },
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Name of the kernel's file.
    pub kernel: &'static str,
    /// Entry points that ran, each once.
    pub entries: Vec<&'static str>,
    /// How far results are off, or why they are not used.
    pub result: Result<Agreement, Failure>,
}

/// A kernel that cannot be relied on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("kernel {kernel}: {failure}")]
pub struct SelfTestError {
    /// Name of its file.
    pub kernel: &'static str,
    /// Why.
    #[source]
    pub failure: Failure,
}

/// Runs a case, and gives all that it allocated back.
pub fn run(device: &mut dyn Device, case: &Case) -> Outcome {
    let mut lab = Lab::new(device);
    let result = (case.run)(&mut lab);
    let (entries, end) = lab.end();
    // What a device gives that has failed says nothing more.
    let result = end.map_err(Failure::Device).and(result);
    Outcome { kernel: case.kernel, entries, result }
}

/// Runs all cases, up to the first that fails.
///
/// # Errors
/// The kernel that cannot be relied on.
pub fn self_test(device: &mut dyn Device) -> Result<(), SelfTestError> {
    for case in CASES {
        let Outcome { kernel, result, .. } = run(device, case);
        result.map_err(|failure| SelfTestError { kernel, failure })?;
    }
    Ok(())
}
