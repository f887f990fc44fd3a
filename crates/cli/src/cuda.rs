//! An NVIDIA GPU as the device of a model.

use anyhow::Context;
use calla_engine::Machine;
use calla_gpu::{GpuRunner, RunnerSize, upload};
use calla_gpu_cuda::{CudaDevice, Options};
use calla_model::network::CheckpointParts;
use calla_model::{Network, Shape};
use calla_ops::Runner;

/// Bytes of a stored key or value, and of an element of the convolution window: bf16.
pub(crate) const ELEMENT_BYTES: usize = 2;

/// Said in front of why there is no GPU.
const UNUSABLE: &str = "--device cuda cannot be used here; --device cpu runs everywhere";

/// Its memory. What other programs have of it is theirs.
pub(crate) fn memory() -> anyhow::Result<Machine> {
    let free = CudaDevice::free_memory(&Options::default()).context(UNUSABLE)?;
    Ok(Machine { total: free, available: free, is_mac: false, gpu_limit_setting: None })
}

/// Brings a network to the GPU: what runs it there, and words for the device.
pub(crate) fn start(
    network: &Network<CheckpointParts>,
    shape: &Shape,
    size: RunnerSize,
) -> anyhow::Result<(Box<dyn Runner>, String)> {
    let mut device = CudaDevice::new(&Options::default()).context(UNUSABLE)?;
    let name = device.name()?;
    let network = upload(&mut device, network, shape)?;
    let runner = GpuRunner::new(device, "CUDA", shape, network, size)?;
    Ok((Box::new(runner), name))
}
