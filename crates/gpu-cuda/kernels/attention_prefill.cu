// Attention of the rows of a prefill on tensor cores: the twin of attention_prefill.metal, which says what it computes.
//
// A block has 128 queries, the heads that share keys of as many rows as fit, 16 to a warp, and takes pages of 64 keys from
// position 0 on, one in shared memory while the next is on its way. Scores, weights and sums of values of a warp's queries
// stay in its registers. Scores are products of bf16 as it is stored; a weight is split into two values of bf16, as one of
// 8 bits would be the largest error by far.
//
// A row's result is the same in any tile: no operation of a query depends on others. Keys behind a row have weight 0
// exactly, and a page that has nothing for it leaves its maximum, its sum and its values as they are.
#include "layout.cuh"
#include "mma.cuh"
#include "shape.cuh"
#include "sigmoid.cuh"

constexpr uint WARPS = 8, THREADS = 32 * WARPS;
constexpr uint QUERIES = 16 * WARPS;
constexpr uint GROUP = HEADS / KV_HEADS;
constexpr uint TILE_ROWS = QUERIES / GROUP < PAGE_TOKENS ? QUERIES / GROUP : PAGE_TOKENS;
constexpr uint ROW_CHUNKS = HEAD_DIM / 8;                      // of 16 bytes
constexpr uint QUERY_BYTES = QUERIES * ROW_CHUNKS * 16;
constexpr uint PAGE_BYTES = PAGE_TOKENS * ROW_CHUNKS * 16;     // keys, or values
static_assert(QUERY_BYTES + 4 * PAGE_BYTES == SHARED, "queries, and keys and values of two pages");
constexpr float LOWEST = -3.0e38f;                             // below all scores
constexpr float SCALE = 0.0625f * 1.4426950408889634f;         // 1 / sqrt(HEAD_DIM), for weights as powers of 2

// 2^x, 0 for the lowest; 2^0 is 1 exactly.
inline float power_of_2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Copies a page: rows of 32 chunks, of which chunk c of row r goes to place c ^ (r % 8), so that any 8 rows' chunks of one
// index lie in different banks. Of keys beyond the last position nothing is defined: zeros take their place.
inline void copy_page(uint to, const uint4* from, uint keys) {
    const uint row = threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
    to += (row * ROW_CHUNKS + (chunk ^ row % 8)) * 16;
#pragma unroll
    for (uint i = 0; i < PAGE_TOKENS; i += WARPS) {
        copy_async(to + i * ROW_CHUNKS * 16, from + i * ROW_CHUNKS + threadIdx.x, row + i < keys);
    }
}

// Grid [tiles of a chunk, kv heads, chunks]. q bf16 [rows, heads * 256]; q_gate bf16 [rows, heads, 512], gates behind the
// queries; keys, values: the pool, bf16 [pages, kv heads, 64, 256]; out bf16 [rows, heads * 256].
extern "C" __global__ void __launch_bounds__(THREADS, 1) ENTRY(
    const uint4* q, const uint* q_gate, const uint4* keys, const uint4* values, const uint* positions,
    const Chunk* chunks, const Span* spans, const uint* pages, uint* out) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 shared[];
    // What waits longest comes first: later chunks see more.
    const Chunk chunk = chunks[gridDim.z - 1 - blockIdx.z];
    if (blockIdx.x * TILE_ROWS >= chunk.rows) return;
    const uint kv_head = blockIdx.y;
    const uint rows = min(chunk.rows - blockIdx.x * TILE_ROWS, TILE_ROWS);
    const uint first_row = chunk.first_row + blockIdx.x * TILE_ROWS;
    const uint first_position = positions[first_row], last_position = first_position + rows - 1;
    const uint* row_pages = pages + spans[chunk.span].first_page;
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    const uint queries_at = shared_address(shared), pages_at = queries_at + QUERY_BYTES;
    const auto copy = [&](uint page) {
        const uint to = pages_at + page % 2 * 2 * PAGE_BYTES;
        const uint seen = last_position - page * PAGE_TOKENS + 1;
        const size_t at = (size_t(row_pages[page]) * KV_HEADS + kv_head) * (PAGE_TOKENS * ROW_CHUNKS);
        copy_page(to, keys + at, seen);
        copy_page(to + PAGE_BYTES, values + at, seen);
        copies_end();
    };
    // Query m is that of row m / GROUP and head m % GROUP. Those beyond the last repeat the last row's.
    for (uint i = threadIdx.x; i < QUERIES * ROW_CHUNKS; i += THREADS) {
        const uint m = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
        const size_t head = size_t(first_row + min(m / GROUP, rows - 1)) * HEADS + kv_head * GROUP + m % GROUP;
        copy_async(queries_at + (m * ROW_CHUNKS + (chunk ^ m % 8)) * 16, q + head * ROW_CHUNKS + chunk);
    }
    copy(0);

    // What a lane names to ldmatrix: of queries and values a row of 16, of keys a row of 8 and one of two chunks.
    const uint swizzle = lane % 8;
    const uint query_at = queries_at + (warp * 16 + lane % 16) * ROW_CHUNKS * 16, query_half = lane / 16;
    const uint key_row = (lane / 16 * 8 + lane % 8) * ROW_CHUNKS * 16, key_half = lane / 8 % 2;
    const uint value_row = lane % 16 * ROW_CHUNKS * 16, value_half = lane / 16;

    // Each lane has a part of two queries' scores: m0 and m0 + 8.
    const uint m0 = warp * 16 + lane / 4;
    const bool has_queries = warp * 16 < rows * GROUP;
    const uint query_positions[2] = {first_position + m0 / GROUP, first_position + (m0 + 8) / GROUP};
    float greatest[2] = {LOWEST, LOWEST};  // of SCALE times scores
    float total[2] = {0.0f, 0.0f};         // of the lane's own weights
    float sums[HEAD_DIM / 8][4] = {};

    for (uint page = 0; page <= last_position / PAGE_TOKENS; page++) {
        copies_wait<0>();
        __syncthreads();  // the page is there, and all are through with the one before
        if (page < last_position / PAGE_TOKENS) copy(page + 1);
        if (!has_queries) continue;
        const uint keys_at = pages_at + page % 2 * 2 * PAGE_BYTES + key_row;
        const uint values_at = pages_at + (page % 2 * 2 + 1) * PAGE_BYTES + value_row;

        float scores[PAGE_TOKENS / 8][4] = {};
#pragma unroll
        for (uint k = 0; k < HEAD_DIM / 16; k++) {
            uint left[4], right[4];
            ldmatrix(left, query_at + ((2 * k + query_half) ^ swizzle) * 16);
#pragma unroll
            for (uint j = 0; j < PAGE_TOKENS / 16; j++) {
                ldmatrix(right, keys_at + j * 16 * ROW_CHUNKS * 16 + ((2 * k + key_half) ^ swizzle) * 16);
                mma(scores[2 * j], left, right[0], right[1]);
                mma(scores[2 * j + 1], left, right[2], right[3]);
            }
        }
        if ((page + 1) * PAGE_TOKENS > first_position + 1) {
#pragma unroll
            for (uint j = 0; j < PAGE_TOKENS / 8; j++) {
#pragma unroll
                for (uint e = 0; e < 4; e++) {
                    const uint key = page * PAGE_TOKENS + 8 * j + lane % 4 * 2 + e % 2;
                    if (key > query_positions[e / 2]) scores[j][e] = LOWEST;
                }
            }
        }

        float factors[2];
#pragma unroll
        for (uint h = 0; h < 2; h++) {
            float most = LOWEST;
#pragma unroll
            for (uint j = 0; j < PAGE_TOKENS / 8; j++) most = fmaxf(most, fmaxf(scores[j][2 * h], scores[j][2 * h + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            // Position 0 is seen by all, so this is a score from the first page on.
            const float before = greatest[h];
            greatest[h] = fmaxf(before, most * SCALE);
            factors[h] = power_of_2(before - greatest[h]);
            float page_total = 0.0f;
#pragma unroll
            for (uint j = 0; j < PAGE_TOKENS / 8; j++) {
#pragma unroll
                for (uint e = 2 * h; e < 2 * h + 2; e++) {
                    scores[j][e] = power_of_2(__fmaf_rn(scores[j][e], SCALE, -greatest[h]));
                    page_total += scores[j][e];
                }
            }
            total[h] = __fmaf_rn(total[h], factors[h], page_total);
        }
        // Maxima seldom change, and a product with 1 changes nothing.
        if (__any_sync(~0u, factors[0] != 1.0f || factors[1] != 1.0f)) {
#pragma unroll
            for (uint t = 0; t < HEAD_DIM / 8; t++) {
#pragma unroll
                for (uint e = 0; e < 4; e++) sums[t][e] *= factors[e / 2];
            }
        }
#pragma unroll
        for (uint k = 0; k < PAGE_TOKENS / 16; k++) {
            uint high[4], low[4], right[4];
            split_left(scores[2 * k], scores[2 * k + 1], high, low);
#pragma unroll
            for (uint t = 0; t < HEAD_DIM / 16; t++) {
                ldmatrix_transposed(right, values_at + k * 16 * ROW_CHUNKS * 16 + ((2 * t + value_half) ^ swizzle) * 16);
                mma(sums[2 * t], high, right[0], right[1]);
                mma(sums[2 * t + 1], high, right[2], right[3]);
                mma(sums[2 * t], low, right[0], right[1]);
                mma(sums[2 * t + 1], low, right[2], right[3]);
            }
        }
    }

#pragma unroll
    for (uint h = 0; h < 2; h++) {
        float all = total[h] + __shfl_xor_sync(~0u, total[h], 1);
        all += __shfl_xor_sync(~0u, all, 2);
        const float factor = 1.0f / all;
        const uint m = m0 + 8 * h;
        if (m / GROUP >= rows) continue;
        const size_t head = size_t(first_row + m / GROUP) * HEADS + kv_head * GROUP + m % GROUP;
        const uint* gates = q_gate + head * HEAD_DIM + HEAD_DIM / 2 + lane % 4;
        uint* results = out + head * (HEAD_DIM / 2) + lane % 4;
#pragma unroll
        for (uint t = 0; t < HEAD_DIM / 8; t++) {
            const uint gate = gates[4 * t];
            results[4 * t] = bf16_pair(sums[t][2 * h] * factor * sigmoid(first_bf16(gate)),
                                       sums[t][2 * h + 1] * factor * sigmoid(second_bf16(gate)));
        }
    }
}
LAYOUT_OF(ENTRY);
