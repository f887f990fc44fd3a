//! How much host memory keeps state of earlier prompts behind a GPU's.

use crate::device::{Devices, Place, Wanted};
use crate::engine_args::EngineArgs;
use crate::output;
use calla_engine::Machine;

/// Without `--host-cache-memory`, behind an NVIDIA GPU: twice what the device keeps without `--cache-memory`, or a quarter of
/// what can be had. The model takes nothing else of this memory.
const CUDA_BYTES: u64 = 4_000_000_000;
/// The same on a Mac, whose GPU and programs share all memory: this, or a quarter of what the model leaves.
const METAL_BYTES: u64 = 2_000_000_000;

/// What host memory may be used behind a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRoom {
    device: Wanted,
    /// The memory of the processor, before the model was loaded.
    host: Machine,
    /// Bytes that the model and all its state take of the device's memory.
    taken: u64,
}

impl HostRoom {
    pub(crate) fn behind(place: Place, devices: &Devices, taken: u64) -> Self {
        Self { device: devices.wanted(place.target), host: *devices.host_memory(), taken }
    }

    /// Bytes to use, as the flags say. On the CPU there is no such level: all state is in host memory already, and what is
    /// free of it goes back to the system.
    pub(crate) fn bytes(&self, engine: &EngineArgs) -> u64 {
        let asked = engine.host_cache_memory;
        let bytes = host_cache_bytes(asked, self.device, &self.host, self.taken);
        if bytes == 0 && asked.is_some_and(|megabytes| megabytes > 0) {
            output::note(
                "--host-cache-memory is not used: without a GPU all state is in host memory already, \
                 and --cache-memory bounds it",
            );
        }
        bytes
    }
}

fn host_cache_bytes(asked: Option<u32>, device: Wanted, host: &Machine, taken: u64) -> u64 {
    let usual = match device {
        Wanted::Cuda(_) => CUDA_BYTES.min(host.available / 4),
        Wanted::Metal => METAL_BYTES.min(host.available.saturating_sub(taken) / 4),
        Wanted::Auto | Wanted::Cpu | Wanted::Reference => return 0,
    };
    asked.map_or(usual, |megabytes| u64::from(megabytes) * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(gigabytes: u64) -> Machine {
        let total = gigabytes * 1_000_000_000;
        Machine { total, available: total, is_mac: false, gpu_limit_setting: None }
    }

    #[test]
    fn the_usual_size_follows_the_device_and_what_can_be_had() {
        let usual = |device, gigabytes, taken| {
            host_cache_bytes(None, device, &machine(gigabytes), taken) / 1_000_000
        };
        // What lies on an NVIDIA GPU takes nothing of the host's.
        assert_eq!(usual(Wanted::Cuda(0), 128, 80_000_000_000), 4000);
        assert_eq!(usual(Wanted::Cuda(1), 8, 80_000_000_000), 2000);
        assert_eq!(usual(Wanted::Metal, 64, 22_000_000_000), 2000);
        assert_eq!(usual(Wanted::Metal, 26, 22_000_000_000), 1000);
        assert_eq!(usual(Wanted::Metal, 16, 22_000_000_000), 0);
        assert_eq!(usual(Wanted::Cpu, 64, 0), 0);
        assert_eq!(usual(Wanted::Reference, 64, 0), 0);
    }

    #[test]
    fn what_the_user_asks_for_is_taken_where_there_is_such_a_level() {
        let asked = |megabytes, device| host_cache_bytes(Some(megabytes), device, &machine(8), 0);
        assert_eq!(asked(9000, Wanted::Cuda(0)), 9_000_000_000);
        assert_eq!(asked(0, Wanted::Metal), 0);
        assert_eq!(asked(9000, Wanted::Cpu), 0);
    }
}
