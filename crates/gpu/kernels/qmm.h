// The tile of a product of activations with a quantised matrix: what a threadgroup of four simdgroups computes.
//
// ROWS x 64 outputs, in steps of 32 along the input: all threads bring the activations and the weights of the step to
// threadgroup memory, then each simdgroup multiplies all rows by its own 16 columns of weights. Activations stay bf16,
// as they come; weights become f32, `scale * q + bias`, because rounding them to bf16 would be the largest error of the
// product, and in f32 both tiles take 14 KiB of 32 at most: four threadgroups fit a GPU core's 64.
//
// An output is one chain of products of 8 along the input, from the first to the last, whatever ROWS is and whatever else
// the tile holds: rows and columns of a matrix product do not mix. So a tile that sticks out of the matrix may hold
// anything there: it holds the last row or column again, which needs no branch, and its results are not stored.
#pragma once

#include "math.h"

constant uint BITS [[function_constant(16)]];      // of a weight, 4 or 8
constant uint IN_DIM [[function_constant(17)]];    // of the product, a multiple of 64

#define TILE_COLUMNS 64
#define TILE_STEP 32
#define SCALE_GROUP 64    // weights that share a scale and a bias
// What the tiles of activations and weights are made of.
typedef uint4 x_vector_t;     // eight values of bf16
typedef float4 w_vector_t;    // four values
// Strides of their rows. With them, the 32 lanes of a simdgroup that load an 8x8 matrix meet 32 banks.
#define X_VECTORS 5     // 32 values, and padding for 8
#define W_VECTORS 9     // 32 values, and padding for 4

// The two elements of an 8x8 matrix that a lane holds lie in one row, side by side.
inline uint matrix_row(uint lane) { return (lane >> 4) * 4 + ((lane >> 1) & 3); }
inline uint matrix_column(uint lane) { return ((lane >> 3) & 1) * 4 + (lane & 1) * 2; }

// Integers of weights 16 part .. 16 part + 15 of a row.
inline uint4 load_weights(device const uint4* row, uint part) {
    if (BITS == 8) return row[part];
    const uint2 words = reinterpret_cast<device const uint2*>(row)[part];
    return uint4(words.x, words.y, 0, 0);
}

// Weights 4 i .. 4 i + 3 of those.
inline float4 decode_weights(uint4 words, uint i, float scale, float bias) {
    const uint mask = (1u << BITS) - 1u;
    const uint word = BITS == 8 ? words[i] : words[i / 2] >> (16 * (i % 2));
    const float4 q = float4(float(word & mask), float((word >> BITS) & mask), float((word >> (2 * BITS)) & mask),
                            float((word >> (3 * BITS)) & mask));
    return fma(float4(scale), q, float4(bias));
}

// Where two matrices share a tile, eight columns of the first and eight of the second take turns, so that a simdgroup has
// both of its outputs: which of them tile column `i` is of, and which of its columns.
inline bool paired_is_up(uint i) { return (i / 8) % 2 == 1; }
inline uint paired_column(uint i) { return i / 16 * 8 + i % 8; }

// `sums` gets the products of ROWS rows of x with 64 rows of a quantised matrix: sums[2 i + j] of a simdgroup is rows
// 8 i .. of the tile and columns 16 simdgroup + 8 j ..; rows from `rows` on, rounded up to 8, are left 0.
//
// `x_rows`: the rows of x that this thread copies, tile rows `thread_index / 4` and 32 more. `weight_row`: the row of
// the matrix that it decodes, for the tile's column `thread_index / 2`. All threads of the threadgroup, 128, take part.
template <uint ROWS>
inline void multiply_tile(thread simdgroup_float8x8* sums, uint rows, device const uint4* x, thread const uint* x_rows,
                          device const uint4* packed, device const bfloat* scales, device const bfloat* biases,
                          ulong weight_row, threadgroup x_vector_t* x_tile, threadgroup w_vector_t* w_tile, uint thread_index,
                          uint simdgroup, uint lane) {
#pragma unroll
    for (uint i = 0; i < ROWS / 4; i++) sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    // What this thread brings: 8 activations of each of its rows, and 16 weights.
    const uint x_part = thread_index % 4, w_part = thread_index % 2;
    threadgroup x_vector_t* x_to = x_tile + (thread_index / 4) * X_VECTORS + x_part;
    threadgroup w_vector_t* w_to = w_tile + (thread_index / 2) * W_VECTORS + w_part * 4;
    packed += weight_row * (IN_DIM * BITS / 128);
    scales += weight_row * (IN_DIM / SCALE_GROUP);
    biases += weight_row * (IN_DIM / SCALE_GROUP);

    // What it multiplies: its elements of the matrices at the corner.
    threadgroup const uint* x_from =
        reinterpret_cast<threadgroup const uint*>(x_tile + matrix_row(lane) * X_VECTORS) + matrix_column(lane) / 2;
    threadgroup const float* w_from =
        reinterpret_cast<threadgroup const float*>(w_tile + (16 * simdgroup + matrix_column(lane)) * W_VECTORS) +
        matrix_row(lane);

    for (uint first = 0; first < IN_DIM; first += TILE_STEP) {
        uint4 values[ROWS / 32];
#pragma unroll
        for (uint i = 0; i < ROWS / 32; i++) {
            values[i] = x[ulong(x_rows[i]) * (IN_DIM / 8) + first / 8 + x_part];
        }
        const uint4 words = load_weights(packed, first / 16 + w_part);
        const float scale = float(scales[first / SCALE_GROUP]), bias = float(biases[first / SCALE_GROUP]);

        threadgroup_barrier(mem_flags::mem_threadgroup);    // the step before has been multiplied
#pragma unroll
        for (uint i = 0; i < ROWS / 32; i++) x_to[32 * X_VECTORS * i] = values[i];
#pragma unroll
        for (uint i = 0; i < 4; i++) w_to[i] = decode_weights(words, i, scale, bias);
        threadgroup_barrier(mem_flags::mem_threadgroup);

#pragma unroll
        for (uint k = 0; k < TILE_STEP; k += 8) {
            simdgroup_float8x8 left, right;
            left.thread_elements()[0] = w_from[k];
            left.thread_elements()[1] = w_from[k + 4 * W_VECTORS];
            right.thread_elements()[0] = w_from[k + 32 * W_VECTORS];
            right.thread_elements()[1] = w_from[k + 36 * W_VECTORS];
#pragma unroll
            for (uint i = 0; i < ROWS / 8; i++) {
                // The same for the whole threadgroup. A block of few rows costs as many products as it has rows.
                if (8 * i < rows) {
                    const uint pair = x_from[32 * X_VECTORS * i + k / 2];
                    simdgroup_float8x8 row;
                    row.thread_elements()[0] = as_type<float>(pair << 16);
                    row.thread_elements()[1] = as_type<float>(pair & 0xffff0000u);
                    simdgroup_multiply_accumulate(sums[2 * i], row, left, sums[2 * i]);
                    simdgroup_multiply_accumulate(sums[2 * i + 1], row, right, sums[2 * i + 1]);
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
    const uint column = first_column + 8 * simdgroup + matrix_column(lane);
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++) {
        const uint row = 8 * i + matrix_row(lane);
#pragma unroll
        for (uint j = 0; j < 2; j++) {
            const float gate = sums[2 * i].thread_elements()[j], up = sums[2 * i + 1].thread_elements()[j];
            if (row < rows && column + j < columns) {
                out[ulong(first_row + row) * columns + column + j] = bfloat(silu(gate) * up);
            }
        }
    }
}
