//! The devices of a machine: how each is opened, and why it cannot be.

use super::Wanted;
use crate::machine::this_machine;
use calla_conformance::SelfTestError;
use calla_engine::Machine;
use calla_gpu::{Device, GpuRunner, RunnerSize, upload};
use calla_gpu_cuda::{CudaDevice, CudaError, Options};
use calla_model::network::CheckpointParts;
use calla_model::{Network, Shape};
use calla_ops::Runner;

/// What a machine has. The tests script it.
pub(crate) trait Hardware: Send + Sync {
    /// The memory of its processor.
    ///
    /// # Errors
    /// If the system does not tell.
    fn host(&self) -> anyhow::Result<Machine>;

    /// GPUs that `auto` tries, best first: those of the kinds that such a system has.
    fn gpus(&self) -> Vec<Wanted>;

    /// Opens a GPU: `wanted` is `Metal` or `Cuda`.
    ///
    /// # Errors
    /// Why it cannot be used.
    fn open(&self, wanted: Wanted) -> Result<Gpu, Unusable>;
}

/// Why a backend is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// Not a Mac.
    #[cfg_attr(target_os = "macos", expect(dead_code, reason = "a Mac has Metal"))]
    #[error("this system has no Metal: only macOS has")]
    NoMetal,
    /// No GPU, one that is too old, or kernels that do not compile.
    #[error(transparent)]
    Metal(#[from] calla_gpu_metal::OpenError),
    /// No driver, no compiler, no GPU, or one that is too old.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A kernel is not the reference's.
    #[error("its self-test failed: {0}; please send what `calla doctor` says of it")]
    SelfTest(#[from] SelfTestError),
    /// What has no GPU to open.
    #[error("{0} is no GPU")]
    NoGpu(Wanted),
}

impl Unusable {
    /// The reason without what to do about it, for a line that names several.
    pub(crate) fn brief(&self) -> String {
        let text = self.to_string();
        let end = text.find([':', '(']).unwrap_or(text.len());
        text[..end].trim_end().to_owned()
    }
}

/// A GPU that can be used.
pub(crate) struct Gpu {
    /// Which one: `Metal` or `Cuda`.
    pub(crate) wanted: Wanted,
    /// What it calls itself.
    pub(crate) name: String,
    /// What of its memory can be had.
    pub(crate) memory: Machine,
    /// What of it is not used, and why.
    pub(crate) remark: Option<String>,
    /// The device, until a model takes it.
    pub(crate) opened: Option<Box<dyn OpenGpu>>,
}

/// An open GPU.
pub(crate) trait OpenGpu: Send {
    /// The driver, to run kernels on.
    fn device(&mut self) -> &mut dyn Device;

    /// Brings a network to the GPU: what runs it there.
    ///
    /// # Errors
    /// If kernels do not take the network, or the device failed or has not the memory.
    fn start(
        self: Box<Self>,
        network: &Network<CheckpointParts>,
        shape: &Shape,
        size: RunnerSize,
    ) -> anyhow::Result<Box<dyn Runner>>;
}

/// A driver, with the name of its arithmetic.
pub(crate) struct Driver<D> {
    pub(crate) device: D,
    pub(crate) name: &'static str,
}

impl<D: Device + 'static> OpenGpu for Driver<D> {
    fn device(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn start(
        self: Box<Self>,
        network: &Network<CheckpointParts>,
        shape: &Shape,
        size: RunnerSize,
    ) -> anyhow::Result<Box<dyn Runner>> {
        let Self { mut device, name } = *self;
        let network = upload(&mut device, network, shape)?;
        Ok(Box::new(GpuRunner::new(device, name, shape, network, size)?))
    }
}

/// This machine.
pub(crate) struct System;

impl Hardware for System {
    fn host(&self) -> anyhow::Result<Machine> {
        this_machine()
    }

    fn gpus(&self) -> Vec<Wanted> {
        vec![if cfg!(target_os = "macos") { Wanted::Metal } else { Wanted::Cuda(0) }]
    }

    fn open(&self, wanted: Wanted) -> Result<Gpu, Unusable> {
        match wanted {
            Wanted::Metal => metal(),
            Wanted::Cuda(ordinal) => cuda(ordinal),
            Wanted::Auto | Wanted::Cpu | Wanted::Reference => Err(Unusable::NoGpu(wanted)),
        }
    }
}

fn cuda(ordinal: u32) -> Result<Gpu, Unusable> {
    let options = Options { ordinal, ..Options::default() };
    let device = CudaDevice::new(&options)?;
    let free = CudaDevice::free_memory(&options)?;
    Ok(Gpu {
        wanted: Wanted::Cuda(ordinal),
        name: device.name()?,
        // What other programs have of it is theirs.
        memory: Machine { total: free, available: free, is_mac: false, gpu_limit_setting: None },
        remark: None,
        opened: Some(Box::new(Driver { device, name: "CUDA" })),
    })
}

#[cfg(not(target_os = "macos"))]
fn metal() -> Result<Gpu, Unusable> {
    Err(Unusable::NoMetal)
}

#[cfg(target_os = "macos")]
fn metal() -> Result<Gpu, Unusable> {
    use calla_gpu_metal::{Description, Opened};
    let options = calla_gpu_metal::Options::default();
    let Opened { device, description } = calla_gpu_metal::open(&options)?;
    let Description { capabilities, metal4, unused } = description;
    let working_set = capabilities.working_set_bytes;
    let (total, available) = this_machine()
        .map_or((working_set, working_set), |machine| (machine.total, machine.available));
    let memory = Machine {
        total,
        available,
        is_mac: true,
        // What Metal itself tells; it knows of the setting.
        gpu_limit_setting: Some(working_set),
    };
    Ok(Gpu {
        wanted: Wanted::Metal,
        name: capabilities.name,
        memory,
        remark: unused.first().map(ToString::to_string),
        opened: Some(Box::new(Driver {
            device,
            name: if metal4 { "Metal+metal4x2" } else { "Metal" },
        })),
    })
}
