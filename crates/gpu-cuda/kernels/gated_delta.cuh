// What the two kernels of the chunked recurrence hand on, and how. See gated_delta_chunks.cu.
#pragma once
#include "mma.cuh"
#include "shape.cuh"

constexpr uint CHUNK = PAGE_TOKENS;
constexpr uint ROW_TILES = CHUNK / 8, ROW_BLOCKS = CHUNK / 16;
constexpr uint KEY_BLOCKS = DELTA_DIM / 16;                    // and blocks of columns
constexpr uint TRIANGLE = ROW_TILES * (ROW_TILES + 1) / 2;     // tiles of [8, 8] on and below the diagonal
constexpr uint ROW_CHUNKS = DELTA_DIM / 8;                     // of 16 bytes
constexpr uint TERM_BYTES = CHUNK * ROW_CHUNKS * 16;           // a chunk's q, k or v of a head

// Scratch of a chunk and head, in the order in which lanes take it as parts of products:
//   minus_w    uint4 [row tile, key block, lane], a right side: two words of high, two of low parts
//   u0         float4 [column block, row tile, lane], sums
//   attention  uint2 [tile of the triangle, lane], half a right side: a word of high, one of low parts
//   decays     f32 [2, 64], e^G and e^(G_last - G)
constexpr uint FACTOR_QUADS = ROW_TILES * KEY_BLOCKS * 32;

inline constexpr uint triangle_index(uint i, uint j) { return i * (i + 1) / 2 + j; }
inline uint key_head_of(uint value_head) { return value_head / (VALUE_HEADS / KEY_HEADS); }

// Copies a head's rows of a chunk, chunk c of row r to place c ^ (r % 8), so that any 8 rows' chunks of one index lie in
// different banks. Rows that the chunk lacks are zeros.
template <uint THREADS>
inline void copy_rows(uint to, const uint4* from, uint heads, uint head, uint first_row, uint rows) {
#pragma unroll
    for (uint i = threadIdx.x; i < CHUNK * ROW_CHUNKS; i += THREADS) {
        const uint row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
        const size_t at = (size_t(first_row + min(row, rows - 1)) * heads + head) * ROW_CHUNKS + chunk;
        copy_async(to + (row * ROW_CHUNKS + (chunk ^ row % 8)) * 16, from + at, row < rows);
    }
}

// sums += left right, where both sides are split: what is left out, the product of the low parts, is 2^-16 of it.
inline void mma_split(
    float (&sums)[4], const uint (&high)[4], const uint (&low)[4], uint high0, uint high1, uint low0, uint low1) {
    mma(sums, high, high0, high1);
    mma(sums, low, high0, high1);
    mma(sums, high, low0, low1);
}
