//! Whether a dispatch fits its kernel and its buffers, before it runs.

use crate::library::{Buffer, Kernel};
use crate::memory::Memory;
use calla_gpu::{Access, Dispatch, Place, Range};
use std::ops;

/// Most threads of a threadgroup: a heavy kernel on a small Mac gets no more.
const THREADS_MAX: u32 = 256;
/// Most threadgroups in a dimension.
const GRID_MAX: u64 = 1 << 31;

/// Where each binding lies in the shared file, or what does not fit.
pub(crate) fn dispatch(
    dispatch: &Dispatch,
    kernel: &Kernel,
    memory: &Memory,
) -> Result<Vec<ops::Range<u64>>, String> {
    size(dispatch, kernel)?;
    constants(dispatch, kernel)?;
    let (params, buffers) = match kernel.buffers.split_last() {
        Some((last, rest)) if last.memory == calla_msl::Memory::Constant => (Some(last), rest),
        _ => (None, &kernel.buffers[..]),
    };
    if buffers.len() != dispatch.bindings.len() {
        let (bound, taken) = (dispatch.bindings.len(), buffers.len());
        return Err(format!("{bound} buffers are bound; {} takes {taken}", kernel.file));
    }
    let expected = params.map_or(0, |params| params.size);
    if dispatch.params.len() as u64 != expected {
        let given = dispatch.params.len();
        return Err(format!("parameters are {given} bytes; {} takes {expected}", kernel.file));
    }
    let mut places = vec![];
    for (index, (binding, buffer)) in dispatch.bindings.iter().zip(buffers).enumerate() {
        let place = range(binding.range, memory).and_then(|place| {
            declared(binding.access, buffer)?;
            aligned(&place, buffer)?;
            Ok(place)
        });
        places.push(place.map_err(|reason| format!("buffer {index}: {reason}"))?);
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
    Ok(places)
}

/// Whether dispatches of one stage leave each other's results alone: pairs that do not.
pub(crate) fn stage(dispatches: &[Dispatch]) -> Result<(), String> {
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

fn size(dispatch: &Dispatch, kernel: &Kernel) -> Result<(), String> {
    let threads = dispatch.threads.iter().map(|&n| u64::from(n)).product::<u64>();
    let most = u64::from(kernel.max_threads.unwrap_or(THREADS_MAX).min(THREADS_MAX));
    if threads == 0 || threads % 32 != 0 || threads > most {
        return Err(format!(
            "{:?} threads in a threadgroup: their number is a multiple of 32, at most {most}",
            dispatch.threads
        ));
    }
    let groups = dispatch.grid.iter().map(|&n| u64::from(n)).product::<u64>();
    if groups == 0 || groups >= GRID_MAX {
        return Err(format!(
            "{:?} threadgroups: there is at least one, at most 2^31",
            dispatch.grid
        ));
    }
    Ok(())
}

fn constants(dispatch: &Dispatch, kernel: &Kernel) -> Result<(), String> {
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

/// Where a range lies in the shared file.
pub(crate) fn range(range: Range, memory: &Memory) -> Result<ops::Range<u64>, String> {
    let Place::Buffer(id) = range.place else {
        return Err(format!("{:?} was given no place in a buffer", range.place));
    };
    let buffer = memory.buffer(id.0)?;
    let len = buffer.end - buffer.start;
    let end = range.start.checked_add(range.len).filter(|&end| end <= len);
    if end.is_none() {
        let Range { start, len: bytes, .. } = range;
        return Err(format!("{bytes} bytes from {start} on end after its {len} bytes"));
    }
    let start = buffer.start + range.start;
    Ok(start..start + range.len)
}

fn declared(access: Access, buffer: &Buffer) -> Result<(), String> {
    match (access, buffer.memory) {
        (Access::Read, calla_msl::Memory::Write) => {
            Err("it is bound to be read, but the kernel takes device T*".to_owned())
        }
        (Access::Write | Access::ReadWrite, calla_msl::Memory::Read) => {
            Err("it is bound to be written, but the kernel takes device const T*".to_owned())
        }
        _ => Ok(()),
    }
}

fn aligned(place: &ops::Range<u64>, buffer: &Buffer) -> Result<(), String> {
    // Metal wants offsets of buffers to be multiples of 4, whatever they hold.
    let align = buffer.align.max(4);
    if !place.start.is_multiple_of(align) {
        return Err(format!("it starts at byte {}, not at a multiple of {align}", place.start));
    }
    Ok(())
}
