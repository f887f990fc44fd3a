// Products of few rows with 4- and 8-bit matrices on tensor cores: what a block of eight warps computes.
//
// A tile is 16 rows of weights, the left side of products. Each warp has a slice along the input of all tiles of its
// block, and loads its weights before the input is even known: so many bytes are under way, and that is what keeps this
// chip's memory busy. The input's rows are the right side, each as three columns, values of bf16 whose sum is the f32. A
// weight is scale * q + bias with q an integer. The integer, less half its range, is exact in bf16 and so are its products,
// so nothing is rounded before it is summed in f32:
//
//     y = sum over groups of  scale * (sum of q x)  +  bias * (sum of x)
//
// with the bias of the integer less half its range; the sums of x are a product with ones. The warps' sums and then the
// three columns are added at the end. No column depends on others, so that a row's results are the same bits whatever the
// number of rows.
//
// In a group, lane l of a product takes weights 16 (l % 4) .. + 15 of its row, in pairs of values whose places differ by 4,
// and the same of the input: which index of a product an input has does not matter as long as both sides agree.
#pragma once

#include "layout.cuh"
#include "mma.cuh"
#include "quantized.cuh"
#include "shape.cuh"
#include "sigmoid.cuh"

// The rows that an entry point takes: the last digit of its name.
#define NAME_OF(entry) #entry
#define DIGIT_OF(name) (name[sizeof(name) - 2] - '0')
#define ROWS_OF(entry) DIGIT_OF(NAME_OF(entry))

constexpr uint WARPS = 8, THREADS = 32 * WARPS;
constexpr uint GROUPS = IN_DIM / GROUP;
constexpr uint SLICE = ((GROUPS + WARPS - 1) / WARPS + 1) / 2 * 2;  // groups of a warp: an even number, as heads have two
constexpr uint LARGER_BITS = BITS > OTHER_BITS ? BITS : OTHER_BITS;
constexpr uint TILES = SLICE * LARGER_BITS <= 16 ? MOST_TILES : 1;  // of a block
constexpr uint BLOCKS = ROWS == 1 && TILES * SLICE * LARGER_BITS <= 16 ? 3 : 2;  // that share a multiprocessor's registers
constexpr uint TILE_ROWS = 16;
constexpr uint PARTS = 3, COLUMNS = PARTS * ROWS;                    // values of bf16 of an input; columns of all rows
constexpr uint COLUMN_TILES = (COLUMNS + 7) / 8;
#ifndef MOST_GROUPS
#define MOST_GROUPS (ROWS == 1 ? 4 : 2)
#endif
constexpr uint CHUNK = MOST_GROUPS;                                  // groups of the input that a warp holds at a time
constexpr uint EIGHTS = GROUP / 8;                                   // of a group: what a lane brings to shared memory
constexpr uint HELD = ROWS * CHUNK * EIGHTS / 32;                    // eights of a lane
constexpr uint CHUNK_BYTES = CHUNK * COLUMNS * EIGHTS * 16;
constexpr uint SUMS = TILES * TILE_ROWS * COLUMNS;                   // of a warp
static_assert(WARPS * (CHUNK_BYTES + (SUMS + ROWS) * 4) == SHARED, "input, sums and sums of squares of all warps");
constexpr uint NORM_RMS = 1, NORM_GATED = 2;
constexpr uint HALF_WARP = 16;                                       // lanes that have 128 values

// 8 or 16 bytes from global memory.
inline void load_global(uint (&words)[2], const uint* from) {
    const uint2 loaded = *reinterpret_cast<const uint2*>(from);
    words[0] = loaded.x, words[1] = loaded.y;
}
inline void load_global(uint (&words)[4], const uint* from) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(from);
    words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
}
// Eight floats, or zeros: `from` is then not read.
inline void load_floats(float (&values)[8], const float* from, bool exists) {
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        const float4 loaded = exists ? reinterpret_cast<const float4*>(from)[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        values[4 * i] = loaded.x, values[4 * i + 1] = loaded.y, values[4 * i + 2] = loaded.z, values[4 * i + 3] = loaded.w;
    }
}

inline float silu(float x) { return x * sigmoid(x); }

struct Input {
    const float* x;
    const float* scale;
    const float* z;
    const uint* selection;  // or null: which rows
    uint first_row;
    uint rows;              // of all
    float eps;
};

struct Matrix {
    const uint* packed;
    const bf16* scales;
    const bf16* biases;
};

// The scales or biases of a warp's groups, in pairs.
struct Factors {
    uint pairs[SLICE / 2];

    inline void load(const bf16* row, uint first_group) {
#pragma unroll
        for (uint i = 0; i < SLICE / 2; i++) {
            const uint group = first_group + 2 * i;
            if (GROUPS % 2 == 0) {
                pairs[i] = group < GROUPS ? *reinterpret_cast<const uint*>(row + group) : 0;
            } else {
                pairs[i] = (group < GROUPS ? row[group] : 0) | (group + 1 < GROUPS ? row[group + 1] : 0) << 16;
            }
        }
    }
    inline float of(uint s) const { return s % 2 == 0 ? first_bf16(pairs[s / 2]) : second_bf16(pairs[s / 2]); }
};

// What a lane needs of a row of weights: 16 of each of its warp's groups.
template <uint B> struct Row {
    uint words[SLICE][B / 2];
    Factors scales, biases;

    inline void load(const Matrix& from, size_t row, uint first_group) {
        const uint* packed = from.packed + row * (GROUPS * GROUP * B / 32) + threadIdx.x % 4 * (B / 2);
#pragma unroll
        for (uint s = 0; s < SLICE; s++) {
            const uint group = first_group + s;
            if (group < GROUPS) {
                load_global(words[s], packed + group * (GROUP * B / 32));
            } else {
#pragma unroll
                for (uint i = 0; i < B / 2; i++) words[s][i] = 0;
            }
        }
        scales.load(from.scales + row * GROUPS, first_group);
        biases.load(from.biases + row * GROUPS, first_group);
    }
};

// Rows `lane / 4` and 8 behind it of each tile.
struct Weights {
    Row<BITS> low[TILES];
    Row<OTHER_BITS> high[TILES];
};

// The first group of this thread's warp.
inline uint own_groups() { return threadIdx.x / 32 * SLICE; }

// A lane's part of the rows of an input.
struct Values {
    float of[HELD][8];

    // Values of `CHUNK` groups from `first_group` on, with the norm's factors, zeros behind the warp's last group. Adds to
    // each row's sum of squares, of which a lane has that of the rows it holds.
    inline void load(const Input& in, uint first_group, float (&squares)[HELD]) {
        const uint lane = threadIdx.x % 32;
#pragma unroll
        for (uint i = 0; i < HELD; i++) {
            const uint item = lane + 32 * i, row = item / (CHUNK * EIGHTS);
            const uint group = first_group + item / EIGHTS % CHUNK, k = group * GROUP + item % EIGHTS * 8;
            const bool exists = group < min(own_groups() + SLICE, GROUPS);
            const uint r = min(in.first_row + row, in.rows - 1);
            const size_t at = size_t(in.selection != nullptr ? in.selection[r] : r) * IN_DIM + k;
            float (&v)[8] = of[i];
            load_floats(v, in.x + at, exists);
            if (NORM != NORM_RMS && NORM != NORM_GATED) continue;
            float sum = 0.0f;
#pragma unroll
            for (uint j = 0; j < 8; j++) sum = fmaf(v[j], v[j], sum);
#pragma unroll
            for (uint step = HALF_WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            float scale[8];
            load_floats(scale, in.scale + (NORM == NORM_GATED ? k % DELTA_DIM : k), exists);
            if (NORM == NORM_RMS) {
                if (CHUNK * EIGHTS == 32) {
                    squares[i] += __shfl_sync(~0u, sum, 0);
                    squares[i] += __shfl_sync(~0u, sum, HALF_WARP);
                } else {
                    squares[i] += sum;
                }
#pragma unroll
                for (uint j = 0; j < 8; j++) v[j] *= scale[j];
            } else {
                const float factor = 1.0f / sqrtf(sum / DELTA_DIM + in.eps);
                float z[8];
                load_floats(z, in.z + at, exists);
#pragma unroll
                for (uint j = 0; j < 8; j++) v[j] = v[j] * factor * scale[j] * silu(z[j]);
            }
        }
    }

    // To shared memory: as column `PARTS * row + part` of a group eight chunks of 16 bytes, the first and second eight of
    // what lanes with equal l % 4 take. Those of odd columns change places, so that two columns lie in different banks.
    inline void store(uint to) const {
        const uint lane = threadIdx.x % 32;
#pragma unroll
        for (uint i = 0; i < HELD; i++) {
            const uint item = lane + 32 * i, row = item / (CHUNK * EIGHTS), group = item / EIGHTS % CHUNK;
            uint parts[PARTS][4];
#pragma unroll
            for (uint j = 0; j < 4; j++) {
                const float first = of[i][j], second = of[i][j + 4];
                parts[0][j] = bf16_pair(first, second);
                split(first - first_bf16(parts[0][j]), second - second_bf16(parts[0][j]), parts[1][j], parts[2][j]);
            }
#pragma unroll
            for (uint p = 0; p < PARTS; p++) {
                const uint column = PARTS * row + p, chunk = item % EIGHTS ^ column % 2;
                store_shared(to + ((group * COLUMNS + column) * EIGHTS + chunk) * 16, parts[p]);
            }
        }
    }
};

// The products of a block's tiles, in shared memory.
struct Products {
    const float* sums;     // [warps, tiles, 16, columns]
    const float* squares;  // [warps, rows]

    // Of row `m` of a tile's weights and row `r` of the input.
    inline float of(uint tile, uint m, uint r, float eps) const {
        const float* from = sums + (tile * TILE_ROWS + m) * COLUMNS + PARTS * r;
        float sum = 0.0f;
#pragma unroll
        for (uint w = 0; w < WARPS; w++) sum += (from[w * SUMS + 2] + from[w * SUMS + 1]) + from[w * SUMS];
        if (NORM != NORM_RMS) return sum;
        float all = 0.0f;
#pragma unroll
        for (uint w = 0; w < WARPS; w++) all += squares[w * ROWS + r];
        return sum * (1.0f / sqrtf(all / IN_DIM + eps));
    }
};

// What a warp makes of rows: its own part of their products.
struct Multiplier {
    uint chunk_at;
    float* sums_of;
    float* squares_of;
    Values values;
    float squares[HELD];

    inline explicit Multiplier(uint4* shared)
        : chunk_at(shared_address(shared) + threadIdx.x / 32 * CHUNK_BYTES),
          sums_of(reinterpret_cast<float*>(shared + WARPS * CHUNK_BYTES / 16)), squares_of(sums_of + WARPS * SUMS) {}

    // Loads what comes first of `ROWS` rows from the input's first on.
    inline void begin(const Input& in) {
#pragma unroll
        for (uint i = 0; i < HELD; i++) squares[i] = 0.0f;
        values.load(in, own_groups(), squares);
    }

    // Multiplies the rows that were begun with.
    inline void multiply(const Input& in, const Weights& weights);

    // All warps' parts, once all have multiplied.
    inline Products products() const { return {sums_of, squares_of}; }
};

inline void Multiplier::multiply(const Input& in, const Weights& weights) {
    const uint lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_group = own_groups();
    float sums[TILES][COLUMN_TILES][4] = {};
#pragma unroll
    for (uint chunk = 0; chunk < SLICE; chunk += CHUNK) {
        if (chunk > 0) {
            __syncwarp();  // all lanes are through with the chunk before
            values.load(in, first_group + chunk, squares);
        }
        values.store(chunk_at);
        __syncwarp();
#pragma unroll
        for (uint g = 0; g < CHUNK && chunk + g < SLICE; g++) {
            uint right[COLUMN_TILES][8];
            float x_sums[COLUMN_TILES][4] = {};
#pragma unroll
            for (uint n = 0; n < COLUMN_TILES; n++) {
                // Those beyond the last repeat it, and are not stored.
                const uint column = min(8 * n + lane / 4, COLUMNS - 1);
                const uint at = chunk_at + (g * COLUMNS + column) * EIGHTS * 16;
                load_shared(*reinterpret_cast<uint(*)[4]>(right[n]), at + (lane % 4 * 2 ^ column % 2) * 16);
                load_shared(*reinterpret_cast<uint(*)[4]>(right[n] + 4), at + (lane % 4 * 2 + 1 ^ column % 2) * 16);
                const uint ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
                for (uint k = 0; k < 4; k++) mma(x_sums[n], ones, right[n][2 * k], right[n][2 * k + 1]);
            }
#pragma unroll
            for (uint t = 0; t < TILES; t++) {
                uint low[8], high[8];
                unpack16<BITS>(weights.low[t].words[chunk + g], low);
                unpack16<OTHER_BITS>(weights.high[t].words[chunk + g], high);
                const float scales[2] = {weights.low[t].scales.of(chunk + g), weights.high[t].scales.of(chunk + g)};
                const float biases[2] = {
                    fmaf(float(1 << (BITS - 1)), scales[0], weights.low[t].biases.of(chunk + g)),
                    fmaf(float(1 << (OTHER_BITS - 1)), scales[1], weights.high[t].biases.of(chunk + g))};
                float products[COLUMN_TILES][4] = {};
#pragma unroll
                for (uint k = 0; k < 4; k++) {
                    const uint left[4] = {low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]};
#pragma unroll
                    for (uint n = 0; n < COLUMN_TILES; n++) mma(products[n], left, right[n][2 * k], right[n][2 * k + 1]);
                }
#pragma unroll
                for (uint n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
                    for (uint e = 0; e < 4; e++) {
                        const float with_bias = fmaf(biases[e / 2], x_sums[n][e], sums[t][n][e]);
                        sums[t][n][e] = fmaf(scales[e / 2], products[n][e], with_bias);
                    }
                }
            }
        }
    }

#pragma unroll
    for (uint t = 0; t < TILES; t++) {
#pragma unroll
        for (uint n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (uint e = 0; e < 4; e++) {
                const uint column = 8 * n + lane % 4 * 2 + e % 2, m = lane / 4 + e / 2 * 8;
                if (column < COLUMNS) sums_of[warp * SUMS + (t * TILE_ROWS + m) * COLUMNS + column] = sums[t][n][e];
            }
        }
    }
    if (NORM == NORM_RMS) {
#pragma unroll
        for (uint i = 0; i < HELD; i++) {
            const uint item = lane + 32 * i;
            if (item % (CHUNK * EIGHTS) == 0) squares_of[warp * ROWS + item / (CHUNK * EIGHTS)] = squares[i];
        }
    }
}

// Products of `ROWS` rows from the input's first on. `load_weights` loads what this thread needs, before anything of the input
// is there if WEIGHTS_ARE_KNOWN by then.
template <typename Load> inline Products multiply(const Input& in, uint4* shared, const Load& load_weights) {
    start_next();
    Weights weights;
    if (WEIGHTS_ARE_KNOWN) load_weights(weights, own_groups());
    wait_for_previous();
    Multiplier multiplier(shared);
    multiplier.begin(in);
    if (!WEIGHTS_ARE_KNOWN) load_weights(weights, own_groups());
    multiplier.multiply(in, weights);
    __syncthreads();
    return multiplier.products();
}
