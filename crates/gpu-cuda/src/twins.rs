//! Twins: kernels that are written for NVIDIA GPUs and take the place of translated ones.
//!
//! A twin has the entry point, buffers, parameters and function constants of the Metal kernel that it stands for, and is
//! held to the same reference by the same tests. How many threads compute what is its own affair. Its source sees its
//! entry point as `ENTRY`, its function constants as macros of their names, and the bytes of shared memory that it gets as
//! `SHARED`.

mod attention_decode;
mod attention_prefill;
mod gated_delta;
mod qmm;
mod qmv;

use calla_gpu::Dispatch;
use calla_msl::Translation;
use std::ffi::CStr;
use std::fmt::Write as _;

/// A kernel written for NVIDIA GPUs.
#[derive(Debug)]
pub(crate) struct Twin {
    /// The entry points that it stands for: the same kernel under several names where tiles are chosen here.
    pub(crate) entries: &'static [&'static str],
    pub(crate) file: &'static str,
    pub(crate) text: &'static str,
    /// How a dispatch is launched, or `None` where the twin cannot run it. That, and the shared memory, depend on its
    /// function constants alone.
    pub(crate) launch: fn(&Dispatch) -> Option<Launch>,
    /// Bytes of shared memory that a block must be able to have for a twin that it hands its results to, in a layout of
    /// their own.
    pub(crate) partner_shared: u32,
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) threads: [u32; 3],
    /// Bytes of shared memory that are not declared in the kernel.
    pub(crate) shared: u32,
}

impl Launch {
    /// As the Metal kernel is launched.
    pub(crate) fn of(dispatch: &Dispatch) -> Self {
        Self { grid: dispatch.grid, threads: dispatch.threads, shared: 0 }
    }
}

/// All twins.
pub(crate) const TWINS: [&Twin; 14] = [
    &attention_decode::ATTENTION_DECODE,
    &attention_prefill::ATTENTION_PREFILL,
    &gated_delta::GATED_DELTA_CHUNKS,
    &gated_delta::GATED_DELTA_SCAN,
    &qmm::QMM,
    &qmm::QMM_SWIGLU,
    &qmm::EXPERT_QMM_UP,
    &qmm::EXPERT_QMM_DOWN,
    &qmv::QMV,
    &qmv::QMV_SWIGLU,
    &qmv::EXPERT_QMV_UP,
    &qmv::EXPERT_QMV_DOWN,
    &qmv::EXPERT_QMV_GROUPED_UP,
    &qmv::EXPERT_QMV_GROUPED_DOWN,
];

/// Headers of twins.
pub(crate) const HEADERS: [(&CStr, &str); 13] = [
    (c"expert_pairs.cuh", include_str!("../kernels/expert_pairs.cuh")),
    (c"expert_qmv_down.cuh", include_str!("../kernels/expert_qmv_down.cuh")),
    (c"gated_delta.cuh", include_str!("../kernels/gated_delta.cuh")),
    (c"layout.cuh", include_str!("../kernels/layout.cuh")),
    (c"mma.cuh", include_str!("../kernels/mma.cuh")),
    (c"qmm.cuh", include_str!("../kernels/qmm.cuh")),
    (c"qmv.cuh", include_str!("../kernels/qmv.cuh")),
    (c"quantized.cuh", include_str!("../kernels/quantized.cuh")),
    (c"shape.cuh", include_str!("../kernels/shape.cuh")),
    (c"sigmoid.cuh", include_str!("../kernels/sigmoid.cuh")),
    (c"metal/quantized.h", include_str!("../../gpu/kernels/quantized.h")),
    (c"metal/math.h", include_str!("../../gpu/kernels/math.h")),
    (c"metal/order.h", include_str!("../../gpu/kernels/order.h")),
];

/// The twin that runs a dispatch where a block may have so many bytes of shared memory.
pub(crate) fn find(dispatch: &Dispatch, shared: u32) -> Option<&'static Twin> {
    TWINS.into_iter().find(|twin| {
        twin.entries.contains(&dispatch.entry)
            && twin.partner_shared <= shared
            && (twin.launch)(dispatch).is_some_and(|launch| launch.shared <= shared)
    })
}

impl Twin {
    /// The source of the pipeline that a dispatch needs. `translation` is that of the Metal kernel, which names function
    /// constants.
    pub(crate) fn source(&self, translation: &Translation, dispatch: &Dispatch) -> String {
        let shared = (self.launch)(dispatch).map_or(0, |launch| launch.shared);
        let mut code = format!("#define ENTRY {}\n#define SHARED {shared}\n", dispatch.entry);
        for constant in &translation.constants {
            if let Some(value) = self::constant(dispatch, constant.index) {
                let _ = writeln!(code, "#define {} {value}u", constant.name);
            }
        }
        let _ = write!(code, "#line 1 \"{}\"\n{}", self.file, self.text);
        code
    }
}

/// A twin: its file in `kernels`, entry points, launch, and what its partner needs, if it has one.
macro_rules! twin {
    ($file:literal, $entries:expr, $launch:expr) => {
        $crate::twins::twin!($file, $entries, $launch, 0)
    };
    ($file:literal, $entries:expr, $launch:expr, $partner_shared:expr) => {
        $crate::twins::Twin {
            entries: &$entries,
            file: $file,
            text: include_str!(concat!("../../kernels/", $file)),
            launch: $launch,
            partner_shared: $partner_shared,
        }
    };
}
use twin;

/// Function constants of the shape, as `kernels/shape.h` of `calla-gpu` numbers them.
mod index {
    pub(super) const HIDDEN: u32 = 0;
    pub(super) const HEADS: u32 = 1;
    pub(super) const KV_HEADS: u32 = 2;
    pub(super) const EXPERT_HIDDEN: u32 = 7;
    pub(super) const SHARED_HIDDEN: u32 = 8;
}

/// A function constant of a dispatch.
fn constant(dispatch: &Dispatch, index: u32) -> Option<u32> {
    let found = dispatch.constants.iter().find(|(other, _)| *other == index);
    found.map(|&(_, value)| value)
}

/// A word of a dispatch's parameters.
fn word(dispatch: &Dispatch, index: usize) -> Option<u32> {
    dispatch.params.as_chunks::<4>().0.get(index).map(|&bytes| u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests;
