// Experts for more rows than a few, of which several choose the same: each threadgroup has outputs of one expert, looks up
// the rows that chose it, and reads its weights once for some of them at a time. Sums and their order are those of
// expert_qmv.metal, so that it does not matter to a row which of the two takes it.
#include <metal_stdlib>
using namespace metal;
#include "expert_qmv.h"

#define PAIRS 2  // of an expert at a time: their rows fit into threadgroup memory

struct UpParams {
    uint pairs;  // rows * TOP_K
    float eps;
};

struct DownParams { uint pairs; };

// The first pair from `from` on that has the expert, or `pairs`. All lanes of the simdgroup call it.
inline uint next_pair(device const uint* experts, uint from, uint pairs, uint expert, uint lane) {
    for (uint first = from; first < pairs; first += 32) {
        const uint pair = first + lane;
        const uint found = simd_min(pair < pairs && experts[min(pair, pairs - 1)] == expert ? pair : pairs);
        if (found < pairs) return found;
    }
    return pairs;
}

// Some pairs of an expert.
struct Some {
    uint pair[PAIRS];  // places that are left over repeat the first
    uint count;
    uint next;         // where to look for others
};

inline Some some_pairs(device const uint* experts, uint from, uint pairs, uint expert, uint lane) {
    Some some;
    some.count = 0;
    some.next = from;
    for (uint n = 0; n < PAIRS; n++) {
        const uint found = next_pair(experts, some.next, pairs, expert, lane);
        some.pair[n] = found < pairs ? found : some.pair[0];
        some.count += found < pairs ? 1 : 0;
        some.next = min(found + 1, pairs);
    }
    return some;
}

// out[pair] = silu(gate y) * (up y), y = norm(x[row of pair]), by the pair's expert. Grid [tiles of outputs, experts].
kernel void expert_qmv_grouped_up(
    device const float* x [[buffer(0)]],
    device const float* norm [[buffer(1)]],
    device const uint* experts [[buffer(2)]],
    device const uint* gate [[buffer(3)]],
    device const bfloat* gate_scales [[buffer(4)]],
    device const bfloat* gate_biases [[buffer(5)]],
    device const uint* up [[buffer(6)]],
    device const bfloat* up_scales [[buffer(7)]],
    device const bfloat* up_biases [[buffer(8)]],
    device float* out [[buffer(9)]],
    constant UpParams& p [[buffer(10)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 tile[PAIRS * (TILE / 4)];
    threadgroup float partial[UP_SIMDGROUPS];
    const uint column = (group.x * UP_SIMDGROUPS + simdgroup) * UP_COLUMNS;
    // Values of the matrix in front of the simdgroup's first row.
    const size_t first = (size_t(group.y) * EXPERT_HIDDEN + column) * HIDDEN;
    gate += packed_words(first, BITS);
    gate_scales += first / GROUP;
    gate_biases += first / GROUP;
    up += packed_words(first, OTHER_BITS);
    up_scales += first / GROUP;
    up_biases += first / GROUP;

    for (uint from = 0; from < p.pairs;) {
        const Some some = some_pairs(experts, from, p.pairs, group.y, lane);
        from = some.next;
        if (some.count == 0) break;
        float squares[PAIRS], gate_sums[PAIRS][UP_COLUMNS], up_sums[PAIRS][UP_COLUMNS];
        for (uint n = 0; n < PAIRS; n++) {
            squares[n] = 0.0f;
            for (uint i = 0; i < UP_COLUMNS; i++) gate_sums[n][i] = up_sums[n][i] = 0.0f;
        }
        for (uint start = 0; start < HIDDEN; start += TILE) {
            threadgroup_barrier(mem_flags::mem_threadgroup);  // all are through with the tile before
            for (uint n = 0; n < PAIRS; n++) {
                device const float* row = x + size_t(some.pair[n] / TOP_K) * HIDDEN;
                squares[n] += stage(row, norm, start, tile + n * (TILE / 4), thread_index);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint span = 0; span < TILE && start + span < HIDDEN; span += SPAN) {
                const uint k = start + span + lane * 16;
                if (within(k, HIDDEN)) {
                    Values16 values[PAIRS];
                    for (uint n = 0; n < PAIRS; n++) {
                        for (uint j = 0; j < 4; j++) values[n].v[j] = tile[(n * TILE + span) / 4 + j * 32 + lane];
                        values[n].sum = sum16(values[n]);
                    }
                    for (uint i = 0; i < UP_COLUMNS; i++) {
                        const uint offset = i * HIDDEN + k;
                        for (uint n = 0; n < PAIRS; n++) {
                            gate_sums[n][i] += dot16(gate, gate_scales, gate_biases, offset, BITS, values[n]);
                            up_sums[n][i] += dot16(up, up_scales, up_biases, offset, OTHER_BITS, values[n]);
                        }
                    }
                }
            }
        }
        for (uint n = 0; n < PAIRS; n++) {
            const float sum = threadgroup_sum<UP_SIMDGROUPS>(squares[n], partial, simdgroup, lane);
            const float factor = precise::rsqrt(sum / float(HIDDEN) + p.eps);
            float own_gate = 0.0f, own_up = 0.0f;
            for (uint i = 0; i < UP_COLUMNS; i++) {
                const float g = simd_sum(gate_sums[n][i]), u = simd_sum(up_sums[n][i]);
                if (lane == i) {
                    own_gate = g;
                    own_up = u;
                }
            }
            if (n < some.count && lane < UP_COLUMNS) {
                out[size_t(some.pair[n]) * EXPERT_HIDDEN + column + lane] = silu(own_gate * factor) * (own_up * factor);
            }
        }
    }
}

// Products of a simdgroup's columns of a matrix with `width` values of some rows; lane i has those of column i.
inline void columns_of(device const uint* packed, device const bfloat* scales, device const bfloat* biases, size_t first,
                       uint width, uint bits, device const float* acts, thread const uint* rows, uint lane,
                       thread float* own) {
    packed += packed_words(first, bits);
    scales += first / GROUP;
    biases += first / GROUP;
    float sums[PAIRS][DOWN_COLUMNS];
    for (uint n = 0; n < PAIRS; n++) {
        for (uint i = 0; i < DOWN_COLUMNS; i++) sums[n][i] = 0.0f;
    }
    for (uint start = 0; start < width; start += SPAN) {
        const uint k = start + lane * 16;
        if (within(k, width)) {
            Values16 values[PAIRS];
            for (uint n = 0; n < PAIRS; n++) values[n] = load16(acts + size_t(rows[n]) * width + k);
            for (uint i = 0; i < DOWN_COLUMNS; i++) {
                for (uint n = 0; n < PAIRS; n++) {
                    sums[n][i] += dot16(packed, scales, biases, i * width + k, bits, values[n]);
                }
            }
        }
    }
    for (uint n = 0; n < PAIRS; n++) {
        own[n] = 0.0f;
        for (uint i = 0; i < DOWN_COLUMNS; i++) {
            const float sum = simd_sum(sums[n][i]);
            if (lane == i) own[n] = sum;
        }
    }
}

// out[pair] = (down of its expert) acts[pair], shared_out[row] = shared_down shared_acts[row], which combine.metal adds up.
// Grid [tiles of outputs, the shared expert and then the others].
kernel void expert_qmv_grouped_down(
    device const float* acts [[buffer(0)]],
    device const uint* experts [[buffer(1)]],
    device const float* shared_acts [[buffer(2)]],
    device const uint* down [[buffer(3)]],
    device const bfloat* down_scales [[buffer(4)]],
    device const bfloat* down_biases [[buffer(5)]],
    device const uint* shared_down [[buffer(6)]],
    device const bfloat* shared_scales [[buffer(7)]],
    device const bfloat* shared_biases [[buffer(8)]],
    device float* out [[buffer(9)]],
    device float* shared_out [[buffer(10)]],
    constant DownParams& p [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint column = (group.x * DOWN_SIMDGROUPS + simdgroup) * DOWN_COLUMNS;
    float own[PAIRS];
    if (group.y == 0) {
        const uint rows = p.pairs / TOP_K;
        for (uint row = 0; row < rows; row += PAIRS) {
            uint some[PAIRS];
            for (uint n = 0; n < PAIRS; n++) some[n] = min(row + n, rows - 1);
            columns_of(shared_down, shared_scales, shared_biases, size_t(column) * SHARED_HIDDEN, SHARED_HIDDEN, OTHER_BITS,
                       shared_acts, some, lane, own);
            for (uint n = 0; n < PAIRS; n++) {
                if (row + n < rows && lane < DOWN_COLUMNS) shared_out[size_t(some[n]) * HIDDEN + column + lane] = own[n];
            }
        }
        return;
    }
    const uint expert = group.y - 1;
    const size_t first = (size_t(expert) * HIDDEN + column) * EXPERT_HIDDEN;
    for (uint from = 0; from < p.pairs;) {
        const Some some = some_pairs(experts, from, p.pairs, expert, lane);
        from = some.next;
        if (some.count == 0) break;
        columns_of(down, down_scales, down_biases, first, EXPERT_HIDDEN, BITS, acts, some.pair, lane, own);
        for (uint n = 0; n < PAIRS; n++) {
            if (n < some.count && lane < DOWN_COLUMNS) out[size_t(some.pair[n]) * HIDDEN + column + lane] = own[n];
        }
    }
}
