//! The self-test's known results are those of the kernels, run on the processor.

use calla_gpu_host::{HostDevice, Options};
use calla_gpu_metal::self_test::self_test;

#[test]
fn kernels_give_the_known_results() {
    match HostDevice::new(&Options::from_env()) {
        Ok(mut device) => self_test(&mut device).unwrap(),
        Err(error) if error.is_missing_compiler() => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}
