//! The DeltaNet recurrence in chunks on tensor cores: `kernels/gated_delta_chunks.cu` and `kernels/gated_delta_scan.cu` say
//! how. What the first hands to the second is laid out for it alone, so that both run or neither.

use super::{Launch, Twin, twin};

const CHUNK: u32 = 64;
/// Bytes of a chunk's q, k or v of a head, bf16.
const TERM: u32 = CHUNK * 128 * 2;
/// Tiles of `[8, 8]` on and below the diagonal of `[64, 64]`, and their bytes, split into two of bf16 each.
const TRIANGLE: u32 = 36 * 64 * 4;

/// q, k, v, the triangular matrix, its blocks on the diagonal in f32, and four vectors.
const CHUNKS_SHARED: u32 = 3 * TERM + TRIANGLE + 4 * 16 * 16 * 4 + 4 * CHUNK * 4;
/// Value columns of the scan's blocks, as the Metal kernel has them, and their threads: for each 16 columns a warp for
/// either half of the keys.
const COLUMNS: u32 = 32;
const SCAN_THREADS: u32 = COLUMNS / 16 * 2 * 32;
/// Of two chunks: W as f32 would be, q, k, some columns of U, the triangular matrix of attention, and two vectors.
const SCAN_STAGES: u32 = 2 * (2 * TERM + 2 * TERM + CHUNK * COLUMNS * 4 + TRIANGLE + 2 * CHUNK * 4);
/// And what both halves of the keys give to the columns of U, and to half of those of O, in f32.
const SCAN_SHARED: u32 = SCAN_STAGES + 2 * (CHUNK + CHUNK / 2) * COLUMNS * 4;

pub(crate) const GATED_DELTA_CHUNKS: Twin = twin!(
    "gated_delta_chunks.cu",
    ["gated_delta_chunks"],
    |dispatch| Some(Launch { shared: CHUNKS_SHARED, ..Launch::of(dispatch) }),
    SCAN_SHARED
);

pub(crate) const GATED_DELTA_SCAN: Twin = twin!(
    "gated_delta_scan.cu",
    ["gated_delta_scan"],
    |dispatch| {
        let threads = [SCAN_THREADS, 1, 1];
        Some(Launch { threads, shared: SCAN_SHARED, ..Launch::of(dispatch) })
    },
    SCAN_SHARED
);
