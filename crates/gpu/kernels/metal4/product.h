// The tile of qmm.h on tensor units: ROWS x 64 outputs of a product of activations with a quantised matrix.
//
// Threads bring activations and weights to threadgroup memory as they do there, weights as TERMS terms of bf16. Then
// each simdgroup multiplies blocks of 16 rows and 32 columns: simdgroup s has rows 16 (s % 2) .., and from 64 rows on 32
// more, and columns 32 (s / 2) ... Blocks are the same whatever ROWS is, so that a row's sums are: one operation, in one
// order, on the same 32 indices a step. Blocks without a row are left out.
#pragma once
#include "qmm.h"
#include "sums.h"
#include "tensors.h"
#include "terms.h"

#define BLOCK_ROWS 16
#define BLOCK_COLUMNS 32
#define ROW_VALUES (8 * X_VECTORS)    // bf16 from a row of a tile to the next
// 16 bytes each: operands, whose place the sums take.
#define OPERAND_VECTORS(ROWS) ((ROWS + TERMS * TILE_COLUMNS) * X_VECTORS)
#define SUM_VECTORS(ROWS) (ROWS * TILE_COLUMNS / 4)
#define TILE_VECTORS(ROWS) (OPERAND_VECTORS(ROWS) > SUM_VECTORS(ROWS) ? OPERAND_VECTORS(ROWS) : SUM_VECTORS(ROWS))

// Place of row `row`, column `column` among the sums that `multiply_tile_in_blocks` leaves.
inline uint sum_place(uint row, uint column) { return row * TILE_COLUMNS + column; }

// The first TILE_VECTORS(ROWS) of `tile` get the products of ROWS rows of x with 64 rows of a quantised matrix, f32
// [ROWS, 64], for all threads to read. Rows from `rows` on, rounded up to 16, are 0. Other parameters are those of
// `multiply_tile`.
template <uint ROWS>
inline void multiply_tile_in_blocks(threadgroup uint4* tile, uint rows, device const uint4* x,
                                    thread const uint* x_rows, device const uint* packed,
                                    device const bfloat* scales, device const bfloat* biases, ulong weight_row,
                                    uint bits, uint thread_index, uint simdgroup) {
    // What this thread brings: 8 activations of each of its rows, and 16 weights.
    const uint x_part = thread_index % 4, w_part = thread_index % 2;
    threadgroup uint4* x_to = tile + (thread_index / 4) * X_VECTORS + x_part;
    threadgroup uint4* w_to = tile + (ROWS + thread_index / 2) * X_VECTORS + 2 * w_part;
    packed += packed_words(weight_row * IN_DIM, bits);
    scales += weight_row * (IN_DIM / GROUP);
    biases += weight_row * (IN_DIM / GROUP);

    // What its simdgroup multiplies.
    const uint first_row = simdgroup % 2 * BLOCK_ROWS, first_column = simdgroup / 2 * BLOCK_COLUMNS;
    const uint other_row = ROWS > 32 ? 32 + first_row : first_row;
    threadgroup bfloat* values = reinterpret_cast<threadgroup bfloat*>(tile);
    shared_tensor_t block = shared_tensor(values + first_row * ROW_VALUES, BLOCK_ROWS, TILE_STEP, ROW_VALUES);
    shared_tensor_t other = shared_tensor(values + other_row * ROW_VALUES, BLOCK_ROWS, TILE_STEP, ROW_VALUES);
    PRODUCT_T(BLOCK_ROWS, BLOCK_COLUMNS, TILE_STEP, true) product;
    auto block_sums = SUMS_OF(product, shared_tensor_t, shared_tensor_t);
    auto other_sums = SUMS_OF(product, shared_tensor_t, shared_tensor_t);
    clear(block_sums);
    clear(other_sums);

    for (uint first = 0; first < IN_DIM; first += TILE_STEP) {
        uint4 activations[ROWS / 32];
#pragma unroll
        for (uint i = 0; i < ROWS / 32; i++) activations[i] = x[(ulong(x_rows[i]) * IN_DIM + first) / 8 + x_part];
        const uint4 words = load_packed16(packed, first + 16 * w_part, bits);
        const float scale = float(scales[first / GROUP]), bias = float(biases[first / GROUP]);
        float4 weights[4];
        dequantize16(words, scale, bias, bits, weights);

        threadgroup_barrier(mem_flags::mem_threadgroup);    // the step before has been multiplied
#pragma unroll
        for (uint i = 0; i < ROWS / 32; i++) x_to[32 * X_VECTORS * i] = activations[i];
#pragma unroll
        for (uint term = 0; term < TERMS; term++) {
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                const uint2 low = take_term(weights[2 * i]), high = take_term(weights[2 * i + 1]);
                w_to[term * TILE_COLUMNS * X_VECTORS + i] = uint4(low.x, low.y, high.x, high.y);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma unroll
        for (uint term = 0; term < TERMS; term++) {
            const uint row = ROWS + term * TILE_COLUMNS + first_column;
            shared_tensor_t columns = shared_tensor(values + row * ROW_VALUES, BLOCK_COLUMNS, TILE_STEP, ROW_VALUES);
            // The same for the whole simdgroup.
            if (first_row < rows) product.run(block, columns, block_sums);
            if (ROWS > 32 && other_row < rows) product.run(other, columns, other_sums);
        }
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);    // operands are done with
    threadgroup float* sums = reinterpret_cast<threadgroup float*>(tile);
    put(block_sums, sums + sum_place(first_row, first_column), TILE_COLUMNS, 1.0f);
    if (ROWS > 32) put(other_sums, sums + sum_place(other_row, first_column), TILE_COLUMNS, 1.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// The outputs silu(gate) * up of a tile that two matrices share (see `paired_column`): rows first_row .. of `out`
// [.., columns], columns first_column .. of it.
template <uint ROWS>
inline void store_swiglu_of_tile(device bfloat* out, uint columns, uint first_row, uint rows, uint first_column,
                                 threadgroup const uint4* tile, uint thread_index) {
    threadgroup const float* sums = reinterpret_cast<threadgroup const float*>(tile);
    for (uint i = thread_index; i < ROWS * TILE_COLUMNS / 2; i += 128) {
        const uint row = i / (TILE_COLUMNS / 2), c = i % (TILE_COLUMNS / 2);
        const uint place = sum_place(row, c / 8 * 16 + c % 8);
        if (row < rows && first_column + c < columns) {
            const float gate = sums[place], up = sums[place + 8];
            out[ulong(first_row + row) * columns + first_column + c] = bfloat(silu(gate) * up);
        }
    }
}
