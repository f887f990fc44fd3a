// The pass of the recurrence over a span's chunks, on tensor cores: the twin of `gated_delta_scan` in gated_delta.metal,
// which has the formulas, over what the twin of `gated_delta_chunks` has left.
//
// A warp has 16 columns of half the state, transposed: [16 columns, 64 keys] in its registers. So all that is computed, the
// state, U and O, has columns as the rows of its products, and each result is the left side of the next product as it
// stands. The two warps of 16 columns exchange what their keys give to U and O, once a chunk: half the columns for each
// warp would leave products half empty, and one warp for all keys half the tensor cores idle. Four warps share what they
// multiply with, one chunk in shared memory while the next is on its way.
//
// States, U and W are f32 and split into two values of bf16 each in products; q and k are bf16.
#include "gated_delta.cuh"
#include "layout.cuh"

constexpr uint COLUMN_BLOCKS = 2, KEY_HALVES = 2;  // of a block of threads, a warp each
constexpr uint THREADS = 32 * COLUMN_BLOCKS * KEY_HALVES;
constexpr uint HALF_TILES = DELTA_DIM / 8 / KEY_HALVES, HALF_BLOCKS = KEY_BLOCKS / KEY_HALVES;

// What a chunk's products need.
struct Stage {
    uint4 minus_w[FACTOR_QUADS];
    uint4 q[CHUNK * ROW_CHUNKS], k[CHUNK * ROW_CHUNKS];
    float4 u0[COLUMN_BLOCKS * ROW_TILES * 32];
    uint2 attention[TRIANGLE * 32];
    float decays[2][CHUNK];
};

// What a warp's keys give to U, and to the half of O that the other warp of its columns completes.
struct Partial {
    float4 u[ROW_TILES][32], o[ROW_TILES / 2][32];
};

struct Shared {
    Stage stages[2];
    Partial partials[COLUMN_BLOCKS][KEY_HALVES];
};
static_assert(sizeof(Shared) == SHARED, "this chunk and the next, and what warps exchange");

inline float4 quad(const float (&x)[4]) { return make_float4(x[0], x[1], x[2], x[3]); }
inline void add(float (&sums)[4], float4 x) {
    sums[0] += x.x;
    sums[1] += x.y;
    sums[2] += x.z;
    sums[3] += x.w;
}

template <class T, uint N> inline void copy_all(T (&to)[N], const void* from) {
    static_assert(sizeof(to) % 16 == 0, "whole words");
#pragma unroll 8
    for (uint i = threadIdx.x; i < sizeof(to) / 16; i += THREADS) {
        copy_async(shared_address(to) + i * 16, static_cast<const uint4*>(from) + i);
    }
}

struct Params {
    uint chunks;
};

// Grid [4 groups of 32 columns, value heads, spans]. states f32 [slots, value heads, 128, 128]; out bf16 [rows, value heads
// * 128].
extern "C" __global__ void __launch_bounds__(THREADS, 1) ENTRY(
    const uint4* q, const uint4* k, const Chunk* chunks, const Span* spans, const uint4* minus_w, const float4* u0,
    const uint2* attention, const float* decays, float* states, uint* out, const __grid_constant__ Params p) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 dynamic[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic);
    const uint head = blockIdx.y, key_head = key_head_of(head);
    const Span span = spans[blockIdx.z];
    const uint span_end = span.first_row + span.rows;
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint row = lane / 4, pair = lane % 4 * 2;  // of a lane's part of products
    const uint own_columns = warp % COLUMN_BLOCKS, half = warp / COLUMN_BLOCKS;
    const uint column_block = blockIdx.x * COLUMN_BLOCKS + own_columns;
    Partial& partial = shared.partials[own_columns][half];
    const Partial& other = shared.partials[own_columns][1 - half];

    // The span's first chunk.
    uint chunk = 0;
    for (uint end = p.chunks; chunk < end;) {
        const uint middle = (chunk + end) / 2;
        if (chunks[middle].first_row < span.first_row) chunk = middle + 1;
        else end = middle;
    }
    const auto copy = [&](uint chunk, uint first_row, uint rows) {
        Stage& stage = shared.stages[chunk % 2];
        const size_t item = size_t(chunk) * VALUE_HEADS + head;
        copy_rows<THREADS>(shared_address(stage.q), q, KEY_HEADS, key_head, first_row, rows);
        copy_rows<THREADS>(shared_address(stage.k), k, KEY_HEADS, key_head, first_row, rows);
        copy_all(stage.minus_w, minus_w + item * FACTOR_QUADS);
        copy_all(stage.u0, u0 + item * FACTOR_QUADS + blockIdx.x * COLUMN_BLOCKS * ROW_TILES * 32);
        copy_all(stage.attention, attention + item * TRIANGLE * 32);
        copy_all(stage.decays, decays + item * 2 * CHUNK);
        copies_end();
    };
    // Of the chunk at hand and of the next; none has 0 rows. Read a chunk ahead, as nothing else hides it.
    uint first_row = span.first_row, rows = chunks[chunk].rows;
    copy(chunk, first_row, rows);
    const auto rows_of = [&](uint chunk, uint first_row) {
        return chunk < p.chunks && first_row < span_end ? chunks[chunk].rows : 0;
    };
    uint next_rows = rows_of(chunk + 1, first_row + rows);

    // Tile t has keys 8 t ..= 8 t + 7 of the half.
    const uint first_key = half * (DELTA_DIM / KEY_HALVES);
    const size_t state_at = (size_t(head) * DELTA_DIM + first_key + pair) * DELTA_DIM + column_block * 16 + row;
    const size_t slot_length = size_t(VALUE_HEADS) * DELTA_DIM * DELTA_DIM;
    float state[HALF_TILES][4];
    const float* before = states + span.slot_in * slot_length + state_at;
#pragma unroll
    for (uint t = 0; t < HALF_TILES; t++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) state[t][e] = before[(8 * t + e % 2) * DELTA_DIM + e / 2 * 8];
    }

    // What a lane names to ldmatrix: of q a row of 8 and one of two chunks, of k a row of 16.
    const uint q_row = (lane / 16 * 8 + lane % 8) * ROW_CHUNKS * 16, q_half = lane / 8 % 2;
    const uint k_row = lane % 16 * ROW_CHUNKS * 16, k_half = lane / 16;
    while (rows != 0) {
        copies_wait<0>();
        __syncthreads();  // the chunk is there, and all are through with the one before
        const uint next_row = first_row + rows;
        uint after_next = 0;
        if (next_rows != 0) {
            copy(chunk + 1, next_row, next_rows);
            after_next = rows_of(chunk + 2, next_row + next_rows);
        }
        const Stage& stage = shared.stages[chunk % 2];
        const uint q_at = shared_address(stage.q) + q_row, k_at = shared_address(stage.k) + k_row;

        // U = U0 - W S, and Q S: what the warp's keys give.
        float u[ROW_TILES][4] = {}, o[ROW_TILES][4] = {};
        if (half == 0) {
#pragma unroll
            for (uint i = 0; i < ROW_TILES; i++) add(u[i], stage.u0[(own_columns * ROW_TILES + i) * 32 + lane]);
        }
#pragma unroll
        for (uint t = 0; t < HALF_BLOCKS; t++) {
            const uint block = half * HALF_BLOCKS + t;
            uint high[4], low[4], right[4];
            split_left(state[2 * t], state[2 * t + 1], high, low);
#pragma unroll
            for (uint i = 0; i < ROW_TILES; i++) {
                const uint4 w = stage.minus_w[(i * KEY_BLOCKS + block) * 32 + lane];
                mma_split(u[i], high, low, w.x, w.y, w.z, w.w);
            }
#pragma unroll
            for (uint i = 0; i < ROW_BLOCKS; i++) {
                ldmatrix(right, q_at + i * 16 * ROW_CHUNKS * 16 + ((2 * block + q_half) ^ lane % 8) * 16);
                mma(o[2 * i], high, right[0], right[1]);
                mma(o[2 * i + 1], high, right[2], right[3]);
                mma(o[2 * i], low, right[0], right[1]);
                mma(o[2 * i + 1], low, right[2], right[3]);
            }
        }
        // The first half completes the even tiles of O's rows, the second the odd ones: as much work, as A is triangular.
        float own_o[ROW_TILES / 2][4];
#pragma unroll
        for (uint i = 0; i < ROW_TILES; i++) partial.u[i][lane] = quad(u[i]);
#pragma unroll
        for (uint i = 0; i < ROW_TILES / 2; i++) {
            partial.o[i][lane] = half == 0 ? quad(o[2 * i + 1]) : quad(o[2 * i]);
#pragma unroll
            for (uint e = 0; e < 4; e++) own_o[i][e] = half == 0 ? o[2 * i][e] : o[2 * i + 1][e];
        }
        __syncthreads();
        // A sum of two is the same bits in either warp.
#pragma unroll
        for (uint i = 0; i < ROW_TILES; i++) add(u[i], other.u[i][lane]);
#pragma unroll
        for (uint i = 0; i < ROW_TILES / 2; i++) add(own_o[i], other.o[i][lane]);

        // O = e^G Q S + A U
#pragma unroll
        for (uint i = 0; i < ROW_TILES / 2; i++) {
            const float* decays = &stage.decays[0][8 * (2 * i + half) + pair];
#pragma unroll
            for (uint e = 0; e < 4; e++) own_o[i][e] *= decays[e % 2];
        }
#pragma unroll
        for (uint j = 0; j < ROW_BLOCKS; j++) {
            uint high[4], low[4];
            split_left(u[2 * j], u[2 * j + 1], high, low);
#pragma unroll
            for (uint i = j; i < ROW_TILES / 2; i++) {
                const uint tile = 2 * i + half;
                const uint2 right0 = stage.attention[triangle_index(tile, 2 * j) * 32 + lane];
                uint2 right1 = make_uint2(0, 0);
                if (tile > 2 * j) right1 = stage.attention[triangle_index(tile, 2 * j + 1) * 32 + lane];
                mma_split(own_o[i], high, low, right0.x, right1.x, right0.y, right1.y);
            }
        }
#pragma unroll
        for (uint i = 0; i < ROW_TILES / 2; i++) {
            const uint first = transposed(bf16_pair(own_o[i][0], own_o[i][1]));
            const uint second = transposed(bf16_pair(own_o[i][2], own_o[i][3]));
            const uint index = 8 * (2 * i + half) + row;
            if (index < rows) {
                const size_t value_head = size_t(first_row + index) * VALUE_HEADS + head;
                uint* results = out + value_head * (DELTA_DIM / 2) + column_block * 8 + pair / 2;
                results[0] = first;
                results[4] = second;
            }
        }

        // S' = e^(G_last) S + K^T (e^(G_last - G) U)
        const float decay = stage.decays[0][CHUNK - 1];
#pragma unroll
        for (uint t = 0; t < HALF_TILES; t++) {
#pragma unroll
            for (uint e = 0; e < 4; e++) state[t][e] *= decay;
        }
#pragma unroll
        for (uint i = 0; i < ROW_TILES; i++) {
            const float rest0 = stage.decays[1][8 * i + pair], rest1 = stage.decays[1][8 * i + pair + 1];
#pragma unroll
            for (uint e = 0; e < 4; e++) u[i][e] *= e % 2 == 0 ? rest0 : rest1;
        }
#pragma unroll
        for (uint j = 0; j < ROW_BLOCKS; j++) {
            uint high[4], low[4], right[4];
            split_left(u[2 * j], u[2 * j + 1], high, low);
#pragma unroll
            for (uint t = 0; t < HALF_BLOCKS; t++) {
                const uint block = half * HALF_BLOCKS + t;
                ldmatrix_transposed(right, k_at + j * 16 * ROW_CHUNKS * 16 + ((2 * block + k_half) ^ lane % 8) * 16);
                mma(state[2 * t], high, right[0], right[1]);
                mma(state[2 * t + 1], high, right[2], right[3]);
                mma(state[2 * t], low, right[0], right[1]);
                mma(state[2 * t + 1], low, right[2], right[3]);
            }
        }
        chunk += 1;
        first_row = next_row;
        rows = next_rows;
        next_rows = after_next;
    }

    float* after = states + span.slot_out * slot_length + state_at;
#pragma unroll
    for (uint t = 0; t < HALF_TILES; t++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) after[(8 * t + e % 2) * DELTA_DIM + e / 2 * 8] = state[t][e];
    }
}
LAYOUT_OF(ENTRY);
