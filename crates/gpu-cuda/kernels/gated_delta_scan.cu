// The pass of the recurrence over a span's chunks, on tensor cores: the twin of `gated_delta_scan` in gated_delta.metal,
// which has the formulas, over what the twin of `gated_delta_chunks` has left.
//
// A warp has 16 columns of the state, transposed: [16 columns, 128 keys] in its registers. So all that is computed, the
// state, U and O, has columns as the rows of its products, and each result is the left side of the next product as it
// stands: warps exchange nothing, and no barrier but that of copies stands in the serial loop. Two warps share what they
// multiply with, one chunk in shared memory while the next is on its way.
//
// States, U and W are f32 and split into two values of bf16 each in products; q and k are bf16.
#include "gated_delta.cuh"
#include "layout.cuh"

constexpr uint WARPS = 2, THREADS = 32 * WARPS;
constexpr uint KEY_TILES = DELTA_DIM / 8;

// What a chunk's products need.
struct Stage {
    uint4 minus_w[FACTOR_QUADS];
    uint4 q[CHUNK * ROW_CHUNKS], k[CHUNK * ROW_CHUNKS];
    float4 u0[WARPS * ROW_TILES * 32];
    uint2 attention[TRIANGLE * 32];
    float decays[2][CHUNK];
};
static_assert(2 * sizeof(Stage) == SHARED, "this chunk and the next");

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
    extern __shared__ uint4 dynamic[];
    Stage* stages = reinterpret_cast<Stage*>(dynamic);
    const uint head = blockIdx.y, key_head = key_head_of(head);
    const Span span = spans[blockIdx.z];
    const uint span_end = span.first_row + span.rows;
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint row = lane / 4, pair = lane % 4 * 2;  // of a lane's part of products
    const uint column_block = blockIdx.x * WARPS + warp;

    // The span's first chunk.
    uint chunk = 0;
    for (uint end = p.chunks; chunk < end;) {
        const uint middle = (chunk + end) / 2;
        if (chunks[middle].first_row < span.first_row) chunk = middle + 1;
        else end = middle;
    }
    const auto copy = [&](uint chunk, uint first_row, uint rows) {
        Stage& stage = stages[chunk % 2];
        const size_t item = size_t(chunk) * VALUE_HEADS + head;
        copy_rows<THREADS>(shared_address(stage.q), q, KEY_HEADS, key_head, first_row, rows);
        copy_rows<THREADS>(shared_address(stage.k), k, KEY_HEADS, key_head, first_row, rows);
        copy_all(stage.minus_w, minus_w + item * FACTOR_QUADS);
        copy_all(stage.u0, u0 + item * FACTOR_QUADS + blockIdx.x * WARPS * ROW_TILES * 32);
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

    // Tile t has keys 8 t ..= 8 t + 7.
    const size_t state_at = (size_t(head) * DELTA_DIM + pair) * DELTA_DIM + column_block * 16 + row;
    const size_t slot_length = size_t(VALUE_HEADS) * DELTA_DIM * DELTA_DIM;
    float state[KEY_TILES][4];
    const float* before = states + span.slot_in * slot_length + state_at;
#pragma unroll
    for (uint t = 0; t < KEY_TILES; t++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) state[t][e] = before[(8 * t + e % 2) * DELTA_DIM + e / 2 * 8];
    }

    // What a lane names to ldmatrix: of q a row of 8 and one of two chunks, of k a row of 16.
    const uint q_row = (lane / 16 * 8 + lane % 8) * ROW_CHUNKS * 16, q_half = lane / 8 % 2;
    const uint k_row = lane % 16 * ROW_CHUNKS * 16, k_half = lane / 16;
    while (rows != 0) {
        copies_wait<0>();
        __syncthreads();  // the chunk is there, and both warps are through with the one before
        const uint next_row = first_row + rows;
        uint after_next = 0;
        if (next_rows != 0) {
            copy(chunk + 1, next_row, next_rows);
            after_next = rows_of(chunk + 2, next_row + next_rows);
        }
        const Stage& stage = stages[chunk % 2];
        const uint q_at = shared_address(stage.q) + q_row, k_at = shared_address(stage.k) + k_row;

        // U = U0 - W S, and Q S
        float u[ROW_TILES][4], o[ROW_TILES][4] = {};
#pragma unroll
        for (uint i = 0; i < ROW_TILES; i++) {
            const float4 start = stage.u0[(warp * ROW_TILES + i) * 32 + lane];
            u[i][0] = start.x;
            u[i][1] = start.y;
            u[i][2] = start.z;
            u[i][3] = start.w;
        }
#pragma unroll
        for (uint t = 0; t < KEY_BLOCKS; t++) {
            uint high[4], low[4], right[4];
            split_left(state[2 * t], state[2 * t + 1], high, low);
#pragma unroll
            for (uint i = 0; i < ROW_TILES; i++) {
                const uint4 w = stage.minus_w[(i * KEY_BLOCKS + t) * 32 + lane];
                mma_split(u[i], high, low, w.x, w.y, w.z, w.w);
            }
#pragma unroll
            for (uint i = 0; i < ROW_BLOCKS; i++) {
                ldmatrix(right, q_at + i * 16 * ROW_CHUNKS * 16 + ((2 * t + q_half) ^ lane % 8) * 16);
                mma(o[2 * i], high, right[0], right[1]);
                mma(o[2 * i + 1], high, right[2], right[3]);
                mma(o[2 * i], low, right[0], right[1]);
                mma(o[2 * i + 1], low, right[2], right[3]);
            }
        }

        // O = e^G Q S + A U
#pragma unroll
        for (uint i = 0; i < ROW_TILES; i++) {
            const float decay0 = stage.decays[0][8 * i + pair], decay1 = stage.decays[0][8 * i + pair + 1];
#pragma unroll
            for (uint e = 0; e < 4; e++) o[i][e] *= e % 2 == 0 ? decay0 : decay1;
        }
#pragma unroll
        for (uint j = 0; j < ROW_BLOCKS; j++) {
            uint high[4], low[4];
            split_left(u[2 * j], u[2 * j + 1], high, low);
#pragma unroll
            for (uint i = 2 * j; i < ROW_TILES; i++) {
                const uint2 right0 = stage.attention[triangle_index(i, 2 * j) * 32 + lane];
                uint2 right1 = make_uint2(0, 0);
                if (i > 2 * j) right1 = stage.attention[triangle_index(i, 2 * j + 1) * 32 + lane];
                mma_split(o[i], high, low, right0.x, right1.x, right0.y, right1.y);
            }
        }
#pragma unroll
        for (uint i = 0; i < ROW_TILES; i++) {
            const uint first = transposed(bf16_pair(o[i][0], o[i][1])), second = transposed(bf16_pair(o[i][2], o[i][3]));
            if (8 * i + row < rows) {
                const size_t value_head = size_t(first_row + 8 * i + row) * VALUE_HEADS + head;
                uint* results = out + value_head * (DELTA_DIM / 2) + column_block * 8 + pair / 2;
                results[0] = first;
                results[4] = second;
            }
        }

        // S' = e^(G_last) S + K^T (e^(G_last - G) U)
        const float decay = stage.decays[0][CHUNK - 1];
#pragma unroll
        for (uint t = 0; t < KEY_TILES; t++) {
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
            for (uint t = 0; t < KEY_BLOCKS; t++) {
                ldmatrix_transposed(right, k_at + j * 16 * ROW_CHUNKS * 16 + ((2 * t + k_half) ^ lane % 8) * 16);
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
    for (uint t = 0; t < KEY_TILES; t++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) after[(8 * t + e % 2) * DELTA_DIM + e / 2 * 8] = state[t][e];
    }
}
LAYOUT_OF(ENTRY);
