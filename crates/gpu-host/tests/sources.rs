//! Every kernel of `calla-gpu` translates and compiles, in both builds; a folder's files take the place of some.

mod common;
use calla_gpu::sources::KERNELS;
use calla_gpu_host::{HostDevice, Options};

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

#[test]
fn files_of_a_folder_take_the_place_of_kernels() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("copy.metal"), "kernel void other() {}").expect("a file");
    let options = Options { kernels: Some(folder.clone()), ..Options::default() };
    let entries = match HostDevice::new(&options) {
        Ok(device) => device.entries(),
        Err(error) if error.is_missing_compiler() => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let has = |name: &str| entries.iter().any(|entry| entry == name);
    assert!(has("other") && !has("copy") && has("embed"), "{entries:?}");
    let options = Options { kernels: Some(folder.join("none")), ..Options::default() };
    let error = HostDevice::new(&options).expect_err("there is no such folder").to_string();
    assert!(error.contains("cannot read") && error.contains("none"), "{error}");
}
