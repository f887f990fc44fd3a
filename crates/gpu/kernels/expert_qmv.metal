// Experts for few rows. Up: norm, choice of experts, gate and up projections, SwiGLU. Down: down projections, weights,
// shared expert, residual. Both read the weights of the chosen experts, each byte once, and little else, so what counts
// is that many loads are under way: each lane has 16 consecutive values of several matrix rows in flight.
#include <metal_stdlib>
using namespace metal;
#include "expert_qmv.h"
#include "route.h"

struct UpParams { float eps; };

// out[row, rank] = silu(gate y) * (up y), y = norm(x[row]), by the expert of rank `rank`.
//
// The choice is made again by every threadgroup that needs it, up to its own rank: cheaper than a dispatch in front,
// which all would have to wait for. The norm's factor multiplies the sums at the end.
kernel void expert_qmv_up(
    device const float* x [[buffer(0)]],
    device const float* norm [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device const uint* gate [[buffer(3)]],
    device const bfloat* gate_scales [[buffer(4)]],
    device const bfloat* gate_biases [[buffer(5)]],
    device const uint* up [[buffer(6)]],
    device const bfloat* up_scales [[buffer(7)]],
    device const bfloat* up_biases [[buffer(8)]],
    device uint* experts [[buffer(9)]],
    device float* weights [[buffer(10)]],
    device float* out [[buffer(11)]],
    constant UpParams& p [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 tile[TILE / 4];
    threadgroup float partial[UP_SIMDGROUPS];
    const uint rank = group.y, row = group.z;
    // What is read first is under way while the experts are chosen.
    float squares = stage(x + size_t(row) * HIDDEN, norm, 0, tile, thread_index);
    const Choice choice = choose_experts(logits + size_t(row) * EXPERTS, rank + 1, lane);
    // One of the threadgroups that know all of the row's experts says so.
    if (group.x == 0 && rank == TOP_K - 1 && simdgroup == 0) {
        write_routing(choice, experts + row * TOP_K, weights + row * TOP_K, lane);
    }
    const uint column = (group.x * UP_SIMDGROUPS + simdgroup) * UP_COLUMNS;
    // Values of the matrix in front of the simdgroup's first row.
    const size_t first = (size_t(choice.expert) * EXPERT_HIDDEN + column) * HIDDEN;
    gate += packed_words(first, BITS);
    gate_scales += first / GROUP;
    gate_biases += first / GROUP;
    up += packed_words(first, OTHER_BITS);
    up_scales += first / GROUP;
    up_biases += first / GROUP;

    float gate_sums[UP_COLUMNS], up_sums[UP_COLUMNS];
    for (uint i = 0; i < UP_COLUMNS; i++) gate_sums[i] = up_sums[i] = 0.0f;
    for (uint start = 0; start < HIDDEN; start += TILE) {
        if (start > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            squares += stage(x + size_t(row) * HIDDEN, norm, start, tile, thread_index);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint span = 0; span < TILE && start + span < HIDDEN; span += SPAN) {
            const uint k = start + span + lane * 16;
            if (within(k, HIDDEN)) {
                Values16 values;
                for (uint j = 0; j < 4; j++) values.v[j] = tile[span / 4 + j * 32 + lane];
                values.sum = sum16(values);
                for (uint i = 0; i < UP_COLUMNS; i++) {
                    const uint offset = i * HIDDEN + k;
                    gate_sums[i] += dot16(gate, gate_scales, gate_biases, offset, BITS, values);
                    up_sums[i] += dot16(up, up_scales, up_biases, offset, OTHER_BITS, values);
                }
            }
        }
    }
    squares = threadgroup_sum<UP_SIMDGROUPS>(squares, partial, simdgroup, lane);
    const float factor = precise::rsqrt(squares / float(HIDDEN) + p.eps);
    float own_gate = 0.0f, own_up = 0.0f;
    for (uint i = 0; i < UP_COLUMNS; i++) {
        const float g = simd_sum(gate_sums[i]), u = simd_sum(up_sums[i]);
        if (lane == i) {
            own_gate = g;
            own_up = u;
        }
    }
    if (lane < UP_COLUMNS) {
        const size_t pair = size_t(row) * TOP_K + rank;
        out[pair * EXPERT_HIDDEN + column + lane] = silu(own_gate * factor) * (own_up * factor);
    }
}

// x[row] += sum over ranks of weight * (down of its expert) acts[row, rank]
//           + sigmoid(shared_gate[row]) * shared_down shared_acts[row]
//
// A simdgroup takes the columns of one expert, so that it reads that expert's activations once for all of them, and one
// column of the shared expert; then the columns are summed in the order of ranks.
kernel void expert_qmv_down(
    device const float* acts [[buffer(0)]],
    device const uint* experts [[buffer(1)]],
    device const float* weights [[buffer(2)]],
    device const float* shared_acts [[buffer(3)]],
    device const float* shared_gate [[buffer(4)]],
    device const uint* down [[buffer(5)]],
    device const bfloat* down_scales [[buffer(6)]],
    device const bfloat* down_biases [[buffer(7)]],
    device const uint* shared_down [[buffer(8)]],
    device const bfloat* shared_scales [[buffer(9)]],
    device const bfloat* shared_biases [[buffer(10)]],
    device float* x [[buffer(11)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partial[(TOP_K_MAX + 1) * DOWN_COLUMNS];
    const uint row = group.y, column = group.x * DOWN_COLUMNS;
    const size_t shared_first = size_t(column + simdgroup) * SHARED_HIDDEN;
    shared_down += packed_words(shared_first, OTHER_BITS);
    shared_scales += shared_first / GROUP;
    shared_biases += shared_first / GROUP;
    float shared_sum = 0.0f;
    for (uint start = 0; start < SHARED_HIDDEN; start += SPAN) {
        const uint k = start + lane * 16;
        if (within(k, SHARED_HIDDEN)) {
            const Values16 values = load16(shared_acts + size_t(row) * SHARED_HIDDEN + k);
            shared_sum += dot16(shared_down, shared_scales, shared_biases, k, OTHER_BITS, values);
        }
    }
    shared_sum = simd_sum(shared_sum);
    if (lane == 0) partial[TOP_K * DOWN_COLUMNS + simdgroup] = shared_sum;

    for (uint rank = simdgroup; rank < TOP_K; rank += DOWN_SIMDGROUPS) {
        const size_t pair = size_t(row) * TOP_K + rank;
        const size_t first = (size_t(experts[pair]) * HIDDEN + column) * EXPERT_HIDDEN;
        device const uint* words = down + packed_words(first, BITS);
        device const bfloat* scales = down_scales + first / GROUP;
        device const bfloat* biases = down_biases + first / GROUP;
        float sums[DOWN_COLUMNS];
        for (uint i = 0; i < DOWN_COLUMNS; i++) sums[i] = 0.0f;
        for (uint start = 0; start < EXPERT_HIDDEN; start += SPAN) {
            const uint k = start + lane * 16;
            if (within(k, EXPERT_HIDDEN)) {
                const Values16 values = load16(acts + pair * EXPERT_HIDDEN + k);
                for (uint i = 0; i < DOWN_COLUMNS; i++) {
                    sums[i] += dot16(words, scales, biases, i * EXPERT_HIDDEN + k, BITS, values);
                }
            }
        }
        for (uint i = 0; i < DOWN_COLUMNS; i++) {
            const float sum = simd_sum(sums[i]);
            if (lane == i) partial[rank * DOWN_COLUMNS + i] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < DOWN_COLUMNS) {
        float total = 0.0f;
        for (uint rank = 0; rank < TOP_K; rank++) {
            total = fma(weights[row * TOP_K + rank], partial[rank * DOWN_COLUMNS + thread_index], total);
        }
        total = fma(sigmoid(shared_gate[row]), partial[TOP_K * DOWN_COLUMNS + thread_index], total);
        const size_t element = size_t(row) * HIDDEN + column + thread_index;
        x[element] = x[element] + total;
    }
}
