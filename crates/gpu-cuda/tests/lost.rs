//! A GPU that is lost, in a process of its own: nothing else can use the GPU in it afterwards.

use calla_gpu::copy::copy;
use calla_gpu::{Device as _, Dtype, Tensor};
use calla_gpu_cuda::{CudaDevice, Options};

#[test]
fn a_lost_gpu_stays_lost_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Some(folder.path().to_path_buf());
    let mut device = match CudaDevice::new(&Options { cache, ..Options::default() }) {
        Ok(device) => device,
        Err(error) if error.is_missing() => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut tensor = || Tensor::whole(device.allocate("test", 256).unwrap(), 1, 64, Dtype::U32);
    let (x, y) = (tensor(), tensor());
    let mut wild = copy(x.range, y.range);
    // 32 GiB behind a buffer of 256 bytes.
    wild.params = [(1_u32 << 31).to_ne_bytes(), [0; 4]].concat();
    wild.grid[0] = 1 << 21;
    let mut bytes = [0; 256];
    let first = device.run(&[wild], &[1]).and_then(|()| device.read(y.range, &mut bytes));
    let first = first.unwrap_err().to_string();
    assert!(first.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{first}");
    let fine = [copy(x.range, y.range)];
    for error in [
        device.run(&fine, &[1]).unwrap_err(),
        device.write(x.range, &[1; 256]).unwrap_err(),
        device.read(x.range, &mut bytes).unwrap_err(),
        device.allocate("more", 16).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("the GPU was lost before"), "{error}");
        assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    }
}
