//! Whole networks on the device of tests.

use super::TestDevice;
use calla_gpu::{GpuRunner, RunnerSize, upload};
use calla_model::network::CheckpointParts;
use calla_model::{Network, Shape};
use calla_weights::Checkpoint;
use std::path::Path;

/// A checkpoint's network and its shape.
pub fn checkpoint(dir: &Path) -> (Shape, Network<CheckpointParts>) {
    let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
    let shape = checkpoint.shape().clone();
    (shape, checkpoint.load().expect("its weights"))
}

/// A runner on the device of tests; `None`, with the reason printed, where there is none.
pub fn runner(
    shape: &Shape,
    network: &Network<CheckpointParts>,
    size: RunnerSize,
) -> Option<GpuRunner<TestDevice>> {
    let mut device = super::device()?;
    let network = upload(&mut device, network, shape).expect("weights that kernels take");
    let name = device.name();
    Some(GpuRunner::new(device, name, shape, network, size).expect("memory"))
}
