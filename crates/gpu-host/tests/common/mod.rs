//! What the tests of the driver share: devices with kernels given as text, and buffers.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use bytemuck::{NoUninit, Pod, Zeroable};
use calla_gpu::{Device as _, DeviceError, Dispatch, Dtype, Tensor};
use calla_gpu_host::{HostDevice, Options};

/// A device with one file of kernels, or `None` where this machine cannot compile any.
pub(crate) fn device(options: &Options, text: &str) -> Option<HostDevice> {
    // On one line, so that messages name the lines of `text`.
    let text = format!("using namespace metal; {text}");
    match HostDevice::with_sources(options, &[("test.metal", &text)]) {
        Ok(device) => Some(device),
        Err(error) if error.is_missing_compiler() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Builds with address spaces, and with sanitizers.
pub(crate) const BUILDS: [bool; 2] = [false, true];

/// Options of a build.
pub(crate) fn build(sanitize: bool) -> Options {
    Options { sanitize, ..Options::default() }
}

/// A buffer of f32.
pub(crate) fn f32s(device: &mut HostDevice, values: &[f32]) -> Tensor {
    put(device, values, Dtype::F32)
}

/// A buffer of u32.
pub(crate) fn u32s(device: &mut HostDevice, values: &[u32]) -> Tensor {
    put(device, values, Dtype::U32)
}

fn put<T: NoUninit>(device: &mut HostDevice, values: &[T], dtype: Dtype) -> Tensor {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let buffer = device.allocate("values", bytes.len() as u64).unwrap();
    let tensor = Tensor::whole(buffer, 1, (bytes.len() as u64 / dtype.size()) as u32, dtype);
    device.write(tensor.range, bytes).unwrap();
    tensor
}

/// A buffer of `n` elements that nothing was written to.
pub(crate) fn output(device: &mut HostDevice, n: u32, dtype: Dtype) -> Tensor {
    let buffer = device.allocate("output", u64::from(n) * dtype.size()).unwrap();
    Tensor::whole(buffer, 1, n, dtype)
}

/// Reads a tensor.
pub(crate) fn get<T: Pod + Zeroable>(device: &mut HostDevice, tensor: Tensor) -> Vec<T> {
    let mut values = vec![T::zeroed(); tensor.range.len as usize / size_of::<T>()];
    device.read(tensor.range, bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}

/// Runs one dispatch.
pub(crate) fn run(device: &mut HostDevice, dispatch: Dispatch) -> Result<(), DeviceError> {
    device.run(&[dispatch], &[1])
}

/// What a dispatch fails with.
pub(crate) fn failure(device: &mut HostDevice, dispatch: Dispatch) -> String {
    run(device, dispatch).expect_err("it should fail").to_string()
}
