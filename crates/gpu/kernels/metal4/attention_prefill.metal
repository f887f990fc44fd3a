// The kernel of attention_prefill.metal on the tensor units of Metal 4: the same dispatches and the same online softmax,
// page by page.
//
// A threadgroup of four simdgroups has up to 32 queries, in two blocks of 16. Per page of 64 keys, simdgroup s computes
// the scores of block s % 2 with keys 32 (s / 2) ..= 32 (s / 2) + 31, then, after the softmax, the sums of values for
// dimensions 128 (s / 2) .. of the same block. Keys and values are read where they lie in the pool; queries are brought
// to threadgroup memory once, and weights replace scores there, as TERMS terms of bf16 (terms.h).
//
// A row's result is to be the same in any tile: keys behind a row have weight 0 exactly, and a page that has nothing for it
// leaves its maximum, its sum and its values as they are. That a product does not depend on how many weights of 0 end
// it is for the self-test to see.
#include <metal_stdlib>
#include "tensors.h"
using namespace metal;
#include "attention.h"
#include "shape.h"
#include "sums.h"
#include "tables.h"
#include "terms.h"

#define QUERIES 32                       // of a threadgroup
#define BLOCK_QUERIES 16                 // of a simdgroup
#define BLOCK_KEYS 32
#define BLOCK_DIMS 128
// Strides, padded so that rows side by side start in other banks.
#define QUERY_VECTORS (HEAD_DIM / 8 + 1)
#define QUERY_VALUES (8 * QUERY_VECTORS)
#define SCORE_QUADS 17
#define SCORE_VALUES (8 * SCORE_QUADS)   // bf16 from a query's weights to the next's
static_assert(TERMS * PAGE_TOKENS <= SCORE_VALUES, "terms of weights take the place of scores");

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
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup uint4 queries[QUERIES * QUERY_VECTORS];
    threadgroup float4 scores[QUERIES * SCORE_QUADS];  // [query, key], then weights [query, term, key] in bf16
    threadgroup float factors[QUERIES];                // of the sums so far

    const uint heads = heads_of_group(), tile_rows = QUERIES / heads;
    const uint kv_head = group.y;
    const uint chunk_rows = chunks[group.z].rows;
    if (group.x * tile_rows >= chunk_rows) return;
    const uint rows = min(chunk_rows - group.x * tile_rows, tile_rows);
    const uint first_row = chunks[group.z].first_row + group.x * tile_rows;
    const uint first_position = positions[first_row], last_position = first_position + rows - 1;
    device const uint* row_pages = pages + spans[chunks[group.z].span].first_page;

    // Query m is that of row m / heads and head m % heads. Those beyond the last repeat the last row's.
    for (uint i = thread_index; i < QUERIES * HEAD_DIM / 8; i += 128) {
        const uint m = i / (HEAD_DIM / 8), part = i % (HEAD_DIM / 8);
        const ulong row = first_row + min(m / heads, rows - 1);
        device const uint* query = q + (row * HEADS + kv_head * heads + m % heads) * (HEAD_DIM / 2);
        queries[m * QUERY_VECTORS + part] = reinterpret_cast<device const uint4*>(query)[part];
    }

    // Four threads have a query's softmax: thread t that of query t / 4, every fourth quadruple of keys.
    const uint own_query = thread_index / 4, own_quad = thread_index % 4;
    const uint own_position = first_position + own_query / heads;
    threadgroup float4* own_scores = scores + own_query * SCORE_QUADS + own_quad;
    threadgroup uint2* own_weights = reinterpret_cast<threadgroup uint2*>(scores + own_query * SCORE_QUADS) + own_quad;
    float greatest = LOWEST, total = 0.0f;

    const uint first_query = simdgroup % 2 * BLOCK_QUERIES;
    const uint first_key = simdgroup / 2 * BLOCK_KEYS, first_dim = simdgroup / 2 * BLOCK_DIMS;
    threadgroup bfloat* query_values = reinterpret_cast<threadgroup bfloat*>(queries) + first_query * QUERY_VALUES;
    threadgroup bfloat* weight_values = reinterpret_cast<threadgroup bfloat*>(scores) + first_query * SCORE_VALUES;
    threadgroup float* block_scores = reinterpret_cast<threadgroup float*>(scores + first_query * SCORE_QUADS) + first_key;
    device const bfloat* key_values = reinterpret_cast<device const bfloat*>(keys) + first_key * HEAD_DIM;
    device const bfloat* value_values = reinterpret_cast<device const bfloat*>(values) + first_dim;

    shared_tensor_t block = shared_tensor(query_values, BLOCK_QUERIES, HEAD_DIM, QUERY_VALUES);
    PRODUCT_T(BLOCK_QUERIES, BLOCK_KEYS, HEAD_DIM, true) score_product;
    PRODUCT_T(BLOCK_QUERIES, BLOCK_DIMS, ANY_LENGTH, false) value_product;
    auto sums = SUMS_OF(value_product, shared_tensor_t, device_tensor_t);
    clear(sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (uint page = 0; page <= last_position / PAGE_TOKENS; page++) {
        const ulong tile = tile_of_page(row_pages[page], kv_head);
        const uint last_key = min(last_position - page * PAGE_TOKENS, uint(PAGE_TOKENS - 1));

        // Keys beyond the last position may be anything: the scores of all of them are replaced below.
        auto score = SUMS_OF(score_product, shared_tensor_t, device_tensor_t);
        clear(score);
        if (first_key <= last_key) {
            device_tensor_t page_keys = device_tensor(key_values + tile, BLOCK_KEYS, HEAD_DIM, HEAD_DIM);
            score_product.run(block, page_keys, score);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // the page before is done with its weights
        put(score, block_scores, 4 * SCORE_QUADS, SCORE_SCALE);
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
        }
        page_total += simd_shuffle_xor(page_total, 1);
        page_total += simd_shuffle_xor(page_total, 2);
        const float factor = exact_exp(before - greatest);
        total = fma(total, factor, page_total);
        if (own_quad == 0) factors[own_query] = factor;
        // The four threads of a query, lanes of one simdgroup, have read its scores.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint term = 0; term < TERMS; term++) {
            for (uint i = 0; i < 4; i++) own_weights[term * (PAGE_TOKENS / 4) + 4 * i] = take_term(weight[i]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Values beyond the last position are not read: they may be no numbers, and 0 times those is none.
        const int length = int(last_key) + 1;
        scale_rows(sums, factors + first_query);
        device_tensor_t page_values = device_tensor(value_values + tile, length, BLOCK_DIMS, HEAD_DIM);
        for (uint term = 0; term < TERMS; term++) {
            shared_tensor_t weights = shared_tensor(weight_values + term * PAGE_TOKENS, BLOCK_QUERIES, length, SCORE_VALUES);
            value_product.run(weights, page_values, sums);
        }
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (own_quad == 0) factors[own_query] = 1.0f / total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device const bfloat* gates = reinterpret_cast<device const bfloat*>(q_gate) + HEAD_DIM;
    device bfloat* gated = reinterpret_cast<device bfloat*>(out);
#pragma unroll
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            const auto at = sums.get_multidimensional_index(i);
            const uint m = first_query + uint(at[1]), dim = first_dim + uint(at[0]);
            if (m / heads < rows) {
                const ulong head = ulong(first_row + m / heads) * HEADS + kv_head * heads + m % heads;
                const float gate = float(gates[head * (2 * HEAD_DIM) + dim]);
                gated[head * HEAD_DIM + dim] = bfloat(sums[i] * factors[m] * sigmoid(gate));
            }
        }
    }
}
