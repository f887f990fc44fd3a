//! What the program and the machine are.

use crate::machine::processor;
use calla_engine::Machine;
use serde::Serialize;
use sysinfo::System;

/// The program and the machine.
#[derive(Serialize)]
pub(super) struct Facts {
    /// The program's version.
    pub(super) version: &'static str,
    /// The commit that it was built from, if that was known.
    pub(super) commit: &'static str,
    /// The system, and its kernel.
    pub(super) system: String,
    /// What the processor calls itself.
    pub(super) processor: String,
    /// What of its instruction sets matters here.
    pub(super) features: Vec<&'static str>,
    /// Cores that this process may use.
    pub(super) cores: usize,
    pub(super) memory_bytes: u64,
    pub(super) available_bytes: u64,
    /// What a model and its state may take in host memory.
    pub(super) limit_bytes: u64,
    /// What a Mac's GPU may keep resident.
    pub(super) gpu_working_set_bytes: Option<u64>,
}

pub(super) fn gather(host: &Machine) -> Facts {
    let kernel = System::kernel_version().map(|version| format!(", kernel {version}"));
    let system = System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned());
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        commit: env!("CALLA_COMMIT"),
        system: system + &kernel.unwrap_or_default(),
        processor: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        features: features(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: host.total,
        available_bytes: host.available,
        limit_bytes: host.limit(),
        gpu_working_set_bytes: host.gpu_working_set(),
    }
}

/// Names of those of `$feature` that are there.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! found {
    ($detected:ident: $($feature:tt)*) => {{
        let all = [$(($feature, std::arch::$detected!($feature))),*];
        all.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
    }};
}

fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    return found!(is_x86_feature_detected: "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl"
                  "avx512vnni" "avx512bf16");
    #[cfg(target_arch = "aarch64")]
    return found!(is_aarch64_feature_detected: "neon" "fp16" "dotprod" "i8mm" "bf16" "sve");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return vec![];
}
