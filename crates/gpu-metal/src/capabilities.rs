//! What a Mac offers, in one place: the device's families and limits, the system's version, and what follows from them.

use calla_gpu::metal4::REQUIREMENT;
use std::fmt;

/// What the device and its system offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the device: `Apple M2 Max`.
    pub name: String,
    /// Version of macOS: major and minor.
    pub macos: (u32, u32),
    /// The same as the system writes it, with its build: `Version 15.1 (Build 24B83)`.
    pub system: String,
    /// The highest `MTLGPUFamilyApple` that it supports: 7 for M1, 8 for M2, 9 for M3 and M4, 10 for M5. 0: none.
    pub apple_family: u32,
    /// The highest `MTLGPUFamilyMetal` that it supports; 0 if it has not even that of Metal 3.
    pub metal_family: u32,
    /// Whether processor and GPU share their memory.
    pub unified_memory: bool,
    /// Bytes of the largest buffer.
    pub buffer_bytes: u64,
    /// Bytes that the device can use with good performance; what is planned beyond dies in a prefill.
    pub working_set_bytes: u64,
    /// Most threads of a threadgroup.
    pub threads: u64,
    /// Bytes of threadgroup memory of a threadgroup.
    pub threadgroup_bytes: u64,
}

/// The first `MTLGPUFamilyApple` with all that the kernels use (simdgroup matrices, bf16, 32 KiB of threadgroup memory).
pub const APPLE_FAMILY_MIN: u32 = 7;
/// The first macOS with version 3.1 of the language, which has bf16.
pub const MACOS_MIN: (u32, u32) = (14, 0);

/// Why a device cannot run the kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// The system is too old.
    #[error("macOS {}.{} is too old: the GPU needs macOS 14 or later (--device cpu runs here)", .0.0, .0.1)]
    Macos((u32, u32)),
    /// It is no GPU of Apple's, or one that is too old.
    #[error(
        "{name} is of MTLGPUFamilyApple{family}: kernels need Apple7 (M1) or later (--device cpu runs here)"
    )]
    Family {
        /// Name of the device.
        name: String,
        /// Its family, 0 if it is not Apple's.
        family: u32,
    },
}

impl Capabilities {
    /// Requires what all kernels need.
    ///
    /// # Errors
    /// If the device or the system lacks it.
    pub fn require(&self) -> Result<(), Unsuitable> {
        if self.macos < MACOS_MIN {
            return Err(Unsuitable::Macos(self.macos));
        }
        if self.apple_family < APPLE_FAMILY_MIN || !self.unified_memory {
            return Err(Unsuitable::Family { name: self.name.clone(), family: self.apple_family });
        }
        Ok(())
    }

    /// Whether there are residency sets, which keep buffers resident between command buffers.
    #[must_use]
    pub fn has_residency_sets(&self) -> bool {
        self.macos >= (15, 0)
    }

    /// Whether a compiler takes `mathMode` in place of `fastMathEnabled`.
    #[must_use]
    pub fn has_math_mode(&self) -> bool {
        self.macos >= (15, 0)
    }

    /// Whether kernels for Metal 4 may be tried; they are used once their self-test has passed.
    #[must_use]
    pub fn may_try_metal4(&self) -> bool {
        self.metal_family >= REQUIREMENT.metal_family
            && self.apple_family >= REQUIREMENT.apple_family
            && self.macos >= REQUIREMENT.macos
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.macos;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        write!(
            f,
            "{}, MTLGPUFamilyApple{}, MTLGPUFamilyMetal{}, macOS {major}.{minor}, working set {:.1} GiB, \
             buffers up to {:.1} GiB",
            self.name,
            self.apple_family,
            self.metal_family,
            gib(self.working_set_bytes),
            gib(self.buffer_bytes)
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A Mac of these families and this system.
    pub(crate) fn mac(apple_family: u32, metal_family: u32, macos: (u32, u32)) -> Capabilities {
        Capabilities {
            name: "a GPU".to_owned(),
            macos,
            system: "Version 15.1 (Build 1)".to_owned(),
            apple_family,
            metal_family,
            unified_memory: true,
            buffer_bytes: 1 << 33,
            working_set_bytes: 1 << 34,
            threads: 1024,
            threadgroup_bytes: 32 << 10,
        }
    }

    #[test]
    fn what_follows_from_family_and_system() {
        let (m1, m5) = (mac(7, 3, (14, 5)), mac(10, 4, (26, 1)));
        assert_eq!(m1.require(), Ok(()));
        assert!(!m1.has_residency_sets() && !m1.has_math_mode() && !m1.may_try_metal4());
        assert!(m5.has_residency_sets() && m5.has_math_mode() && m5.may_try_metal4());
        assert!(!mac(10, 4, (26, 0)).may_try_metal4());
        assert!(!mac(9, 4, (26, 1)).may_try_metal4());
        assert_eq!(mac(7, 3, (13, 6)).require(), Err(Unsuitable::Macos((13, 6))));
        let family = Unsuitable::Family { name: "a GPU".to_owned(), family: 0 };
        assert_eq!(mac(0, 3, (14, 0)).require(), Err(family));
    }

    #[test]
    fn a_report_names_family_and_system() {
        let text = mac(9, 3, (15, 1)).to_string();
        assert!(text.contains("MTLGPUFamilyApple9") && text.contains("macOS 15.1"), "{text}");
        assert!(text.contains("working set 16.0 GiB"), "{text}");
    }
}
