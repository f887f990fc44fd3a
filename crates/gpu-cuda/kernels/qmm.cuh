// The tile of a product of activations with a quantised matrix on tensor cores: what a block of four warps computes.
//
// 64 rows of activations by 128 rows of weights, a group of 64 along the input at a time. Weights are the left side:
// each warp has 32 rows of them and all activations, so that each weight is unpacked once in a block. A weight is
// scale * q + bias with q an integer. The integer, less half its range, is exact in bf16 and so are its products, so
// nothing is rounded before it is summed in f32:
//
//     y = sum over groups of  scale * (sum of q x)  +  bias * (sum of x)
//
// with the bias of the integer less half its range. The sums of x are a product with ones, a quarter of them by each warp,
// one group ahead. An output is one chain of products and sums in one order, whatever else its tile holds. What sticks out
// of a matrix is its last row again, and is not stored.
//
// In a group, lane l of a product takes weights 16 (l % 4) .. + 15 of its row, four to each of four products, and the same
// of activations: which index of a product an input has does not matter as long as both sides agree.
#pragma once

#include "layout.cuh"
#include "mma.cuh"
#include "quantized.cuh"

constexpr uint GROUPS = IN_DIM / GROUP;
constexpr uint THREADS = 128;
constexpr uint TILE_ROWS = 64;       // of activations
constexpr uint TILE_COLUMNS = 128;   // rows of weights
constexpr uint STAGES = 4;           // groups that are in shared memory or on their way

constexpr uint LARGER_BITS = BITS > OTHER_BITS ? BITS : OTHER_BITS;
constexpr uint X_CHUNKS = GROUP / 8;                    // of 16 bytes, in a row of a group
constexpr uint X_BYTES = TILE_ROWS * X_CHUNKS * 16;
constexpr uint WEIGHT_BYTES = GROUP * LARGER_BITS / 8;  // of a row of a group
constexpr uint STAGE_BYTES = X_BYTES + TILE_COLUMNS * WEIGHT_BYTES;
static_assert(STAGES * STAGE_BYTES + 2 * TILE_ROWS * sizeof(float) == SHARED, "stages, and sums of two groups");

struct Matrix {
    const uint4* packed;
    const bf16* scales;
    const bf16* biases;
};

struct Sums { float of[2][TILE_ROWS / 8][4]; };

inline float silu(float x) { return x / (1.0f + expf(-x)); }

// Pairs of eight 4-bit integers less 8, in their order: an integer is the end of the mantissa of 128.
inline void unpack4(uint word, uint* pairs) {
    const uint even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        // Byte i of each, to bytes 0 and 2.
        const uint bits = __byte_perm(even, odd, 0x0400u + 0x1111u * i) & 0x00ff00ffu | 0x43004300u;
        // Less 136: times 1, as sums of pairs came later than products.
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pairs[i]) : "r"(bits), "r"(0x3f803f80u), "r"(0xc308c308u));
    }
}

// Pairs of four 8-bit integers less 128: an integer is the end of the mantissa of 2^23.
inline void unpack8(uint word, uint* pairs) {
    const auto value = [word](uint i) { return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + i)) - 8388736.0f; };
    pairs[0] = bf16_pair(value(0), value(1));
    pairs[1] = bf16_pair(value(2), value(3));
}

// 16 integers of a row in shared memory.
template <uint B> inline void unpack16(uint address, uint (&pairs)[8]) {
    if (B == 4) {
        uint words[2];
        load_shared(words, address);
        unpack4(words[0], pairs);
        unpack4(words[1], pairs + 4);
    } else {
        uint words[4];
        load_shared(words, address);
#pragma unroll
        for (uint i = 0; i < 4; i++) unpack8(words[i], pairs + 2 * i);
    }
}

// Where a tile takes its operands from. `x`: this thread's 16 bytes of rows `thread / 8 + 16 i`. Rows 0 to 15 of a warp's
// weights are of the first matrix and others of the second; `row(m, i)` is which row of matrix m its row i is.
template <typename Row> struct Operands {
    const uint4* x[4];
    Matrix matrices[2];
    Row row;
};

// The sums of a tile: `of[m][n]` are fragments of rows of matrix m and activations 8 n .. 8 n + 7, as mma.cuh has them.
// Activations from `rows` on are left out where that is a half of them.
template <typename Row> inline void multiply(Sums& sums, uint rows, const Operands<Row>& from, const uint4* shared) {
    const uint thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const uint stages_at = shared_address(shared), x_sums_at = stages_at + STAGES * STAGE_BYTES;

    // What this thread copies: chunks of activations, and a row of weights. Chunk c of row r goes to place c ^ (r % 2), so
    // that the lanes of two rows read different banks.
    const uint chunk = thread % X_CHUNKS, x_row = thread / X_CHUNKS;
    const uint x_to = (x_row * X_CHUNKS + (chunk ^ x_row % 2)) * 16;
    const uint matrix = lane / 16;
    const uint chunks = GROUP * (matrix == 0 ? BITS : OTHER_BITS) / 128;  // of 16 bytes, in a row of a group
    const uint4* packed = from.matrices[matrix].packed + size_t(from.row(matrix, lane % 16)) * GROUPS * chunks;
    const uint weights_to = X_BYTES + thread * WEIGHT_BYTES;
    const auto copy = [&](uint group) {
        if (group < GROUPS) {
            const uint to = stages_at + group % STAGES * STAGE_BYTES;
#pragma unroll
            for (uint i = 0; i < 4; i++) copy_async(to + x_to + i * 16 * X_CHUNKS * 16, from.x[i] + group * X_CHUNKS);
#pragma unroll
            for (uint i = 0; i < LARGER_BITS / 2; i++) {
                if (i < chunks) copy_async(to + weights_to + i * 16, packed + group * chunks + i);
            }
        }
        copies_end();
    };

    // What it multiplies.
    const uint row = lane / 4, part = lane % 4;
    const uint x_from[2] = {(row * X_CHUNKS + (2 * part ^ row % 2)) * 16, (row * X_CHUNKS + (2 * part + 1 ^ row % 2)) * 16};
    const uint weights_from = X_BYTES + (warp * 32 + row) * WEIGHT_BYTES;
    uint factors_at[2][2];
#pragma unroll
    for (uint m = 0; m < 2; m++) {
#pragma unroll
        for (uint i = 0; i < 2; i++) factors_at[m][i] = from.row(m, row + 8 * i) * GROUPS;
    }
    const auto load_x = [&](uint (&x)[8], uint stage, uint n) {
        load_shared(*reinterpret_cast<uint(*)[4]>(x), stage + x_from[0] + n * 8 * X_CHUNKS * 16);
        load_shared(*reinterpret_cast<uint(*)[4]>(x + 4), stage + x_from[1] + n * 8 * X_CHUNKS * 16);
    };
    // Sums of the activations of a group, of 16 rows by each warp.
    const auto sum_x = [&](uint group) {
        const uint ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
        for (uint j = 0; j < 2; j++) {
            const uint n = 2 * warp + j;
            uint x[8];
            load_x(x, stages_at + group % STAGES * STAGE_BYTES, n);
            float total[4] = {};
#pragma unroll
            for (uint k = 0; k < 4; k++) mma(total, ones, x[2 * k], x[2 * k + 1]);
            if (row == 0) store_shared(x_sums_at + (group % 2 * TILE_ROWS + 8 * n + 2 * part) * 4, total[0], total[1]);
        }
    };

#pragma unroll
    for (uint stage = 0; stage < STAGES - 1; stage++) copy(stage);
    copies_wait<STAGES - 2>();
    __syncthreads();
    sum_x(0);

#pragma unroll
    for (uint m = 0; m < 2; m++) {
#pragma unroll
        for (uint n = 0; n < TILE_ROWS / 8; n++) {
#pragma unroll
            for (uint e = 0; e < 4; e++) sums.of[m][n][e] = 0.0f;
        }
    }
    uint scale_bits[2][2], bias_bits[2][2];
    const auto load_factors = [&](uint group) {
#pragma unroll
        for (uint m = 0; m < 2; m++) {
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                scale_bits[m][i] = from.matrices[m].scales[factors_at[m][i] + group];
                bias_bits[m][i] = from.matrices[m].biases[factors_at[m][i] + group];
            }
        }
    };
    load_factors(0);

    for (uint group = 0; group < GROUPS; group++) {
        copies_wait<STAGES - 3>();  // this group and the next are there
        __syncthreads();            // for all, and all are through with the group before
        copy(group + STAGES - 1);
        const uint stage = stages_at + group % STAGES * STAGE_BYTES;

        float scales[2][2], biases[2][2];
        uint left[2][4][4];  // of four products
#pragma unroll
        for (uint m = 0; m < 2; m++) {
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                const float half = m == 0 ? float(1 << (BITS - 1)) : float(1 << (OTHER_BITS - 1));
                scales[m][i] = first_bf16(scale_bits[m][i]);
                biases[m][i] = fmaf(half, scales[m][i], first_bf16(bias_bits[m][i]));
                uint pairs[8];
                const uint at = stage + weights_from + (16 * m + 8 * i) * WEIGHT_BYTES;
                if (m == 0) unpack16<BITS>(at + part * 2 * BITS, pairs);
                else unpack16<OTHER_BITS>(at + part * 2 * OTHER_BITS, pairs);
#pragma unroll
                for (uint k = 0; k < 4; k++) left[m][k][i] = pairs[2 * k], left[m][k][i + 2] = pairs[2 * k + 1];
            }
        }
        if (group + 1 < GROUPS) {
            load_factors(group + 1);
            sum_x(group + 1);
        }
#pragma unroll
        for (uint part_of_rows = 0; part_of_rows < 2; part_of_rows++) {
            if (part_of_rows * TILE_ROWS / 2 >= rows) break;
            float products[2][4][4] = {};
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                uint x[8];
                load_x(x, stage, 4 * part_of_rows + n);
#pragma unroll
                for (uint k = 0; k < 4; k++) {
#pragma unroll
                    for (uint m = 0; m < 2; m++) mma(products[m][n], left[m][k], x[2 * k], x[2 * k + 1]);
                }
            }
#pragma unroll
            for (uint n = 0; n < 4; n++) {
                const uint tile_n = 4 * part_of_rows + n;
                uint x_sums[2];
                load_shared(x_sums, x_sums_at + (group % 2 * TILE_ROWS + 8 * tile_n + 2 * part) * 4);
#pragma unroll
                for (uint m = 0; m < 2; m++) {
#pragma unroll
                    for (uint e = 0; e < 4; e++) {
                        float& sum = sums.of[m][tile_n][e];
                        sum = fmaf(biases[m][e / 2], __uint_as_float(x_sums[e % 2]), sum);
                        sum = fmaf(scales[m][e / 2], products[m][n][e], sum);
                    }
                }
            }
        }
    }
}

// Calls `store(m, i, row, sum)` for each of this thread's sums: of row i of its warp's rows of matrix m, and of the tile's
// row of activations. Those beyond `rows` are left out.
template <typename Store> inline void for_each(const Sums& sums, uint rows, const Store& store) {
    const uint lane = threadIdx.x % 32;
#pragma unroll
    for (uint n = 0; n < TILE_ROWS / 8; n++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) {
            const uint row = 8 * n + lane % 4 * 2 + e % 2;
            if (row >= rows) continue;
#pragma unroll
            for (uint m = 0; m < 2; m++) store(m, lane / 4 + e / 2 * 8, row, sums.of[m][n][e]);
        }
    }
}

// Stores silu(gate) * up of a tile whose matrices are gate and up, of columns first_column .. of `columns`.
inline void store_swiglu(bf16* out, uint columns, uint first_column, uint rows, const Sums& sums) {
    const uint lane = threadIdx.x % 32, column = first_column + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (uint n = 0; n < TILE_ROWS / 8; n++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) {
            const uint row = 8 * n + lane % 4 * 2 + e % 2, c = column + e / 2 * 8;
            if (row >= rows || c >= columns) continue;
            out[size_t(row) * columns + c] = float_bf16(silu(sums.of[0][n][e]) * sums.of[1][n][e]);
        }
    }
}
