// Attention of the rows of a prefill over paged keys and values, page by page, with an online softmax.
//
// A threadgroup of four simdgroups has up to 32 queries: the heads that share keys of as many rows as fit. Per page of 64
// keys, simdgroup s computes the scores of all queries with keys 16 s ..= 16 s + 15, then, after the softmax, the sums of
// values for dimensions 64 s ..= 64 s + 63, which stay in its registers. So each key and value is loaded by one simdgroup,
// straight into tiles (see tiles.h), and scores alone pass through threadgroup memory.
//
// A row's result is the same in any tile. Pages are taken from position 0 on whatever the tile; keys behind a row have
// weight 0 exactly, and a page that has nothing for it leaves its maximum, its sum and its values as they are.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
#include "attention.h"
#include "shape.h"
#include "tables.h"
#include "tiles.h"

#define QUERIES 32             // of a threadgroup
#define QUERY_TILES (QUERIES / 8)
#define DIM_GROUPS (HEAD_DIM / 32)
// Scores of a query, as quadruples: 16, and one that shifts the next query's to other banks.
#define SCORE_QUADS 17

// q bf16 [rows, heads * 256]; q_gate bf16 [rows, heads, 512], gates behind the queries; keys, values: the pool. out bf16
// [rows, heads * 256].
//
// Grid [tiles of a chunk, kv heads, chunks] of 128 threads.
kernel void attention_prefill(
    device const uint* q [[buffer(0)]],
    device const uint* q_gate [[buffer(1)]],
    device const uint* keys [[buffer(2)]],
    device const uint* values [[buffer(3)]],
    device const uint* positions [[buffer(4)]],
    device const Chunk* chunks [[buffer(5)]],
    device const Span* spans [[buffer(6)]],
    device const uint* pages [[buffer(7)]],
    device uint* out [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 queries[QUERY_TILES * DIM_GROUPS * 32];  // [tile, group, lane]: four tiles of bf16
    threadgroup float4 scores[QUERIES * SCORE_QUADS];          // [query, key], then weights
    threadgroup float factors[QUERIES];                        // of the sums so far

    const uint heads = heads_of_group(), tile_rows = QUERIES / heads;
    const uint kv_head = group.y;
    const uint chunk_rows = chunks[group.z].rows;
    if (group.x * tile_rows >= chunk_rows) return;
    const uint rows = min(chunk_rows - group.x * tile_rows, tile_rows);
    const uint first_row = chunks[group.z].first_row + group.x * tile_rows;
    const uint first_position = positions[first_row], last_position = first_position + rows - 1;
    device const uint* row_pages = pages + spans[chunks[group.z].span].first_page;
    const uint r = tile_row(lane), c = tile_column(lane);

    // Query m is that of row m / heads and head m % heads. Those beyond the last repeat the last row's.
    for (uint i = thread_index; i < QUERY_TILES * DIM_GROUPS * 32; i += 128) {
        const uint m = i / (DIM_GROUPS * 32) * 8 + tile_row(i % 32);
        const ulong row = first_row + min(m / heads, rows - 1);
        device const uint* query = q + (row * HEADS + kv_head * heads + m % heads) * (HEAD_DIM / 2);
        const uint quad = i / 32 % DIM_GROUPS * 4 + tile_column(i % 32) / 2;
        queries[i] = reinterpret_cast<device const uint4*>(query)[quad];
    }

    // Four threads have a query's softmax: thread t that of query t / 4, every fourth quadruple of keys.
    const uint own_query = thread_index / 4, own_quad = thread_index % 4;
    const uint own_position = first_position + own_query / heads;
    threadgroup float4* own_scores = scores + own_query * SCORE_QUADS + own_quad;
    float greatest = LOWEST, total = 0.0f;

    // Tile t of a query tile: dimensions 64 * simdgroup + 32 * (t / 4) + 4 i + t % 4.
    simdgroup_float8x8 sums[QUERY_TILES][8];
    for (uint i = 0; i < QUERY_TILES; i++) {
        for (uint t = 0; t < 8; t++) sums[i][t] = zero_tile();
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint page = 0; page <= last_position / PAGE_TOKENS; page++) {
        const ulong tile = tile_of_page(row_pages[page], kv_head) / 2;
        const uint last_key = min(last_position - page * PAGE_TOKENS, uint(PAGE_TOKENS - 1));

        // Keys beyond the last position may be anything: the last one takes their place. Their weights are 0.
        simdgroup_float8x8 score[QUERY_TILES][2];
        for (uint i = 0; i < QUERY_TILES; i++) {
            for (uint j = 0; j < 2; j++) score[i][j] = zero_tile();
        }
        if (simdgroup * 16 <= last_key) {
            device const uint2* key[2][2];
            for (uint j = 0; j < 2; j++) {
                for (uint e = 0; e < 2; e++) {
                    const uint index = min(simdgroup * 16 + 8 * j + c + e, last_key);
                    key[j][e] = reinterpret_cast<device const uint2*>(keys + tile + index * (HEAD_DIM / 2)) + r;
                }
            }
            for (uint g = 0; g < DIM_GROUPS; g++) {
                simdgroup_float8x8 left[4], right[2][4];
                for (uint j = 0; j < 2; j++) set_transposed(right[j], key[j][0][g * 8], key[j][1][g * 8]);
                for (uint i = 0; i < QUERY_TILES; i++) {
                    set_rows(left, queries[(i * DIM_GROUPS + g) * 32 + lane]);
                    for (uint s = 0; s < 4; s++) {
                        for (uint j = 0; j < 2; j++) {
                            simdgroup_multiply_accumulate(score[i][j], left[s], right[j][s], score[i][j]);
                        }
                    }
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // the page before is done with its weights
        for (uint i = 0; i < QUERY_TILES; i++) {
            for (uint j = 0; j < 2; j++) {
                threadgroup float2* at = reinterpret_cast<threadgroup float2*>(scores + (8 * i + r) * SCORE_QUADS);
                at[simdgroup * 8 + 4 * j + c / 2] =
                    float2(score[i][j].thread_elements()[0], score[i][j].thread_elements()[1]) * SCORE_SCALE;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Keys of the page that the query sees: 0 or fewer, if the page is beyond its position.
        const int seen = int(own_position) - int(page * PAGE_TOKENS) + 1;
        float4 weight[4];
        float page_greatest = LOWEST;
        for (uint i = 0; i < 4; i++) {
            weight[i] = own_scores[4 * i];
            for (uint e = 0; e < 4; e++) {
                if (int(16 * i + 4 * own_quad + e) >= seen) weight[i][e] = LOWEST;
                page_greatest = max(page_greatest, weight[i][e]);
            }
        }
        page_greatest = max(page_greatest, simd_shuffle_xor(page_greatest, 1));
        page_greatest = max(page_greatest, simd_shuffle_xor(page_greatest, 2));
        const float before = greatest;
        // Position 0 is seen by all, so this is a score from the first page on, and e^(LOWEST - score) is 0.
        greatest = max(before, page_greatest);
        float page_total = 0.0f;
        for (uint i = 0; i < 4; i++) {
            for (uint e = 0; e < 4; e++) {
                weight[i][e] = exact_exp(weight[i][e] - greatest);
                page_total += weight[i][e];
            }
            own_scores[4 * i] = weight[i];
        }
        page_total += simd_shuffle_xor(page_total, 1);
        page_total += simd_shuffle_xor(page_total, 2);
        const float factor = exact_exp(before - greatest);
        total = fma(total, factor, page_total);
        if (own_quad == 0) factors[own_query] = factor;
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (uint i = 0; i < QUERY_TILES; i++) {
            const float scale = factors[8 * i + r];
            for (uint t = 0; t < 8; t++) scale_tile(sums[i][t], scale);
        }
        for (uint k = 0; k <= last_key / 8; k++) {
            const uint index = min(8 * k + r, last_key);
            device const uint4* value = reinterpret_cast<device const uint4*>(values + tile + index * (HEAD_DIM / 2)) + simdgroup * 8 + c / 2;
            simdgroup_float8x8 left[QUERY_TILES], right[4];
            for (uint i = 0; i < QUERY_TILES; i++) {
                threadgroup const float2* at = reinterpret_cast<threadgroup const float2*>(scores + (8 * i + r) * SCORE_QUADS);
                const float2 pair = at[4 * k + c / 2];
                set_tile(left[i], pair.x, pair.y);
            }
            for (uint g = 0; g < 2; g++) {
                set_rows(right, value[g * 4]);
                for (uint i = 0; i < QUERY_TILES; i++) {
                    for (uint s = 0; s < 4; s++) {
                        simdgroup_multiply_accumulate(sums[i][4 * g + s], left[i], right[s], sums[i][4 * g + s]);
                    }
                }
            }
        }
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (own_quad == 0) factors[own_query] = 1.0f / total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < QUERY_TILES; i++) {
        const uint m = 8 * i + r;
        const float factor = factors[m];
        for (uint g = 0; g < 2; g++) {
            // Eight neighbours: of the lane's first column in each tile, then of its second.
            float o[8];
            for (uint s = 0; s < 4; s++) {
                o[s] = sums[i][4 * g + s].thread_elements()[0];
                o[4 + s] = sums[i][4 * g + s].thread_elements()[1];
            }
            if (m / heads < rows) {
                const ulong head = ulong(first_row + m / heads) * HEADS + kv_head * heads + m % heads;
                const uint quad = simdgroup * 8 + g * 4 + c / 2;
                device const uint4* gates = reinterpret_cast<device const uint4*>(q_gate + head * HEAD_DIM + HEAD_DIM / 2);
                const uint4 words = gates[quad];
                uint4 gated;
                for (uint e = 0; e < 4; e++) {
                    gated[e] = bf16_pair(
                        o[2 * e] * factor * sigmoid(first_bf16(words[e])),
                        o[2 * e + 1] * factor * sigmoid(second_bf16(words[e])));
                }
                reinterpret_cast<device uint4*>(out + head * (HEAD_DIM / 2))[quad] = gated;
            }
        }
    }
}
