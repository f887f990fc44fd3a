// The kernels of qmm.metal on the tensor units of Metal 4: the same dispatches, tiles multiplied as product.h says.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "tensors.h"
using namespace metal;
#include "product.h"

// x bf16 [rows, IN_DIM]; up to four matrices [columns, IN_DIM]; their outputs [rows, columns], f32 or bf16.
template <uint ROWS>
kernel void qmm(
    device const uint4* x [[buffer(0)]],
    device const uint* packed0 [[buffer(1)]],
    device const bfloat* scales0 [[buffer(2)]],
    device const bfloat* biases0 [[buffer(3)]],
    device float* out0 [[buffer(4)]],
    device const uint* packed1 [[buffer(5)]],
    device const bfloat* scales1 [[buffer(6)]],
    device const bfloat* biases1 [[buffer(7)]],
    device float* out1 [[buffer(8)]],
    device const uint* packed2 [[buffer(9)]],
    device const bfloat* scales2 [[buffer(10)]],
    device const bfloat* biases2 [[buffer(11)]],
    device float* out2 [[buffer(12)]],
    device const uint* packed3 [[buffer(13)]],
    device const bfloat* scales3 [[buffer(14)]],
    device const bfloat* biases3 [[buffer(15)]],
    device float* out3 [[buffer(16)]],
    constant QmmParams& p [[buffer(17)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup uint4 tile[TILE_VECTORS(ROWS)];

    const uint product = uint(at.y >= p.first_tile[1]) + uint(at.y >= p.first_tile[2]) + uint(at.y >= p.first_tile[3]);
    device const uint* packed = product == 0 ? packed0 : product == 1 ? packed1 : product == 2 ? packed2 : packed3;
    device const bfloat* scales = product == 0 ? scales0 : product == 1 ? scales1 : product == 2 ? scales2 : scales3;
    device const bfloat* biases = product == 0 ? biases0 : product == 1 ? biases1 : product == 2 ? biases2 : biases3;
    device float* out = product == 0 ? out0 : product == 1 ? out1 : product == 2 ? out2 : out3;

    const uint columns = p.columns[product];
    const uint first_column = (at.y - p.first_tile[product]) * TILE_COLUMNS;
    const uint first_row = at.x * ROWS, rows = min(p.rows - first_row, ROWS);
    uint x_rows[ROWS / 32];
#pragma unroll
    for (uint i = 0; i < ROWS / 32; i++) x_rows[i] = first_row + min(thread_index / 4 + 32 * i, rows - 1);
    const uint weight_row = min(first_column + thread_index / 2, columns - 1);

    multiply_tile_in_blocks<ROWS>(tile, rows, x, x_rows, packed, scales, biases, weight_row, BITS, thread_index,
                                  simdgroup);

    threadgroup const float* sums = reinterpret_cast<threadgroup const float*>(tile);
    for (uint i = thread_index; i < ROWS * TILE_COLUMNS; i += 128) {
        const uint row = i / TILE_COLUMNS, c = first_column + i % TILE_COLUMNS;
        if (row < rows && c < columns) {
            const float y = sums[i];
            const ulong to = ulong(first_row + row) * columns + c;
            if (p.rounded[product]) reinterpret_cast<device bfloat*>(out)[to] = bfloat(y);
            else out[to] = p.add ? out[to] + y : y;
        }
    }
}

template [[host_name("qmm_r32")]] [[kernel]] decltype(qmm<32>) qmm<32>;
template [[host_name("qmm_r64")]] [[kernel]] decltype(qmm<64>) qmm<64>;

// x bf16 [rows, IN_DIM]; gate and up [columns, IN_DIM]; out bf16 [rows, columns].
template <uint ROWS>
kernel void qmm_swiglu(
    device const uint4* x [[buffer(0)]],
    device const uint* gate_packed [[buffer(1)]],
    device const bfloat* gate_scales [[buffer(2)]],
    device const bfloat* gate_biases [[buffer(3)]],
    device const uint* up_packed [[buffer(4)]],
    device const bfloat* up_scales [[buffer(5)]],
    device const bfloat* up_biases [[buffer(6)]],
    device bfloat* out [[buffer(7)]],
    constant QmmSwigluParams& p [[buffer(8)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup uint4 tile[TILE_VECTORS(ROWS)];

    const uint first_column = at.y * (TILE_COLUMNS / 2);
    const uint first_row = at.x * ROWS, rows = min(p.rows - first_row, ROWS);
    uint x_rows[ROWS / 32];
#pragma unroll
    for (uint i = 0; i < ROWS / 32; i++) x_rows[i] = first_row + min(thread_index / 4 + 32 * i, rows - 1);
    const bool is_up = paired_is_up(thread_index / 2);
    const uint weight_row = min(first_column + paired_column(thread_index / 2), p.columns - 1);

    multiply_tile_in_blocks<ROWS>(tile, rows, x, x_rows, is_up ? up_packed : gate_packed,
                                  is_up ? up_scales : gate_scales, is_up ? up_biases : gate_biases, weight_row,
                                  paired_bits(is_up), thread_index, simdgroup);
    store_swiglu_of_tile<ROWS>(out, p.columns, first_row, rows, first_column, tile, thread_index);
}

template [[host_name("qmm_swiglu_r32")]] [[kernel]] decltype(qmm_swiglu<32>) qmm_swiglu<32>;
template [[host_name("qmm_swiglu_r64")]] [[kernel]] decltype(qmm_swiglu<64>) qmm_swiglu<64>;
