// The largest logit of each row: of blocks first, then of their winners. Of equal ones the lowest token wins; NaN wins
// over nothing.
#include <metal_stdlib>
using namespace metal;
#include "logits.h"

struct Best {
    float value;
    uint index;
};

inline void take(thread Best& best, float value, uint index) {
    if (value > best.value || (value == best.value && index < best.index)) {
        best.value = value;
        best.index = index;
    }
}

// The best of all threads of a threadgroup, in thread 0.
inline void reduce(thread Best& best, threadgroup float* values, threadgroup uint* indices, uint simdgroup, uint lane) {
    for (ushort distance = 16; distance > 0; distance /= 2) {
        const float value = simd_shuffle_xor(best.value, distance);
        const uint index = simd_shuffle_xor(best.index, distance);
        take(best, value, index);
    }
    if (lane == 0) {
        values[simdgroup] = best.value;
        indices[simdgroup] = best.index;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < SIMDGROUPS; i++) take(best, values[i], indices[i]);
}

kernel void argmax_blocks(
    device const float* logits [[buffer(0)]],
    device float* values [[buffer(1)]],
    device uint* indices [[buffer(2)]],
    constant LogitsParams& p [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float best_values[SIMDGROUPS];
    threadgroup uint best_indices[SIMDGROUPS];
    device const float* row = logits + size_t(group.y) * p.width;
    Best best;
    best.value = -INFINITY;
    best.index = p.count - 1;
    for (uint i = 0; i < BLOCK; i += SIMDGROUPS * 32) {
        const uint index = group.x * BLOCK + i + thread_index;
        if (index < p.count) take(best, row[index], index);
    }
    reduce(best, best_values, best_indices, simdgroup, lane);
    if (thread_index == 0) {
        values[group.y * p.blocks + group.x] = best.value;
        indices[group.y * p.blocks + group.x] = best.index;
    }
}

kernel void argmax_merge(
    device const float* values [[buffer(0)]],
    device const uint* indices [[buffer(1)]],
    device uint* out [[buffer(2)]],
    constant LogitsParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float best_values[SIMDGROUPS];
    threadgroup uint best_indices[SIMDGROUPS];
    Best best;
    best.value = -INFINITY;
    best.index = p.count - 1;
    for (uint i = thread_index; i < p.blocks; i += SIMDGROUPS * 32) {
        take(best, values[row * p.blocks + i], indices[row * p.blocks + i]);
    }
    reduce(best, best_values, best_indices, simdgroup, lane);
    if (thread_index == 0) out[row] = best.index;
}
