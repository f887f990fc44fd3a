//! The devices of a machine: how each is opened, and why it cannot be.

use super::Wanted;
use crate::args::ModelArgs;
use crate::machine::this_machine;
use anyhow::bail;
use calla_conformance::SelfTestError;
use calla_engine::Machine;
use calla_gpu::{Device, GpuRunner, MappedFile, RunnerSize, upload_mapped};
use calla_gpu_cuda::{CudaDevice, CudaError, Options, user_caches};
use calla_gpu_metal::{Description, Opened};
use calla_model::network::CheckpointParts;
use calla_model::{Network, Shape};
use calla_ops::Runner;
use calla_weights::Checkpoint;
use std::path::PathBuf;
use std::sync::Arc;

/// What a machine has. The tests script it.
pub(crate) trait Hardware: Send + Sync {
    /// The memory of its processor.
    ///
    /// # Errors
    /// If the system does not tell.
    fn host(&self) -> anyhow::Result<Machine>;

    /// GPUs of the kinds that such a system has, those with most free memory first.
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
    /// No Mac, no GPU, one that is too old, or kernels that do not compile.
    #[error(transparent)]
    Metal(#[from] calla_gpu_metal::OpenError),
    /// No driver, no GPU, one that is too old, or neither machine code for it nor a compiler.
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

/// A network as views into files, and the files, which a GPU may use where they are mapped.
pub(crate) struct MappedNetwork {
    pub(crate) network: Network<CheckpointParts>,
    pub(crate) files: Vec<MappedFile>,
}

impl MappedNetwork {
    /// That of a checkpoint.
    ///
    /// # Errors
    /// If it does not load.
    pub(crate) fn load(checkpoint: &Checkpoint) -> Result<Self, calla_weights::Error> {
        Ok(Self { network: checkpoint.load()?, files: checkpoint.mapped_files() })
    }
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
        weights: &MappedNetwork,
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
        weights: &MappedNetwork,
        shape: &Shape,
        size: RunnerSize,
    ) -> anyhow::Result<Box<dyn Runner>> {
        let Self { mut device, name } = *self;
        let MappedNetwork { network, files } = weights;
        let network = upload_mapped(&mut device, network, shape, files)?;
        Ok(Box::new(GpuRunner::new(device, name, shape, network, size)?))
    }
}

/// This machine.
#[derive(Default)]
pub(crate) struct System {
    /// Where a trace of a Mac's GPU is recorded.
    trace: Option<PathBuf>,
}

impl System {
    /// As flags say.
    ///
    /// # Errors
    /// If a trace is asked for of what is not a Mac's GPU.
    pub(crate) fn new(args: &ModelArgs) -> anyhow::Result<Arc<Self>> {
        let trace = args.gpu_trace.clone();
        match args.device {
            _ if trace.is_none() => {}
            Wanted::Metal => {}
            Wanted::Cuda(_) => bail!(
                "--gpu-trace records a Mac's GPU alone; on an NVIDIA GPU use Nsight: nsys profile calla ..."
            ),
            other => bail!("--gpu-trace records a Mac's GPU: it needs --device metal, not {other}"),
        }
        Ok(Arc::new(Self { trace }))
    }
}

impl Hardware for System {
    fn host(&self) -> anyhow::Result<Machine> {
        this_machine()
    }

    fn gpus(&self) -> Vec<Wanted> {
        if cfg!(target_os = "macos") {
            return vec![Wanted::Metal];
        }
        let found = calla_gpu_cuda::devices().unwrap_or_default();
        let mut all: Vec<u32> = found.iter().map(|gpu| gpu.ordinal).collect();
        if all.len() > 1 {
            // Of equal ones the first. One that does not tell comes last.
            all.sort_by_cached_key(|&ordinal| {
                let options = Options { ordinal, ..Options::default() };
                std::cmp::Reverse(CudaDevice::free_memory(&options).unwrap_or(0))
            });
        }
        let all: Vec<Wanted> = all.into_iter().map(Wanted::Cuda).collect();
        // That there is none, and why, is said when it is opened.
        if all.is_empty() { vec![Wanted::Cuda(0)] } else { all }
    }

    fn open(&self, wanted: Wanted) -> Result<Gpu, Unusable> {
        match wanted {
            Wanted::Metal => metal(self.trace.clone()),
            Wanted::Cuda(ordinal) => cuda(&Options { ordinal, ..Options::default() }),
            Wanted::Auto | Wanted::Cpu | Wanted::Reference => Err(Unusable::NoGpu(wanted)),
        }
    }
}

/// A CUDA GPU, used as `options` say.
///
/// # Errors
/// Why it cannot be used.
pub(crate) fn cuda(options: &Options) -> Result<Gpu, Unusable> {
    let device = CudaDevice::new(options)?;
    let free = device.free()?;
    Ok(Gpu {
        wanted: Wanted::Cuda(options.ordinal),
        name: device.name()?,
        // What other programs have of it is theirs.
        memory: Machine { total: free, available: free, is_mac: false, gpu_limit_setting: None },
        remark: None,
        opened: Some(Box::new(Driver { device, name: "CUDA" })),
    })
}

fn metal(trace: Option<PathBuf>) -> Result<Gpu, Unusable> {
    let archives = Some(user_caches().join("calla").join("metal"));
    let options =
        calla_gpu_metal::Options { archives, trace, ..calla_gpu_metal::Options::default() };
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
