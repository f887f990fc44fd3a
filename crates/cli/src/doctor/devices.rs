//! Each device: whether it is there, whether its kernels are right, how fast it is.

use super::bench::{self, Sizes};
use super::kernels;
use super::report::{Examined, Kernel, Speed};
use crate::device::{Hardware, Wanted};
use calla_cpu::Isa;
use std::time::Duration;

/// Examines the processor with so many threads (0: all). `left`: how long measurements may take.
pub(super) fn cpu(threads: usize, left: Duration, tell: &mut dyn FnMut(&str)) -> Examined {
    tell("CPU: holding its operations to the reference");
    let mut examined = Examined::new(Wanted::Cpu);
    examined.name = Some(format!("CPU, {:?}", Isa::detect()));
    examined.kernels = kernels::cpu(threads);
    if !left.is_zero() {
        tell("CPU: measuring");
        examined.speed = Some(bench::cpu(threads, left).map_err(|error| error.to_string()));
    }
    examined
}

/// Examines a GPU.
pub(super) fn gpu(
    hardware: &dyn Hardware,
    wanted: Wanted,
    left: Duration,
    tell: &mut dyn FnMut(&str),
) -> Examined {
    let mut examined = Examined::new(wanted);
    let mut gpu = match hardware.open(wanted) {
        Ok(gpu) => gpu,
        Err(why) => {
            examined.not_used = Some(why.to_string());
            return examined;
        }
    };
    examined.name = Some(gpu.name.clone());
    examined.limit_bytes = Some(gpu.memory.limit());
    examined.remark = gpu.remark.take();
    let Some(mut opened) = gpu.opened.take() else {
        examined.not_used = Some("it was not opened: this is a bug".to_owned());
        return examined;
    };
    let device = opened.device();
    tell(&format!("{}: compiling kernels, and holding them to the reference", gpu.name));
    examined.kernels = kernels::gpu(device);
    // What fails once would fail in the measurements too.
    if !left.is_zero() && examined.kernels.iter().all(Kernel::is_right) {
        tell(&format!("{}: measuring", gpu.name));
        let speed: Result<Speed, _> = bench::gpu(device, Sizes::fitting(gpu.memory.limit()), left);
        examined.speed = Some(speed.map_err(|error| error.to_string()));
    }
    examined.machine_code = device.machine_code();
    examined
}
