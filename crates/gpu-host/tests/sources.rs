//! Every kernel of `calla-gpu` translates and compiles, in both builds.

mod common;
use calla_gpu::sources::KERNELS;
use calla_gpu_host::HostDevice;

#[test]
fn every_kernel_compiles() {
    for sanitize in common::BUILDS {
        let mut device = match HostDevice::new(&common::build(sanitize)) {
            Ok(device) => device,
            Err(error) if error.is_missing_compiler() => return println!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        };
        device.translated().unwrap_or_else(|error| panic!("{error}"));
        let entries = device.entries();
        assert!(entries.len() >= KERNELS.len(), "a file has no kernel");
        let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
        device.compile(&entries).unwrap_or_else(|error| panic!("{error}"));
    }
}
