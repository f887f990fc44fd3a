// Copies and clears bytes: state of sequences that moves between slots, pages and results.
#include <metal_stdlib>
using namespace metal;

#define WORDS 4  // of 16 bytes that a thread takes

struct CopyParams {
    uint words;  // of 16 bytes
    uint tail;   // bytes behind them, 0 ..= 15
};

// Grid [groups of 1024 words] of 256 threads; the tail goes with the first.
kernel void copy(
    device const uint4* from [[buffer(0)]],
    device uint4* to [[buffer(1)]],
    constant CopyParams& p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    for (uint i = 0; i < WORDS; i++) {
        const uint at = (group * WORDS + i) * 256 + thread_index;
        if (at < p.words) to[at] = from[at];
    }
    if (group == 0 && thread_index < p.tail) {
        reinterpret_cast<device uchar*>(to + p.words)[thread_index] =
            reinterpret_cast<device const uchar*>(from + p.words)[thread_index];
    }
}

// Grid as above.
kernel void clear(
    device uint4* to [[buffer(0)]],
    constant CopyParams& p [[buffer(1)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    for (uint i = 0; i < WORDS; i++) {
        const uint at = (group * WORDS + i) * 256 + thread_index;
        if (at < p.words) to[at] = uint4(0);
    }
    if (group == 0 && thread_index < p.tail) reinterpret_cast<device uchar*>(to + p.words)[thread_index] = 0;
}
