//! Prints what the GPU of this Mac offers, and what of it is not used: all kernels compile where it prints anything.

fn main() -> Result<(), calla_gpu_metal::OpenError> {
    let opened = calla_gpu_metal::open(&calla_gpu_metal::Options::default())?;
    println!("{}", opened.description);
    println!("all kernels compile");
    if opened.description.metal4 {
        println!("kernels for tensor units: their self-test passed");
    }
    Ok(())
}
