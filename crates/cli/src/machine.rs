//! This machine's memory, as the planner wants it.

use anyhow::Context;
use calla_engine::Machine;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Asks the system.
///
/// # Errors
/// If it does not tell.
pub(crate) fn this_machine() -> anyhow::Result<Machine> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system =
        System::new_with_specifics(what).context("cannot learn how much memory there is")?;
    let total = system.total_memory();
    // In a container, its limit is the machine.
    let (total, available) = match system.cgroup_limits() {
        Some(limits) if limits.total_memory > 0 && limits.total_memory < total => {
            (limits.total_memory, limits.free_memory.min(system.available_memory()))
        }
        _ => (total, system.available_memory()),
    };
    Ok(Machine {
        total,
        available,
        is_mac: cfg!(target_os = "macos"),
        gpu_limit_setting: gpu_limit_setting(),
    })
}

/// `iogpu.wired_limit_mb` in bytes; 0 there means the default, as does its absence on other systems.
fn gpu_limit_setting() -> Option<u64> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = std::process::Command::new("/usr/sbin/sysctl")
        .args(["-n", "iogpu.wired_limit_mb"])
        .output()
        .ok()?;
    let megabytes: u64 = std::str::from_utf8(&output.stdout).ok()?.trim().parse().ok()?;
    (megabytes > 0).then(|| megabytes.saturating_mul(1 << 20))
}

/// What the processor calls itself, if it does.
pub(crate) fn processor() -> Option<String> {
    let what = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(what).ok()?;
    let brand = system.cpus().first()?.brand().trim().to_owned();
    (!brand.is_empty()).then_some(brand)
}

/// Bytes in decimal units, as sizes of downloads are given.
pub(crate) fn bytes(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_its_memory() {
        let machine = this_machine().unwrap();
        assert!(machine.total > 1 << 28, "{machine:?}");
        assert!(machine.available > 0 && machine.available <= machine.total, "{machine:?}");
    }

    #[test]
    fn bytes_have_decimal_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(14_533_789), "14.5 MB");
        assert_eq!(bytes(19_508_787_456), "19.51 GB");
    }
}
