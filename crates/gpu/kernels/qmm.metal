// Products of many rows with quantised matrices: y = W x, and silu(gate x) * (up x).
//
// Threadgroups of 128 threads, each a tile of ROWS rows and 64 columns (qmm.h). Grid: [tiles of rows, tiles of columns
// of all products]. Tiles of rows come first, so that those that need the same weights run at about the same time.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
#include "qmm.h"

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
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup x_vector_t x_tile[ROWS * X_VECTORS];
    threadgroup w_vector_t w_tile[TILE_COLUMNS * W_VECTORS];

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

    simdgroup_float8x8 sums[ROWS / 4];
    multiply_tile<ROWS>(sums, rows, x, x_rows, packed, scales, biases, weight_row, BITS, x_tile, w_tile,
                        thread_index, simdgroup, lane);

    const uint column = first_column + 16 * simdgroup + tile_column(lane);
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++) {
        const uint row = 8 * i + tile_row(lane);
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            const uint c = column + 8 * (j / 2) + j % 2;
            const float y = sums[2 * i + j / 2].thread_elements()[j % 2];
            if (row < rows && c < columns) {
                const ulong to = ulong(first_row + row) * columns + c;
                if (p.rounded[product]) reinterpret_cast<device bfloat*>(out)[to] = bfloat(y);
                else out[to] = p.add ? out[to] + y : y;
            }
        }
    }
}

template [[host_name("qmm_r32")]] [[kernel]] decltype(qmm<32>) qmm<32>;
template [[host_name("qmm_r64")]] [[kernel]] decltype(qmm<64>) qmm<64>;

// x bf16 [rows, IN_DIM]; gate and up [columns, IN_DIM]; out bf16 [rows, columns]. Half of a tile's columns are of gate
// and half of up, eight by eight, so that a lane holds both values of an output.
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
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup x_vector_t x_tile[ROWS * X_VECTORS];
    threadgroup w_vector_t w_tile[TILE_COLUMNS * W_VECTORS];

    const uint first_column = at.y * (TILE_COLUMNS / 2);
    const uint first_row = at.x * ROWS, rows = min(p.rows - first_row, ROWS);
    uint x_rows[ROWS / 32];
#pragma unroll
    for (uint i = 0; i < ROWS / 32; i++) x_rows[i] = first_row + min(thread_index / 4 + 32 * i, rows - 1);
    const bool is_up = paired_is_up(thread_index / 2);
    const uint weight_row = min(first_column + paired_column(thread_index / 2), p.columns - 1);

    simdgroup_float8x8 sums[ROWS / 4];
    multiply_tile<ROWS>(sums, rows, x, x_rows, is_up ? up_packed : gate_packed, is_up ? up_scales : gate_scales,
                        is_up ? up_biases : gate_biases, weight_row, paired_bits(is_up), x_tile, w_tile, thread_index,
                        simdgroup, lane);

    store_swiglu<ROWS>(out, p.columns, first_row, rows, first_column, sums, simdgroup, lane);
}

template [[host_name("qmm_swiglu_r32")]] [[kernel]] decltype(qmm_swiglu<32>) qmm_swiglu<32>;
template [[host_name("qmm_swiglu_r64")]] [[kernel]] decltype(qmm_swiglu<64>) qmm_swiglu<64>;
