//! Copies and clears bytes: `kernels/copy.metal`.

use crate::dispatch::Dispatch;
use crate::entries;
use crate::tensor::Range;
use bytemuck::NoUninit;

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Params {
    words: u32,
    tail: u32,
}

const WORD: u64 = 16;
/// Words of a threadgroup.
const GROUP_WORDS: u32 = 1024;

/// Copies bytes. Both ranges start at multiples of 16, are equally long, and have nothing in common.
///
/// # Panics
/// If they are not so, or empty, or 64 GiB or more.
#[must_use]
pub fn copy(from: Range, to: Range) -> Dispatch {
    assert_eq!(from.len, to.len, "lengths");
    assert!(!from.overlaps(&to), "{from:?} and {to:?} overlap");
    assert!(from.start.is_multiple_of(WORD), "it starts at byte {}", from.start);
    sized(Dispatch::new(entries::COPY).read_part(from, from.len), to)
}

/// Sets bytes to 0. The range starts at a multiple of 16.
///
/// # Panics
/// If it does not, or is empty, or 64 GiB or more.
#[must_use]
pub fn clear(to: Range) -> Dispatch {
    sized(Dispatch::new(entries::CLEAR), to)
}

fn sized(dispatch: Dispatch, to: Range) -> Dispatch {
    assert!(to.start.is_multiple_of(WORD), "it starts at byte {}", to.start);
    assert!(to.len > 0, "nothing to write");
    let words = u32::try_from(to.len / WORD).expect("less than 64 GiB");
    let tail = (to.len % WORD) as u32;
    dispatch
        .write_part(to, to.len)
        .params(&Params { words, tail })
        .grid([words.div_ceil(GROUP_WORDS).max(1), 1, 1], [256, 1, 1])
}
