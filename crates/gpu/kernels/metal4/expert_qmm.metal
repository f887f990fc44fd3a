// The kernels of expert_qmm.metal on the tensor units of Metal 4: the same dispatches, tiles multiplied as product.h says.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "tensors.h"
using namespace metal;
#include "shape.h"
#include "product.h"

// x bf16 [rows, IN_DIM]; gate and up [EXPERTS * EXPERT_HIDDEN, IN_DIM]; pairs [rows * TOP_K]: pair (row * TOP_K +
// rank) at each sorted position; blocks: expert, first sorted position, count, 0; out bf16 [rows * TOP_K,
// EXPERT_HIDDEN] in sorted order.
template <uint ROWS>
kernel void expert_qmm_up(
    device const uint4* x [[buffer(0)]],
    device const uint* gate_packed [[buffer(1)]],
    device const bfloat* gate_scales [[buffer(2)]],
    device const bfloat* gate_biases [[buffer(3)]],
    device const uint* up_packed [[buffer(4)]],
    device const bfloat* up_scales [[buffer(5)]],
    device const bfloat* up_biases [[buffer(6)]],
    device const uint* pairs [[buffer(7)]],
    device const uint4* blocks [[buffer(8)]],
    device const uint* block_count [[buffer(9)]],
    device bfloat* out [[buffer(10)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup uint4 tile[TILE_VECTORS(ROWS)];

    if (at.y >= block_count[0]) return;
    const uint4 block = blocks[at.y];
    const uint expert = block.x, first = block.y, rows = block.z;
    const uint first_column = at.x * (TILE_COLUMNS / 2);
    uint x_rows[ROWS / 32];
#pragma unroll
    for (uint i = 0; i < ROWS / 32; i++) x_rows[i] = pairs[first + min(thread_index / 4 + 32 * i, rows - 1)] / TOP_K;
    const bool is_up = paired_is_up(thread_index / 2);
    const uint weight_row = min(first_column + paired_column(thread_index / 2), EXPERT_HIDDEN - 1);

    multiply_tile_in_blocks<ROWS>(tile, rows, x, x_rows, is_up ? up_packed : gate_packed,
                                  is_up ? up_scales : gate_scales, is_up ? up_biases : gate_biases,
                                  ulong(expert) * EXPERT_HIDDEN + weight_row, paired_bits(is_up), thread_index,
                                  simdgroup);
    store_swiglu_of_tile<ROWS>(out, EXPERT_HIDDEN, first, rows, first_column, tile, thread_index);
}

template [[host_name("expert_qmm_up_r32")]] [[kernel]] decltype(expert_qmm_up<32>) expert_qmm_up<32>;
template [[host_name("expert_qmm_up_r64")]] [[kernel]] decltype(expert_qmm_up<64>) expert_qmm_up<64>;

// acts bf16 [rows * TOP_K, IN_DIM] in sorted order; down [EXPERTS * HIDDEN, IN_DIM]; pairs and blocks as above; out f32
// [rows * TOP_K, HIDDEN] in the order of pairs.
template <uint ROWS>
kernel void expert_qmm_down(
    device const uint4* acts [[buffer(0)]],
    device const uint* packed [[buffer(1)]],
    device const bfloat* scales [[buffer(2)]],
    device const bfloat* biases [[buffer(3)]],
    device const uint* pairs [[buffer(4)]],
    device const uint4* blocks [[buffer(5)]],
    device const uint* block_count [[buffer(6)]],
    device float* out [[buffer(7)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup uint4 tile[TILE_VECTORS(ROWS)];

    if (at.y >= block_count[0]) return;
    const uint4 block = blocks[at.y];
    const uint expert = block.x, first = block.y, rows = block.z;
    const uint first_column = at.x * TILE_COLUMNS;
    uint x_rows[ROWS / 32];
#pragma unroll
    for (uint i = 0; i < ROWS / 32; i++) x_rows[i] = first + min(thread_index / 4 + 32 * i, rows - 1);
    const uint weight_row = min(first_column + thread_index / 2, HIDDEN - 1);

    multiply_tile_in_blocks<ROWS>(tile, rows, acts, x_rows, packed, scales, biases,
                                  ulong(expert) * HIDDEN + weight_row, BITS, thread_index, simdgroup);

    threadgroup const float* sums = reinterpret_cast<threadgroup const float*>(tile);
    for (uint i = thread_index; i < ROWS * TILE_COLUMNS; i += 128) {
        const uint row = i / TILE_COLUMNS, c = first_column + i % TILE_COLUMNS;
        if (row < rows && c < HIDDEN) out[ulong(pairs[first + row]) * HIDDEN + c] = sums[i];
    }
}

template [[host_name("expert_qmm_down_r32")]] [[kernel]] decltype(expert_qmm_down<32>) expert_qmm_down<32>;
template [[host_name("expert_qmm_down_r64")]] [[kernel]] decltype(expert_qmm_down<64>) expert_qmm_down<64>;
