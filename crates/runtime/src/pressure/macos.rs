//! Memory pressure on macOS: the kernel's own level, `kern.memorystatus_vm_pressure_level`, which is what dispatch sources
//! of type `DISPATCH_SOURCE_TYPE_MEMORYPRESSURE` are told of too.

use super::PressureLevel;
use super::watch::Reading;

/// `DISPATCH_MEMORYPRESSURE_WARN` of `dispatch/source.h`.
const WARN: i32 = 2;
/// `DISPATCH_MEMORYPRESSURE_CRITICAL` of `dispatch/source.h`.
const CRITICAL: i32 = 4;

/// What the kernel's number means; 1 is normal.
pub(super) fn judge(level: i32) -> Option<Reading> {
    let level = match level {
        WARN => PressureLevel::Warning,
        CRITICAL => PressureLevel::Critical,
        _ => return None,
    };
    Some(Reading {
        level,
        words: format!("macOS says {level:?} (kern.memorystatus_vm_pressure_level)"),
    })
}

/// Asks the kernel.
#[cfg(target_os = "macos")]
pub(super) fn look() -> Option<Reading> {
    let mut level: i32 = 0;
    let mut bytes = size_of::<i32>();
    // SAFETY: the name ends with a zero byte, `level` has the four bytes that `bytes` says, and nothing is set.
    let status = unsafe {
        libc::sysctlbyname(
            c"kern.memorystatus_vm_pressure_level".as_ptr(),
            (&raw mut level).cast(),
            &raw mut bytes,
            std::ptr::null_mut(),
            0,
        )
    };
    // The kernel does not know the name, or its number is longer: nothing is told.
    if status == 0 && bytes == size_of::<i32>() { judge(level) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_kernel() {
        let level = |number| judge(number).map(|reading| reading.level);
        assert_eq!(level(2), Some(PressureLevel::Warning));
        assert_eq!(level(4), Some(PressureLevel::Critical));
        for other in [i32::MIN, -1, 0, 1, 3, 5, 8, i32::MAX] {
            assert_eq!(level(other), None, "{other}");
        }
        assert!(judge(4).unwrap().words.contains("Critical"));
    }
}
