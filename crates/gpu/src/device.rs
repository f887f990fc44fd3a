//! What executes dispatches: a Metal or CUDA device, or the host driver of the tests.

use crate::dispatch::Dispatch;
use crate::plan::{BoundPlan, PlanId};
use crate::tensor::{BufferId, Range};
use calla_model::MappedPages;

/// Seconds that a step with rows of prompts should take at most: a cancel, which waits for the step, is then served within
/// a quarter of a second.
const SLICE_SECONDS: f64 = 0.2;

/// Why a device could not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is not the memory.
    #[error("the {device} device cannot allocate {bytes} bytes for {label}")]
    OutOfMemory {
        /// Which device.
        device: &'static str,
        /// What they are for.
        label: String,
        /// How many were asked for.
        bytes: u64,
    },
    /// It is more than the device gives a program.
    #[error(transparent)]
    OverLimit(Box<OverLimit>),
    /// A kernel does not fit the device, or a dispatch does not fit its kernel.
    #[error("{entry}: {reason}")]
    Kernel {
        /// The entry point.
        entry: String,
        /// What is wrong.
        reason: String,
    },
    /// A dispatch failed while it ran.
    #[error("{label} failed: {reason}")]
    Failed {
        /// Label of the dispatch, or what was done.
        label: String,
        /// What the device reported.
        reason: String,
    },
}

/// An allocation that exceeds a limit of the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {device} device cannot allocate {bytes} bytes for {label}: {allocated} bytes are allocated, and its {limit} is \
     {most} bytes; {advice}"
)]
pub struct OverLimit {
    /// Which device.
    pub device: &'static str,
    /// What the bytes are for.
    pub label: String,
    /// How many were asked for.
    pub bytes: u64,
    /// How many are allocated, over all buffers.
    pub allocated: u64,
    /// What the limit is called.
    pub limit: &'static str,
    /// Bytes that it allows: of one buffer, or of all.
    pub most: u64,
    /// What to do about it.
    pub advice: &'static str,
}

impl DeviceError {
    /// That `label`, a dispatch or what was done, failed for `reason`.
    pub fn failed(label: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Failed { label: label.into(), reason: reason.into() }
    }
}

/// Memory, and kernels that run on it.
pub trait Device: Send {
    /// Allocates `bytes` (rounded up to 16) for `label`. What they hold is undefined.
    ///
    /// # Errors
    /// If there is not the memory.
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError>;

    /// Bytes of the most pages of a mapped file that [`Device::adopt`] takes at once; 0 where it takes none, as where a device
    /// has memory of its own.
    fn adoptable_bytes(&self) -> u64 {
        0
    }

    /// Makes a buffer of pages of a mapped file, which stay where they are. It can be read and bound to be read, and nothing
    /// writes it. It holds the pages until it is released and nothing that runs uses it. `None` if the device does not take
    /// them after all; the caller has to copy them then.
    ///
    /// # Errors
    /// If they are more than the device gives a program.
    fn adopt(
        &mut self,
        _label: &str,
        _pages: MappedPages,
    ) -> Result<Option<BufferId>, DeviceError> {
        Ok(None)
    }

    /// Frees a buffer. Waits for what runs.
    ///
    /// # Errors
    /// If there is no such buffer, as after it was released, or the device failed.
    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError>;

    /// Copies bytes to a buffer, after what runs. `bytes` are free when it returns.
    ///
    /// # Errors
    /// If the device failed.
    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes from a buffer. Waits for what runs.
    ///
    /// # Errors
    /// If the device failed.
    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Runs dispatches of which none depends on another: each stage of a plan, in order.
    /// `stages` are lengths of consecutive groups of `dispatches`; all ranges lie in buffers.
    ///
    /// # Errors
    /// If a dispatch does not fit its kernel, or the device failed.
    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError>;

    /// Most rows of a step that prefill may use: see [`calla_ops::Runner::slice_rows`].
    fn slice_rows(&self) -> usize {
        calla_ops::SLICE_ROWS
    }

    /// Seconds that a step should take at most: see [`calla_ops::Runner::slice_seconds`].
    fn slice_seconds(&self) -> Option<f64> {
        Some(SLICE_SECONDS)
    }

    /// What makes its results differ in their last bits from those of another device that runs the same dispatches.
    fn rounding(&self) -> String {
        "Metal kernels".to_owned()
    }

    /// Runs a plan that is run again and again: what a device makes of it, it may keep until it is told to forget it.
    ///
    /// # Errors
    /// As those of [`Device::run`].
    fn replay(&mut self, plan: &BoundPlan) -> Result<(), DeviceError> {
        self.run(plan.dispatches(), plan.stages())
    }

    /// Where the machine code of its kernels came from so far, in words; `None` where there is nothing to say.
    fn machine_code(&self) -> Option<String> {
        None
    }

    /// Gives back what is kept of a plan, which is not run again. Fine if nothing is.
    fn forget(&mut self, _plan: PlanId) {}
}
