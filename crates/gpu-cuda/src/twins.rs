//! Twins: kernels that are written for NVIDIA GPUs and take the place of translated ones.
//!
//! A twin has the entry point, buffers, parameters and function constants of the Metal kernel that it stands for, and is
//! held to the same reference by the same tests. How many threads compute what is its own affair. Its source sees its
//! entry point as `ENTRY` and its function constants as macros of their names.

mod qmm;

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
pub(crate) const TWINS: [&Twin; 4] =
    [&qmm::QMM, &qmm::QMM_SWIGLU, &qmm::EXPERT_QMM_UP, &qmm::EXPERT_QMM_DOWN];

/// Headers of twins.
pub(crate) const HEADERS: [(&CStr, &str); 3] = [
    (c"layout.cuh", include_str!("../kernels/layout.cuh")),
    (c"mma.cuh", include_str!("../kernels/mma.cuh")),
    (c"qmm.cuh", include_str!("../kernels/qmm.cuh")),
];

/// The twin that runs a dispatch where a block may have so many bytes of shared memory.
pub(crate) fn find(dispatch: &Dispatch, shared: u32) -> Option<&'static Twin> {
    TWINS.into_iter().find(|twin| {
        twin.entries.contains(&dispatch.entry)
            && (twin.launch)(dispatch).is_some_and(|launch| launch.shared <= shared)
    })
}

impl Twin {
    /// The source of a pipeline. `translation` is that of the Metal kernel, which names function constants.
    pub(crate) fn source(
        &self,
        translation: &Translation,
        entry: &str,
        constants: &[(u32, u32)],
    ) -> String {
        let mut code = format!("#define ENTRY {entry}\n");
        for constant in &translation.constants {
            let given = constants.iter().find(|(index, _)| *index == constant.index);
            if let Some((_, value)) = given {
                let _ = writeln!(code, "#define {} {value}u", constant.name);
            }
        }
        let _ = write!(code, "#line 1 \"{}\"\n{}", self.file, self.text);
        code
    }
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
