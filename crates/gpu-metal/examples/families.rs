//! Prints what the GPU of this Mac offers, compiles all kernels, and says whether those for tensor units pass their
//! self-test.

#[cfg(target_os = "macos")]
fn main() -> Result<(), calla_gpu_metal::OpenError> {
    use calla_gpu_metal::{Api as _, metal};
    println!("{}", metal::Metal::new()?.capabilities());
    let (_, off) = metal::open()?;
    println!("all kernels compile");
    match off {
        None => println!("kernels for Metal 4: their self-test passed"),
        Some(why) => println!("kernels for Metal 4 stay off: {why}"),
    }
    Ok(())
}

#[cfg(not(target_os = "macos"))]
fn main() {
    eprintln!("this is no Mac");
    std::process::exit(1);
}
