// The tile of a product of activations with a quantised matrix: what a threadgroup of four simdgroups computes.
//
// ROWS x 64 outputs, in steps of 32 along the input: all threads bring the activations and the weights of the step to
// threadgroup memory, then each simdgroup multiplies all rows by its own 16 columns of weights. Activations stay bf16,
// as they come; weights become f32, `scale * q + bias`, because rounding them to bf16 would be the largest error of the
// product, and in f32 both tiles take 14 KiB of 32 at most: four threadgroups fit a GPU core's 64.
//
// An output is one chain of products of 8x8 matrices, in one order, whatever ROWS is and whatever else the tile holds:
// rows and columns of a product do not mix. So a tile that sticks out of the matrix may hold anything there: it holds
// the last row or column again, which needs no branch, and its results are not stored. The 32 indices of a step are
// dealt to its four products as tiles.h says, so that lanes load them in words of 16 bytes.
#pragma once

#include "math.h"
#include "quantized.h"
#include "tiles.h"

constant uint BITS [[function_constant(16)]];          // of a weight, 4 or 8
constant uint IN_DIM [[function_constant(17)]];        // of the product, a multiple of GROUP
constant uint OTHER_BITS [[function_constant(18)]];    // of the second matrix, where two share a tile

#define TILE_COLUMNS 64
#define TILE_STEP 32
// What the tiles of activations and weights are made of.
typedef uint4 x_vector_t;     // eight values of bf16
typedef float4 w_vector_t;    // four values
// Strides of their rows: 32 values and one vector of padding, so that rows side by side start in other banks.
#define X_VECTORS 5
#define W_VECTORS 9

struct QmmParams {
    uint rows;
    uint columns[4];       // of each product
    uint first_tile[4];    // of each product along grid y; 2^32 - 1 where there is none
    uint rounded[4];       // whether an output is bf16, not f32
    uint add;              // whether results are added to the outputs
};

struct QmmSwigluParams {
    uint rows;
    uint columns;
};

// Where two matrices share a tile, eight columns of the first and eight of the second take turns, so that a simdgroup
// has both of its outputs: which of them tile column `i` is of, and which of its columns.
inline bool paired_is_up(uint i) { return (i / 8) % 2 == 1; }
inline uint paired_column(uint i) { return i / 16 * 8 + i % 8; }
// A constant of the pipeline unless the two differ.
inline uint paired_bits(bool is_up) { return BITS == OTHER_BITS ? BITS : is_up ? OTHER_BITS : BITS; }

// Four tiles [index, column] from the four values of columns c and c + 1 from index 4 r on.
inline void set_columns(thread simdgroup_float8x8* tiles, float4 first, float4 second) {
#pragma unroll
    for (uint s = 0; s < 4; s++) set_tile(tiles[s], first[s], second[s]);
}

// `sums` gets the products of ROWS rows of x with 64 rows of a quantised matrix: sums[2 i + j] of a simdgroup is rows
// 8 i .. of the tile and columns 16 simdgroup + 8 j ..; rows from `rows` on, rounded up to 8, are left 0.
//
// `x_rows`: the rows of x that this thread copies, tile rows `thread_index / 4` and 32 more. `weight_row`, of `bits`:
// the row of the matrix that it decodes, for the tile's column `thread_index / 2`. All threads of the threadgroup,
// 128, take part.
template <uint ROWS>
inline void multiply_tile(thread simdgroup_float8x8* sums, uint rows, device const uint4* x, thread const uint* x_rows,
                          device const uint* packed, device const bfloat* scales, device const bfloat* biases,
                          ulong weight_row, uint bits, threadgroup x_vector_t* x_tile,
                          threadgroup w_vector_t* w_tile, uint thread_index, uint simdgroup, uint lane) {
#pragma unroll
    for (uint i = 0; i < ROWS / 4; i++) sums[i] = zero_tile();

    // What this thread brings: 8 activations of each of its rows, and 16 weights.
    const uint x_part = thread_index % 4, w_part = thread_index % 2;
    threadgroup x_vector_t* x_to = x_tile + (thread_index / 4) * X_VECTORS + x_part;
    threadgroup w_vector_t* w_to = w_tile + (thread_index / 2) * W_VECTORS + w_part * 4;
    packed += packed_words(weight_row * IN_DIM, bits);
    scales += weight_row * (IN_DIM / GROUP);
    biases += weight_row * (IN_DIM / GROUP);

    // What it multiplies: activations 4 c .. 4 c + 7 of a row, and weights 4 r .. 4 r + 3 of columns c and c + 1.
    threadgroup const x_vector_t* x_from = x_tile + tile_row(lane) * X_VECTORS + tile_column(lane) / 2;
    threadgroup const w_vector_t* w_from = w_tile + (16 * simdgroup + tile_column(lane)) * W_VECTORS + tile_row(lane);

    for (uint first = 0; first < IN_DIM; first += TILE_STEP) {
        uint4 values[ROWS / 32];
#pragma unroll
        for (uint i = 0; i < ROWS / 32; i++) values[i] = x[(ulong(x_rows[i]) * IN_DIM + first) / 8 + x_part];
        const uint4 words = load_packed16(packed, first + 16 * w_part, bits);
        const float scale = float(scales[first / GROUP]), bias = float(biases[first / GROUP]);
        float4 weights[4];
        dequantize16(words, scale, bias, bits, weights);

        threadgroup_barrier(mem_flags::mem_threadgroup);    // the step before has been multiplied
#pragma unroll
        for (uint i = 0; i < ROWS / 32; i++) x_to[32 * X_VECTORS * i] = values[i];
#pragma unroll
        for (uint i = 0; i < 4; i++) w_to[i] = weights[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);

        simdgroup_float8x8 left[4], right[4];
        set_columns(left, w_from[0], w_from[W_VECTORS]);
        set_columns(right, w_from[8 * W_VECTORS], w_from[9 * W_VECTORS]);
#pragma unroll
        for (uint i = 0; i < ROWS / 8; i++) {
            // The same for the whole threadgroup. A block of few rows costs as many products as it has rows.
            if (8 * i < rows) {
                simdgroup_float8x8 row[4];
                set_rows(row, x_from[8 * X_VECTORS * i]);
#pragma unroll
                for (uint s = 0; s < 4; s++) {
                    simdgroup_multiply_accumulate(sums[2 * i], row[s], left[s], sums[2 * i]);
                    simdgroup_multiply_accumulate(sums[2 * i + 1], row[s], right[s], sums[2 * i + 1]);
                }
            }
        }
    }
}

// The outputs silu(gate) * up of a tile that two matrices share: rows first_row .. of `out` [.., columns], columns
// first_column .. of it.
template <uint ROWS>
inline void store_swiglu(device bfloat* out, uint columns, uint first_row, uint rows, uint first_column,
                         thread simdgroup_float8x8* sums, uint simdgroup, uint lane) {
    const uint column = first_column + 8 * simdgroup + tile_column(lane);
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++) {
        const uint row = 8 * i + tile_row(lane);
#pragma unroll
        for (uint j = 0; j < 2; j++) {
            const float gate = sums[2 * i].thread_elements()[j], up = sums[2 * i + 1].thread_elements()[j];
            if (row < rows && column + j < columns) {
                out[ulong(first_row + row) * columns + column + j] = bfloat(silu(gate) * up);
            }
        }
    }
}
