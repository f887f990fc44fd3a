//! Whether a dispatch fits its kernel and its buffers, before it runs: what every driver asks.

use crate::device::DeviceError;
use crate::dispatch::{Access, Dispatch};
use crate::tensor::{BufferId, Place, Range};
use calla_msl::{FunctionConstant, Memory};

/// A buffer of a kernel, as the kernel's compiler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// How it is declared.
    pub memory: Memory,
    /// Bytes of an element; of all parameters, where it is the last.
    pub size: u64,
    /// Its alignment in bytes.
    pub align: u64,
}

/// A kernel, and the device that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// The file that it is in, for messages.
    pub file: &'a str,
    /// Function constants of the file.
    pub constants: &'a [FunctionConstant],
    /// In the order of their indices; parameters, where there are any, are the last.
    pub buffers: &'a [Buffer],
    /// Most threads of a threadgroup.
    pub max_threads: u32,
    /// Most threadgroups in each dimension.
    pub max_grid: [u32; 3],
}

/// Checks a dispatch. `len` gives the bytes of a buffer, or says why there is none.
///
/// # Errors
/// What does not fit.
pub fn dispatch(
    dispatch: &Dispatch,
    kernel: &Kernel<'_>,
    len: &dyn Fn(BufferId) -> Result<u64, String>,
) -> Result<(), String> {
    size(dispatch, kernel)?;
    constants(dispatch, kernel)?;
    let (params, buffers) = match kernel.buffers.split_last() {
        Some((last, rest)) if last.memory == Memory::Constant => (last.size, rest),
        _ => (0, kernel.buffers),
    };
    if buffers.len() != dispatch.bindings.len() {
        let (bound, taken) = (dispatch.bindings.len(), buffers.len());
        return Err(format!("{bound} buffers are bound; {} takes {taken}", kernel.file));
    }
    if dispatch.params.len() as u64 != params {
        let given = dispatch.params.len();
        return Err(format!("parameters are {given} bytes; {} takes {params}", kernel.file));
    }
    for (index, (binding, buffer)) in dispatch.bindings.iter().zip(buffers).enumerate() {
        range(binding.range, len)
            .and_then(|_| access(binding.access, buffer.memory))
            .and_then(|()| aligned(binding.range, buffer.align))
            .map_err(|reason| format!("buffer {index}: {reason}"))?;
    }
    for (index, binding) in dispatch.bindings.iter().enumerate() {
        let other = dispatch.bindings.iter().enumerate().find(|(other, b)| {
            *other != index && binding.access == Access::Write && binding.range.overlaps(&b.range)
        });
        if let Some((other, _)) = other {
            let reason = "nothing of what was there is read, so use read_write";
            return Err(format!(
                "buffer {index} is only written and is buffer {other} too: {reason}"
            ));
        }
    }
    Ok(())
}

/// The stages of a plan, in order; `stages` are their lengths.
///
/// # Errors
/// If they do not hold all dispatches.
pub fn stages<'a>(
    dispatches: &'a [Dispatch],
    stages: &'a [usize],
) -> Result<impl Iterator<Item = &'a [Dispatch]>, DeviceError> {
    let count: usize = stages.iter().sum();
    if count != dispatches.len() {
        let reason = format!("stages hold {count} dispatches of {}", dispatches.len());
        return Err(DeviceError::failed("a plan", reason));
    }
    let mut rest = dispatches;
    Ok(stages.iter().map(move |&count| {
        let (stage, later) = rest.split_at(count);
        rest = later;
        stage
    }))
}

/// Checks that dispatches of one stage leave each other's results alone.
///
/// # Errors
/// Names two that do not.
pub fn stage(dispatches: &[Dispatch]) -> Result<(), DeviceError> {
    independent(dispatches).map_err(|reason| DeviceError::Kernel {
        entry: dispatches.first().map_or("a stage", |dispatch| dispatch.entry).to_owned(),
        reason,
    })
}

fn independent(dispatches: &[Dispatch]) -> Result<(), String> {
    // Sorted by start, an overlap shows between neighbours once reads are kept apart from writes.
    let mut all: Vec<(Range, bool, usize)> = vec![];
    for (index, dispatch) in dispatches.iter().enumerate() {
        let bindings = dispatch.bindings.iter();
        all.extend(bindings.map(|b| (b.range, b.access.writes(), index)));
    }
    all.sort_by_key(|(range, ..)| (range.place, range.start));
    for (at, &(range, writes, index)) in all.iter().enumerate() {
        for &(other, other_writes, other_index) in &all[at + 1..] {
            if other.place != range.place || other.start >= range.start + range.len {
                break;
            }
            if (writes || other_writes) && index != other_index && range.overlaps(&other) {
                let (a, b) = (&dispatches[index].label, &dispatches[other_index].label);
                return Err(format!(
                    "{a} and {b} are in one stage, but one writes what the other touches"
                ));
            }
        }
    }
    Ok(())
}

fn size(dispatch: &Dispatch, kernel: &Kernel<'_>) -> Result<(), String> {
    let threads = dispatch.threads.iter().map(|&n| u64::from(n)).product::<u64>();
    let most = kernel.max_threads;
    if threads == 0 || threads % 32 != 0 || threads > u64::from(most) {
        return Err(format!(
            "{:?} threads in a threadgroup: their number is a multiple of 32, at most {most}",
            dispatch.threads
        ));
    }
    let fits = dispatch.grid.iter().zip(kernel.max_grid).all(|(&n, most)| (1..=most).contains(&n));
    if !fits {
        return Err(format!(
            "{:?} threadgroups: there is at least one, at most {:?}",
            dispatch.grid, kernel.max_grid
        ));
    }
    Ok(())
}

fn constants(dispatch: &Dispatch, kernel: &Kernel<'_>) -> Result<(), String> {
    let given = |index| dispatch.constants.iter().any(|&(other, _)| other == index);
    let missing = kernel.constants.iter().find(|c| c.required && !given(c.index));
    if let Some(constant) = missing {
        let (name, index) = (&constant.name, constant.index);
        return Err(format!("function constant {index} ({name}) is not set"));
    }
    // Constants of the shape are set for all; others have to mean something.
    let unknown = dispatch
        .constants
        .iter()
        .find(|(index, _)| *index >= 16 && kernel.constants.iter().all(|c| c.index != *index));
    if let Some((index, _)) = unknown {
        return Err(format!("function constant {index} is set; {} has none", kernel.file));
    }
    Ok(())
}

/// Checks that a range lies in its buffer, and gives that. `len` gives the bytes of a buffer, or says why there is none.
///
/// # Errors
/// Why it does not.
pub fn range(
    range: Range,
    len: &dyn Fn(BufferId) -> Result<u64, String>,
) -> Result<BufferId, String> {
    let Place::Buffer(id) = range.place else {
        return Err(format!("{:?} was given no place in a buffer", range.place));
    };
    let len = len(id)?;
    let end = range.start.checked_add(range.len).filter(|&end| end <= len);
    if end.is_none() {
        let Range { start, len: bytes, .. } = range;
        return Err(format!("{bytes} bytes from {start} on end after its {len} bytes"));
    }
    Ok(id)
}

/// Checks that a copy of `len` bytes, from or to a buffer, is one of the whole range.
///
/// # Errors
/// If it is not.
pub fn copied(range: Range, len: usize) -> Result<(), String> {
    if range.len == len as u64 {
        return Ok(());
    }
    Err(format!("{len} bytes are given for a range of {}", range.len))
}

fn access(access: Access, memory: Memory) -> Result<(), String> {
    match (access, memory) {
        (Access::Read, Memory::Write) => {
            Err("it is bound to be read, but the kernel takes device T*".to_owned())
        }
        (Access::Write | Access::ReadWrite, Memory::Read) => {
            Err("it is bound to be written, but the kernel takes device const T*".to_owned())
        }
        _ => Ok(()),
    }
}

fn aligned(range: Range, align: u64) -> Result<(), String> {
    // Metal wants offsets of buffers to be multiples of 4, whatever they hold. Buffers themselves are aligned to more.
    let align = align.max(4);
    if !range.start.is_multiple_of(align) {
        return Err(format!("it starts at byte {}, not at a multiple of {align}", range.start));
    }
    Ok(())
}
