//! The GPUs of this machine, without using any.

use crate::compiler::{Architecture, Version};
use crate::error::{CudaError, Kind, driver_error};
use cudarc::driver::result::{DriverError, device, init};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// What `--device cuda:N` calls it.
    pub ordinal: u32,
    /// What its maker calls it.
    pub name: String,
    /// What it can do.
    pub architecture: Architecture,
    /// Bytes of its memory. [`crate::CudaDevice::free_memory`] tells how much of it is free.
    pub memory: u64,
}

/// All GPUs that the driver shows, those too old for calla included.
///
/// # Errors
/// If there is no driver or no GPU ([`CudaError::is_missing`]), or it does not tell.
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    require_driver()?;
    init().map_err(start_error(0))?;
    let count = device::get_count().map_err(driver_error("count devices"))?;
    let all = (0..count).map(|ordinal| {
        info(ordinal).map_err(|error| driver_error("describe a device")(error).into())
    });
    all.collect()
}

/// Version of the driver's CUDA.
///
/// # Errors
/// If there is no driver ([`CudaError::is_missing`]), or it does not tell.
pub fn driver_version() -> Result<Version, CudaError> {
    require_driver()?;
    let mut version = 0;
    // SAFETY: it points to an integer.
    let told = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    told.map_err(driver_error("tell its version"))?;
    let version = version.unsigned_abs();
    Ok(Version { major: version / 1000, minor: version % 1000 / 10 })
}

/// Looks for the driver.
pub(crate) fn require_driver() -> Result<(), CudaError> {
    // SAFETY: it loads a library of that name, whose initialisers are the vendor's.
    if unsafe { sys::is_culib_present() } { Ok(()) } else { Err(Kind::NoDriver.into()) }
}

/// Why the driver did not start for GPU `ordinal`.
pub(crate) fn start_error(ordinal: u32) -> impl FnOnce(DriverError) -> Kind {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Kind::NoDevice { ordinal, count: 0 },
        // What a toolkit brings to link with.
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => Kind::NoDriver,
        _ => driver_error("start")(error),
    }
}

fn info(ordinal: i32) -> Result<DeviceInfo, DriverError> {
    let device = device::get(ordinal)?;
    // SAFETY: the device was just got.
    let attribute = |attribute| unsafe { device::get_attribute(device, attribute) };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // SAFETY: as above.
    let memory = unsafe { device::total_mem(device) }?;
    Ok(DeviceInfo {
        ordinal: ordinal.unsigned_abs(),
        name: device::get_name(device)?,
        architecture: Architecture { major: major.unsigned_abs(), minor: minor.unsigned_abs() },
        memory: memory as u64,
    })
}
