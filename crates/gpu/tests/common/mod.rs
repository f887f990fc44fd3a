//! What the tests of kernels share: a device, and values on their way to it and back.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses a part of it")]

pub mod device;
pub mod network;
pub mod orders;
pub mod planned;
pub mod sequences;
pub mod toy;

pub use calla_conformance::values::*;
pub use calla_conformance::{delta, paged, quantised, routed, temporaries, tolerance};
pub use device::TestDevice;

/// The device to test on, or `None` with the reason printed where this machine has none. On the host,
/// `CALLA_GPU_SANITIZE=1` builds kernels with AddressSanitizer and refuses every access outside a declared range.
pub fn device() -> Option<TestDevice> {
    TestDevice::new()
}

/// Orders in which lanes, simdgroups and threadgroups run: forwards, backwards, shuffled.
pub const ORDERS: [u32; 4] = [0, 1, 2, 3];
