//! The device that tests of kernels run on: the host, or a GPU where `CALLA_GPU_DEVICE` says so.

use calla_gpu::{BoundPlan, BufferId, Device, DeviceError, Dispatch, MappedPages, PlanId, Range};
use calla_gpu_cuda::CudaDevice;
use calla_gpu_host::HostDevice;

/// Any of the drivers.
pub enum TestDevice {
    Host(Box<HostDevice>),
    Cuda(Box<CudaDevice>),
    #[cfg(target_os = "macos")]
    Metal(Box<calla_gpu_metal::MetalDevice<calla_gpu_metal::metal::Metal>>),
}

impl TestDevice {
    /// A device, or `None` with the reason printed where this machine has none.
    ///
    /// `CALLA_GPU_DEVICE`: `host`, which is what it is without it, `cuda`, or on a Mac `metal`. CUDA waits for each dispatch
    /// unless `CALLA_GPU_REPLAY` says how plans are run.
    pub fn new() -> Option<Self> {
        let name = std::env::var("CALLA_GPU_DEVICE").unwrap_or_else(|_| "host".to_owned());
        let (device, missing) = match name.as_str() {
            "host" => {
                let device = HostDevice::new(&calla_gpu_host::Options::from_env());
                let missing = device.as_ref().is_err_and(|error| error.is_missing_compiler());
                (
                    device.map(|device| Self::Host(Box::new(device))).map_err(|e| e.to_string()),
                    missing,
                )
            }
            "cuda" => {
                let options = calla_gpu_cuda::Options::from_env();
                let wait = std::env::var_os("CALLA_GPU_REPLAY").is_none();
                let options = calla_gpu_cuda::Options { poison: true, wait, ..options };
                let device = CudaDevice::new(&options);
                // Who asks for one wants its verdict.
                (
                    device.map(|device| Self::Cuda(Box::new(device))).map_err(|e| e.to_string()),
                    false,
                )
            }
            #[cfg(target_os = "macos")]
            "metal" => {
                use calla_gpu_metal::{Kernels, MetalDevice, metal::Metal};
                let device = Metal::new().and_then(|api| MetalDevice::new(api, Kernels::Plain));
                (
                    device.map(|device| Self::Metal(Box::new(device))).map_err(|e| e.to_string()),
                    false,
                )
            }
            _ => panic!("CALLA_GPU_DEVICE is host, cuda, or on a Mac metal, not {name:?}"),
        };
        match device {
            Ok(device) => Some(device),
            Err(error) if missing => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// What `CALLA_GPU_DEVICE` calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Cuda(_) => "cuda",
            #[cfg(target_os = "macos")]
            Self::Metal(_) => "metal",
        }
    }

    /// Sets the order of lanes, simdgroups and threadgroups. A GPU has its own.
    pub fn set_order(&mut self, order: u32) {
        if let Self::Host(device) = self {
            device.set_order(order);
        }
    }

    fn driver(&mut self) -> &mut dyn Device {
        match self {
            Self::Host(device) => device.as_mut(),
            Self::Cuda(device) => device.as_mut(),
            #[cfg(target_os = "macos")]
            Self::Metal(device) => device.as_mut(),
        }
    }
}

impl Device for TestDevice {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.driver().allocate(label, bytes)
    }

    fn adoptable_bytes(&self) -> u64 {
        match self {
            Self::Host(device) => device.adoptable_bytes(),
            Self::Cuda(device) => device.adoptable_bytes(),
            #[cfg(target_os = "macos")]
            Self::Metal(device) => device.adoptable_bytes(),
        }
    }

    fn adopt(&mut self, label: &str, pages: MappedPages) -> Result<Option<BufferId>, DeviceError> {
        self.driver().adopt(label, pages)
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.driver().release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.driver().write(range, bytes)
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.driver().read(range, bytes)
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        self.driver().run(dispatches, stages)
    }

    fn replay(&mut self, plan: &BoundPlan) -> Result<(), DeviceError> {
        self.driver().replay(plan)
    }

    fn forget(&mut self, plan: PlanId) {
        self.driver().forget(plan);
    }
}
