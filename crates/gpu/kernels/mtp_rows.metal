// Rows on their way to the draft layer: each row's predecessor, rows that slots keep, and two rows side by side.
//
// Grid [groups of 256 words of a row, rows] of 256 threads for all of them. Words are of 16 bytes.
#include <metal_stdlib>
using namespace metal;
#include "tables.h"

struct RowParams { uint words; };  // of a row

// h [rows, words], kept [slots, words], out [rows, words]: of a span's first row the one that its slot keeps.
kernel void previous_rows(
    device const uint4* h [[buffer(0)]],
    device const uint4* kept [[buffer(1)]],
    device const uint* row_spans [[buffer(2)]],
    device const Span* spans [[buffer(3)]],
    device uint4* out [[buffer(4)]],
    constant RowParams& p [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]) {
    const uint word = at.x, row = at.y;
    if (word >= p.words) return;
    const uint span = row_spans[row];
    const bool first = spans[span].first_row == row;
    const ulong from = first ? ulong(spans[span].slot_in) : ulong(row - 1);
    out[ulong(row) * p.words + word] = first ? kept[from * p.words + word] : h[from * p.words + word];
}

// The last row of each span goes to its slot, the others to its checkpoints, if it has any.
kernel void keep_rows(
    device const uint4* h [[buffer(0)]],
    device uint4* kept [[buffer(1)]],
    device const uint* row_spans [[buffer(2)]],
    device const Span* spans [[buffer(3)]],
    device const uint* checkpoints [[buffer(4)]],
    constant RowParams& p [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]) {
    const uint word = at.x, row = at.y;
    if (word >= p.words) return;
    const uint span = row_spans[row];
    const uint index = row - spans[span].first_row;
    const bool last = index + 1 == spans[span].rows;
    if (!last && spans[span].checkpoints == 0) return;
    const uint slot = last ? spans[span].slot_out : checkpoints[spans[span].first_checkpoint + index];
    kept[ulong(slot) * p.words + word] = h[ulong(row) * p.words + word];
}

// left, right [rows, words], out [rows, 2 words].
kernel void side_by_side(
    device const uint4* left [[buffer(0)]],
    device const uint4* right [[buffer(1)]],
    device uint4* out [[buffer(2)]],
    constant RowParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]) {
    const uint word = at.x;
    if (word >= p.words) return;
    const ulong from = ulong(at.y) * p.words + word, to = 2 * ulong(at.y) * p.words + word;
    out[to] = left[from];
    out[to + p.words] = right[from];
}
