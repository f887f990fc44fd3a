// The Gated DeltaNet recurrence over chunks of at most 64 rows, on simdgroup matrices (prefill).
//
// Per chunk and value head, with G = cumsum(log decay), D_ij = e^(G_i - G_j) for i >= j and S the state before:
//
//     L = I + strictly_lower(beta K K^T * D)
//     U = L^-1 (beta V) - L^-1 (beta e^G K) S  =  U0 - W S
//     O = e^G Q S + (Q K^T * D) U
//     S' = e^(G_last) S + (e^(G_last - G) K)^T U
//
// `gated_delta_chunks` computes W, U0 and the attention matrix Q K^T * D, which need no state, for all chunks at once;
// `gated_delta_scan` goes through a span's chunks in order. Decays are e to differences of G only: e^-G would overflow.
// Rows that a chunk lacks have beta 0 and log decay 0, and so W = U0 = U = 0; their q, k and v are those of its last row.
// No entry of a row has a term of a later one but zero, so a row's result does not depend on the rows behind it.
//
// Layout. 128 keys or columns are divided into groups of four tiles, as tiles.h says: tile s of group g has indices
// 32 g + 4 i + s. Scratch is in the order of the lanes: no address of it depends on the layout within a tile, and both
// kernels read and write it as the hardware likes best.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
#include "delta.h"
#include "math.h"
#include "shape.h"
#include "tables.h"
#include "tiles.h"

#define CHUNK PAGE_TOKENS
#define BLOCKS (CHUNK / 8)                 // tiles along a chunk's rows
#define TRIANGLE (BLOCKS * (BLOCKS + 1) / 2)  // tiles of a lower triangular matrix
#define KEY_GROUPS (DELTA_DIM / 32)        // of four tiles each
#define FACTOR_QUADS (BLOCKS * KEY_GROUPS * 2 * 32)  // W, or U0, in values of float4
// A log decay below this leaves 1e-13 of the state, which nothing shows; it keeps sums small, so that they stay exact.
#define LOG_DECAY_MIN -30.0f

inline uint triangle_index(uint i, uint j) { return i * (i + 1) / 2 + j; }

// Four tiles of a group, [row, index], from the lane's 8 consecutive values of its row: rows of the left matrix.
inline void load_rows(thread simdgroup_float8x8* tiles, device const uint* row, uint group, uint column) {
    set_rows(tiles, *reinterpret_cast<device const uint4*>(row + group * 16 + column * 2));
}

// Four tiles of a group, [index, row], from four values of each of the lane's two rows: the transpose of `load_rows`.
inline void load_transposed(
    thread simdgroup_float8x8* tiles, device const uint* row0, device const uint* row1, uint group, uint index) {
    set_transposed(tiles, reinterpret_cast<device const uint2*>(row0)[group * 8 + index],
                   reinterpret_cast<device const uint2*>(row1)[group * 8 + index]);
}

// Words of row `index` of a chunk, from `values` [rows, heads * 128] in bf16; beyond the chunk, of its last row.
inline device const uint* head_row(
    device const uint* values, uint heads, uint head, uint first_row, uint rows, uint index) {
    const ulong row = first_row + min(index, rows - 1);
    return values + (row * heads + head) * (DELTA_DIM / 2);
}

// q, k bf16 [rows, key heads * 128]; v bf16 [rows, value heads * 128]; beta, log_decay f32 [rows, value heads].
// For each chunk and value head: minus_w and u0, float4 [row tile, group, element, lane] of four tiles; attention,
// float2 [lower tile, lane] of a tile; decays, f32 [2, 64], e^G and e^(G_last - G).
//
// Grid [value heads, chunks] of 256 threads.
kernel void gated_delta_chunks(
    device const uint* q [[buffer(0)]],
    device const uint* k [[buffer(1)]],
    device const uint* v [[buffer(2)]],
    device const float* beta [[buffer(3)]],
    device const float* log_decay [[buffer(4)]],
    device const Chunk* chunks [[buffer(5)]],
    device float4* minus_w [[buffer(6)]],
    device float4* u0 [[buffer(7)]],
    device float2* attention [[buffer(8)]],
    device float* decays [[buffer(9)]],
    uint2 group_position [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float sums[CHUNK];   // G
    threadgroup float betas[CHUNK];
    threadgroup float lower[TRIANGLE * 64];  // tiles of -L below the diagonal, of the inverse on it

    const uint head = group_position.x, chunk = group_position.y;
    const uint key_head = key_head_of(head);
    const uint first_row = chunks[chunk].first_row, rows = chunks[chunk].rows;
    const uint blocks = (rows + 7) / 8;
    const ulong item = ulong(chunk) * VALUE_HEADS + head;
    const uint r = tile_row(lane), c = tile_column(lane);

    // A lane of the first simdgroup sums two rows, then all those before.
    if (simdgroup == 0) {
        float g[2];
        for (uint i = 0; i < 2; i++) {
            const uint row = 2 * lane + i, at = (first_row + row) * VALUE_HEADS + head;
            g[i] = row < rows ? max(log_decay[at], LOG_DECAY_MIN) : 0.0f;
            betas[row] = row < rows ? beta[at] : 0.0f;
        }
        const float before = simd_prefix_exclusive_sum(g[0] + g[1]);
        sums[2 * lane] = before + g[0];
        sums[2 * lane + 1] = before + (g[0] + g[1]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < CHUNK) {
        decays[item * 2 * CHUNK + thread_index] = exact_exp(sums[thread_index]);
        decays[item * 2 * CHUNK + CHUNK + thread_index] = exact_exp(sums[CHUNK - 1] - sums[thread_index]);
    }

    // Simdgroup i takes the tiles of row i of K K^T and of row blocks - 1 - i of Q K^T: as many for each.
    if (simdgroup < blocks) {
        const uint k_block = simdgroup, q_block = blocks - 1 - simdgroup;
        device const uint* k_row = head_row(k, KEY_HEADS, key_head, first_row, rows, 8 * k_block + r);
        device const uint* q_row = head_row(q, KEY_HEADS, key_head, first_row, rows, 8 * q_block + r);
        simdgroup_float8x8 kk[BLOCKS], qk[BLOCKS];
        for (uint j = 0; j < BLOCKS; j++) {
            kk[j] = zero_tile();
            qk[j] = zero_tile();
        }
        for (uint g = 0; g < KEY_GROUPS; g++) {
            simdgroup_float8x8 left_k[4], left_q[4], right[4];
            load_rows(left_k, k_row, g, c);
            load_rows(left_q, q_row, g, c);
            for (uint j = 0; j < BLOCKS; j++) {
                if (j <= max(k_block, q_block)) {
                    device const uint* row0 = head_row(k, KEY_HEADS, key_head, first_row, rows, 8 * j + c);
                    device const uint* row1 = head_row(k, KEY_HEADS, key_head, first_row, rows, 8 * j + c + 1);
                    load_transposed(right, row0, row1, g, r);
                    for (uint s = 0; s < 4; s++) {
                        if (j <= k_block) simdgroup_multiply_accumulate(kk[j], left_k[s], right[s], kk[j]);
                        if (j <= q_block) simdgroup_multiply_accumulate(qk[j], left_q[s], right[s], qk[j]);
                    }
                }
            }
        }

        const float k_sum = sums[8 * k_block + r], q_sum = sums[8 * q_block + r];
        const float minus_beta = -betas[8 * k_block + r];
        for (uint j = 0; j < BLOCKS; j++) {
            const float sum0 = sums[8 * j + c], sum1 = sums[8 * j + c + 1];
            if (j <= q_block) {
                // Where i < j the difference is positive and may overflow: it is replaced before, the result after.
                const bool has0 = j < q_block || c <= r, has1 = j < q_block || c + 1 <= r;
                const float first = qk[j].thread_elements()[0] * exact_exp(min(q_sum - sum0, 0.0f));
                const float second = qk[j].thread_elements()[1] * exact_exp(min(q_sum - sum1, 0.0f));
                const ulong tile = item * TRIANGLE + triangle_index(q_block, j);
                attention[tile * 32 + lane] = float2(has0 ? first : 0.0f, has1 ? second : 0.0f);
            }
            if (j <= k_block) {
                const bool has0 = j < k_block || c < r, has1 = j < k_block || c + 1 < r;
                const float first = minus_beta * kk[j].thread_elements()[0] * exact_exp(min(k_sum - sum0, 0.0f));
                const float second = minus_beta * kk[j].thread_elements()[1] * exact_exp(min(k_sum - sum1, 0.0f));
                simdgroup_float8x8 tile;
                set_tile(tile, has0 ? first : 0.0f, has1 ? second : 0.0f);
                if (j == k_block) {
                    // The inverse of I - N, N^8 = 0, is (I + N)(I + N^2)(I + N^4).
                    simdgroup_float8x8 power, inverse, product;
                    set_tile(inverse, tile.thread_elements()[0] + (c == r ? 1.0f : 0.0f),
                             tile.thread_elements()[1] + (c + 1 == r ? 1.0f : 0.0f));
                    simdgroup_multiply(power, tile, tile);
                    simdgroup_multiply_accumulate(product, power, inverse, inverse);
                    simdgroup_multiply(tile, power, power);
                    simdgroup_multiply_accumulate(inverse, tile, product, product);
                    tile = inverse;
                }
                simdgroup_store(tile, lower + triangle_index(k_block, j) * 64, 8);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // L X = [beta e^G K | beta V] by blocks, a group of 32 columns in each simdgroup: X_i = L_ii^-1 (B_i - sum L_im X_m).
    const bool is_key = simdgroup < KEY_GROUPS;
    const uint g = simdgroup % KEY_GROUPS;
    device float4* results = (is_key ? minus_w : u0) + item * FACTOR_QUADS;
    simdgroup_float8x8 x[BLOCKS][4];
    for (uint i = 0; i < BLOCKS; i++) {
        if (i < blocks) {
            device const uint* row = is_key ? head_row(k, KEY_HEADS, key_head, first_row, rows, 8 * i + r)
                                            : head_row(v, VALUE_HEADS, head, first_row, rows, 8 * i + r);
            const float scale = betas[8 * i + r] * (is_key ? -exact_exp(sums[8 * i + r]) : 1.0f);
            simdgroup_float8x8 right[4], left;
            load_rows(right, row, g, c);
            for (uint s = 0; s < 4; s++) scale_tile(right[s], scale);
            for (uint m = 0; m < i; m++) {
                simdgroup_load(left, lower + triangle_index(i, m) * 64, 8);
                for (uint s = 0; s < 4; s++) simdgroup_multiply_accumulate(right[s], left, x[m][s], right[s]);
            }
            simdgroup_load(left, lower + triangle_index(i, i) * 64, 8);
            for (uint s = 0; s < 4; s++) simdgroup_multiply(x[i][s], left, right[s]);
            for (uint e = 0; e < 2; e++) {
                results[((i * KEY_GROUPS + g) * 2 + e) * 32 + lane] = float4(
                    x[i][0].thread_elements()[e], x[i][1].thread_elements()[e],
                    x[i][2].thread_elements()[e], x[i][3].thread_elements()[e]);
            }
        }
    }
}

struct GatedDeltaParams {
    uint chunks;
};

#define SCAN_SIMDGROUPS 2

// Scratch as above; states f32 [slots, value heads, 128, 128]; out bf16 [rows, value heads * 128].
//
// Grid [4 groups of columns, value heads, spans] of 64 threads. A simdgroup keeps [128 keys, 16 columns] of the state in
// registers, tiles 2 h and 2 h + 1 of the group, and shares nothing with others: no barrier stands in the serial loop, and
// each tile that is loaded serves two products. U waits in threadgroup memory, where each lane reads only what it wrote.
kernel void gated_delta_scan(
    device const uint* q [[buffer(0)]],
    device const uint* k [[buffer(1)]],
    device const Chunk* chunks [[buffer(2)]],
    device const Span* spans [[buffer(3)]],
    device const float4* minus_w [[buffer(4)]],
    device const float2* u0 [[buffer(5)]],
    device const float2* attention [[buffer(6)]],
    device const float* decays [[buffer(7)]],
    device float* states [[buffer(8)]],
    device uint* out [[buffer(9)]],
    constant GatedDeltaParams& p [[buffer(10)]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float2 u_tiles[SCAN_SIMDGROUPS * BLOCKS * 2 * 32];

    const uint column_group = group_position.x, head = group_position.y, span = group_position.z;
    const uint key_head = key_head_of(head);
    const uint r = tile_row(lane), c = tile_column(lane);
    const uint span_end = spans[span].first_row + spans[span].rows;
    threadgroup float2* u_lanes = u_tiles + simdgroup * BLOCKS * 2 * 32 + lane;

    // The span's first chunk.
    uint chunk = 0;
    for (uint end = p.chunks; chunk < end;) {
        const uint middle = (chunk + end) / 2;
        if (chunks[middle].first_row < spans[span].first_row) chunk = middle + 1;
        else end = middle;
    }

    // Tile s of group g has keys 32 g + 4 r + s, and the lane's two elements are columns `column` and `column + 4`, of
    // which the first tile has the even, the second the odd one.
    const uint column = column_group * 32 + 4 * c + 2 * simdgroup;
    const ulong slot_length = ulong(VALUE_HEADS) * DELTA_DIM * DELTA_DIM;
    const uint state_offset = (head * DELTA_DIM + 4 * r) * DELTA_DIM + column;
    simdgroup_float8x8 state[KEY_GROUPS * 4][2];
    device const float* before = states + spans[span].slot_in * slot_length + state_offset;
    for (uint t = 0; t < KEY_GROUPS * 4; t++) {
        device const float* key = before + (t / 4 * 32 + t % 4) * DELTA_DIM;
        const float2 left = reinterpret_cast<device const float2*>(key)[0];
        const float2 right = reinterpret_cast<device const float2*>(key)[2];
        set_tile(state[t][0], left.x, right.x);
        set_tile(state[t][1], left.y, right.y);
    }

    for (; chunk < p.chunks && chunks[chunk].first_row < span_end; chunk++) {
        const uint first_row = chunks[chunk].first_row, rows = chunks[chunk].rows;
        const uint blocks = (rows + 7) / 8;
        const ulong item = ulong(chunk) * VALUE_HEADS + head;
        device const float* chunk_decays = decays + item * 2 * CHUNK;

        // U = U0 - W S
        for (uint i = 0; i < blocks; i++) {
            device const float2* start = u0 + 2 * (item * FACTOR_QUADS + (i * KEY_GROUPS + column_group) * 64 + lane) + simdgroup;
            const float2 start0 = start[0], start1 = start[64];
            simdgroup_float8x8 u[2], left;
            set_tile(u[0], start0.x, start1.x);
            set_tile(u[1], start0.y, start1.y);
            for (uint g = 0; g < KEY_GROUPS; g++) {
                device const float4* w = minus_w + item * FACTOR_QUADS + (i * KEY_GROUPS + g) * 64 + lane;
                const float4 w0 = w[0], w1 = w[32];
                for (uint s = 0; s < 4; s++) {
                    set_tile(left, w0[s], w1[s]);
                    for (uint h = 0; h < 2; h++) simdgroup_multiply_accumulate(u[h], left, state[4 * g + s][h], u[h]);
                }
            }
            for (uint h = 0; h < 2; h++) {
                u_lanes[(2 * i + h) * 32] = float2(u[h].thread_elements()[0], u[h].thread_elements()[1]);
            }
        }

        // O = e^G Q S + A U
        for (uint i = 0; i < blocks; i++) {
            device const uint* q_row = head_row(q, KEY_HEADS, key_head, first_row, rows, 8 * i + r);
            simdgroup_float8x8 o[2], left[4], right;
            o[0] = zero_tile();
            o[1] = zero_tile();
            for (uint g = 0; g < KEY_GROUPS; g++) {
                load_rows(left, q_row, g, c);
                for (uint s = 0; s < 4; s++) {
                    for (uint h = 0; h < 2; h++) simdgroup_multiply_accumulate(o[h], left[s], state[4 * g + s][h], o[h]);
                }
            }
            const float decay = chunk_decays[8 * i + r];
            for (uint h = 0; h < 2; h++) scale_tile(o[h], decay);
            for (uint j = 0; j <= i; j++) {
                const float2 weights = attention[(item * TRIANGLE + triangle_index(i, j)) * 32 + lane];
                set_tile(left[0], weights.x, weights.y);
                for (uint h = 0; h < 2; h++) {
                    const float2 u = u_lanes[(2 * j + h) * 32];
                    set_tile(right, u.x, u.y);
                    simdgroup_multiply_accumulate(o[h], left[0], right, o[h]);
                }
            }
            const uint first = bf16_pair(o[0].thread_elements()[0], o[1].thread_elements()[0]);
            const uint second = bf16_pair(o[0].thread_elements()[1], o[1].thread_elements()[1]);
            if (8 * i + r < rows) {
                device uint* row = out + ((ulong(first_row) + 8 * i + r) * VALUE_HEADS + head) * (DELTA_DIM / 2) + column / 2;
                row[0] = first;
                row[2] = second;
            }
        }

        // S' = e^(G_last) S + K^T (e^(G_last - G) U)
        const float decay = chunk_decays[CHUNK - 1];
        for (uint t = 0; t < KEY_GROUPS * 4; t++) {
            for (uint h = 0; h < 2; h++) scale_tile(state[t][h], decay);
        }
        for (uint i = 0; i < blocks; i++) {
            const float rest = chunk_decays[CHUNK + 8 * i + r];
            simdgroup_float8x8 u[2], left[4];
            for (uint h = 0; h < 2; h++) {
                const float2 values = u_lanes[(2 * i + h) * 32];
                set_tile(u[h], rest * values.x, rest * values.y);
            }
            device const uint* row0 = head_row(k, KEY_HEADS, key_head, first_row, rows, 8 * i + c);
            device const uint* row1 = head_row(k, KEY_HEADS, key_head, first_row, rows, 8 * i + c + 1);
            for (uint g = 0; g < KEY_GROUPS; g++) {
                load_transposed(left, row0, row1, g, r);
                for (uint s = 0; s < 4; s++) {
                    for (uint h = 0; h < 2; h++) {
                        simdgroup_multiply_accumulate(state[4 * g + s][h], left[s], u[h], state[4 * g + s][h]);
                    }
                }
            }
        }
    }

    device float* after = states + spans[span].slot_out * slot_length + state_offset;
    for (uint t = 0; t < KEY_GROUPS * 4; t++) {
        device float* key = after + (t / 4 * 32 + t % 4) * DELTA_DIM;
        reinterpret_cast<device float2*>(key)[0] = float2(state[t][0].thread_elements()[0], state[t][1].thread_elements()[0]);
        reinterpret_cast<device float2*>(key)[2] = float2(state[t][0].thread_elements()[1], state[t][1].thread_elements()[1]);
    }
}
