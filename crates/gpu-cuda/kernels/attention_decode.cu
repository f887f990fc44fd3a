// Attention of few rows over a block of positions on tensor cores: the twin of attention_decode.metal's attention_decode,
// which says what it computes and what a block is.
//
// A warp takes every fourth 16 positions of the block, with the query heads as the eight columns of its products, and has a
// maximum, sums of weights and sums of values of its own, so that warps wait for each other only at the end. Its keys and
// values are copied two steps ahead: so many bytes are under way, and that is what a long context needs.
//
// Queries are split into three values of bf16, which keep all of an f32 (two would be the largest error by far), and weights
// into two. A row's result is the same whatever other rows there are.
#include "layout.cuh"
#include "mma.cuh"
#include "shape.cuh"

constexpr uint WARPS = 4, THREADS = 32 * WARPS;
constexpr uint STEP = 16;                                // positions that a warp takes at a time
constexpr uint STAGES = 3;                               // steps that are in shared memory or on their way
constexpr uint TILE = 128, BLOCKS_MAX = 128;             // positions, and most blocks of a row, as the Metal kernel has them
constexpr uint GROUP = HEADS / KV_HEADS;                 // query heads that share keys
constexpr uint PARTS = (GROUP + 7) / 8, PART_HEADS = (GROUP + PARTS - 1) / PARTS;
constexpr uint ROW_CHUNKS = HEAD_DIM / 8;                // of 16 bytes
constexpr uint STEP_BYTES = STEP * ROW_CHUNKS * 16;      // keys, or values
static_assert(WARPS * STAGES * 2 * STEP_BYTES == SHARED, "keys and values of each warp's steps");
constexpr float LOWEST = -3.0e38f;                       // below all scores
constexpr float SCALE = 0.0625f;                         // 1 / sqrt(HEAD_DIM)

struct Params { uint blocks; };  // of the grid

// Of lanes that have the same two heads.
inline float max_of_positions(float value) {
#pragma unroll
    for (uint step = 4; step < 32; step *= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}
inline float sum_of_positions(float value) {
#pragma unroll
    for (uint step = 4; step < 32; step *= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// q f32 [rows, heads * 256]; keys, values: the pool, bf16 [pages, kv heads, 64, 256]. Per row, head and block: sums f32
// [256], and stats f32 [2], the greatest score and the sum of weights.
//
// Grid [blocks, kv heads * parts, rows]. The Metal kernel's dispatch, which has 256 threads, has to fit the bounds too.
extern "C" __global__ void __launch_bounds__(256, 1) ENTRY(
    const float* q, const uint4* keys, const uint4* values, const uint* positions, const uint* row_spans,
    const Span* spans, const uint* pages, float* sums, float2* stats, const Params p) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 shared[];
    __shared__ float2 stats_of[WARPS][8];
    const uint block = blockIdx.x, row = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint end = positions[row] + 1, tiles = (end - 1) / TILE + 1;
    const uint block_positions = (tiles + BLOCKS_MAX - 1) / BLOCKS_MAX * TILE;
    const uint block_first = block * block_positions, block_end = min(block_first + block_positions, end);
    if (block_first >= end) return;
    const uint kv_head = blockIdx.y / PARTS, first_head = blockIdx.y % PARTS * PART_HEADS;  // of those that share keys
    const uint heads = min(PART_HEADS, GROUP - first_head);
    const size_t head = size_t(row) * HEADS + kv_head * GROUP + first_head;
    const uint* row_pages = pages + spans[row_spans[row]].first_page;
    const uint ring = shared_address(shared) + warp * STAGES * 2 * STEP_BYTES;

    // Chunk c of a row of keys or values goes to place c ^ (row % 8), so that any 8 rows' chunks of one index lie in
    // different banks. Behind the last position nothing is defined: zeros take its place.
    const auto copy = [&](uint first, uint stage) {
        if (first < block_end) {
            const size_t from = (size_t(row_pages[first / PAGE_TOKENS]) * KV_HEADS + kv_head) * PAGE_TOKENS + first % PAGE_TOKENS;
            const uint to = ring + stage * 2 * STEP_BYTES;
#pragma unroll
            for (uint i = 0; i < STEP; i++) {
                const uint place = to + (i * ROW_CHUNKS + (lane ^ i % 8)) * 16;
                const size_t at = (from + i) * ROW_CHUNKS + lane;
                const bool exists = first + i < block_end;
                copy_async(place, keys + at, exists);
                copy_async(place + STEP_BYTES, values + at, exists);
            }
        }
        copies_end();
    };
    uint next = block_first + warp * STEP, next_stage = 0;
    const auto copy_next = [&] {
        copy(next, next_stage);
        next += WARPS * STEP;
        next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
    };
#pragma unroll
    for (uint i = 0; i < STAGES - 1; i++) copy_next();

    // The right side of scores: head `lane / 4`, zeros where there is none.
    uint q_parts[HEAD_DIM / 16][3][2];
#pragma unroll
    for (uint k = 0; k < HEAD_DIM / 16; k++) {
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            float2 two = make_float2(0.0f, 0.0f);
            if (lane / 4 < heads) {
                two = *reinterpret_cast<const float2*>(q + (head + lane / 4) * HEAD_DIM + 16 * k + 8 * i + lane % 4 * 2);
            }
            const uint high = q_parts[k][0][i] = bf16_pair(two.x, two.y);
            split(two.x - first_bf16(high), two.y - second_bf16(high), q_parts[k][1][i], q_parts[k][2][i]);
        }
    }

    // Of this lane's two heads, 2 * (lane % 4) and the next.
    float greatest[2] = {LOWEST, LOWEST}, total[2] = {};
    // Of dimensions 16 d .. 16 d + 15 by heads.
    float sum[HEAD_DIM / 16][4] = {};
    const uint key_row = lane % 16, value_row = lane % 8 + lane / 16 * 8;
    uint stage = 0;
    for (uint first = block_first + warp * STEP; first < block_end; first += WARPS * STEP) {
        copies_wait<STAGES - 2>();
        __syncwarp();  // all lanes' copies are there, and all are through with the step before
        copy_next();
        const uint keys_at = ring + stage * 2 * STEP_BYTES, values_at = keys_at + STEP_BYTES;
        stage = stage + 1 == STAGES ? 0 : stage + 1;

        float products[3][4] = {};
#pragma unroll
        for (uint k = 0; k < HEAD_DIM / 16; k++) {
            uint left[4];
            ldmatrix(left, keys_at + (key_row * ROW_CHUNKS + (2 * k + lane / 16 ^ key_row % 8)) * 16);
#pragma unroll
            for (uint i = 0; i < 3; i++) mma(products[i], left, q_parts[k][i][0], q_parts[k][i][1]);
        }
        float weights[4];  // as sums lie: of positions lane / 4 and 8 behind it
#pragma unroll
        for (uint e = 0; e < 4; e++) {
            const float score = ((products[2][e] + products[1][e]) + products[0][e]) * SCALE;
            weights[e] = first + lane / 4 + e / 2 * 8 < block_end ? score : LOWEST;
        }
        float factors[2];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            const float before = greatest[i];
            greatest[i] = fmaxf(before, max_of_positions(fmaxf(weights[i], weights[i + 2])));
            factors[i] = expf(before - greatest[i]);
            weights[i] = expf(weights[i] - greatest[i]);
            weights[i + 2] = expf(weights[i + 2] - greatest[i]);
            total[i] = fmaf(total[i], factors[i], weights[i] + weights[i + 2]);
        }
        uint right_high[2], right_low[2];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            split(weights[2 * i], weights[2 * i + 1], right_high[i], right_low[i]);
            right_high[i] = transposed(right_high[i]), right_low[i] = transposed(right_low[i]);
        }
#pragma unroll
        for (uint d = 0; d < HEAD_DIM / 16; d++) {
            uint left[4];
            ldmatrix_transposed(left, values_at + (value_row * ROW_CHUNKS + (2 * d + lane / 8 % 2 ^ value_row % 8)) * 16);
#pragma unroll
            for (uint e = 0; e < 4; e++) sum[d][e] *= factors[e % 2];
            mma(sum[d], left, right_low[0], right_low[1]);
            mma(sum[d], left, right_high[0], right_high[1]);
        }
    }
    copies_wait<0>();
    __syncwarp();

    // Joins the warps, each of which leaves sums [head, dimension] where its keys were.
    float* const own = reinterpret_cast<float*>(shared) + warp * (STAGES * 2 * STEP_BYTES / 4);
#pragma unroll
    for (uint i = 0; i < 2; i++) total[i] = sum_of_positions(total[i]);
    if (lane < 4) {
        stats_of[warp][2 * lane] = make_float2(greatest[0], total[0]);
        stats_of[warp][2 * lane + 1] = make_float2(greatest[1], total[1]);
    }
#pragma unroll
    for (uint d = 0; d < HEAD_DIM / 16; d++) {
#pragma unroll
        for (uint e = 0; e < 4; e++) {
            own[(lane % 4 * 2 + e % 2) * HEAD_DIM + 16 * d + lane / 4 + e / 2 * 8] = sum[d][e];
        }
    }
    __syncthreads();
    for (uint h = 0; h < heads; h++) {
        float all_greatest = LOWEST;
#pragma unroll
        for (uint w = 0; w < WARPS; w++) all_greatest = fmaxf(all_greatest, stats_of[w][h].x);
        float all_total = 0.0f;
        float2 all = make_float2(0.0f, 0.0f);
#pragma unroll
        for (uint w = 0; w < WARPS; w++) {
            const float factor = expf(stats_of[w][h].x - all_greatest);
            const float* from = reinterpret_cast<const float*>(shared) + w * (STAGES * 2 * STEP_BYTES / 4) + h * HEAD_DIM;
            const float2 two = *reinterpret_cast<const float2*>(from + 2 * threadIdx.x);
            all_total = fmaf(factor, stats_of[w][h].y, all_total);
            all.x = fmaf(factor, two.x, all.x), all.y = fmaf(factor, two.y, all.y);
        }
        const size_t item = (head + h) * p.blocks + block;
        *reinterpret_cast<float2*>(sums + item * HEAD_DIM + 2 * threadIdx.x) = all;
        if (threadIdx.x == 0) stats[item] = make_float2(all_greatest, all_total);
    }
}
LAYOUT_OF(ENTRY);
