// Attention of few rows over paged keys and values, split over blocks of positions.
//
// `attention_decode` computes, for a row, a block and up to eight query heads that share a head of keys and values, the
// softmax and the sum of values within the block; `attention_combine` joins a row's blocks in their order and multiplies
// by the gate. A block is as many tiles of 128 positions as make no more than 128 blocks of what the row sees. So a row's
// result depends on its position and what it sees alone, and what blocks leave behind stays small in a long context.
//
// Of a tile, the first pass is over keys: a lane has 8 of the 256 dimensions, so that a row of keys is one load of 512 bytes, and
// 32 partial scores (of 4 positions and 8 heads, say) become one whole score a lane in 31 shuffles. The second is over
// values: simdgroup s has dimensions 32 s ..= 32 s + 31, a lane four of them of every fourth position. Each key and value
// is loaded once.
#include <metal_stdlib>
using namespace metal;
#include "attention.h"
#include "shape.h"
#include "tables.h"

#define SIMDGROUPS 8
#define TILE 128                 // positions
#define BLOCKS_MAX 128           // of a row
#define GROUP_MAX 8              // query heads of a threadgroup
#define COLUMNS 128              // of a threadgroup of `attention_combine`

struct DecodeParams { uint blocks; };  // of the grid

inline uint tiles_of(uint position) { return position / TILE + 1; }
inline uint block_tiles(uint tiles) { return (tiles + BLOCKS_MAX - 1) / BLOCKS_MAX; }

// Where lane i has `2 * HALF` values, of which half belong to lanes with bit HALF, it keeps its own half, summed over both.
template <uint HALF>
inline void halve(thread float* values, uint lane) {
    const bool upper = (lane & HALF) != 0;
    for (uint i = 0; i < HALF; i++) {
        const float own = upper ? values[i + HALF] : values[i], other = upper ? values[i] : values[i + HALF];
        values[i] = own + simd_shuffle_xor(other, HALF);
    }
}

// Sum over all lanes of `values[lane]`.
inline float transposed_sum(thread float* values, uint lane) {
    halve<16>(values, lane);
    halve<8>(values, lane);
    halve<4>(values, lane);
    halve<2>(values, lane);
    halve<1>(values, lane);
    return values[0];
}

// Query heads that share keys are divided into as few equal parts of at most eight as there can be.
inline uint group_parts() { return (heads_of_group() + GROUP_MAX - 1) / GROUP_MAX; }
inline uint part_heads() { return (heads_of_group() + group_parts() - 1) / group_parts(); }

// `SLOTS`: the least power of two that is not less than the heads of a part.
template <uint SLOTS>
inline void scores_of_tile(
    device const float* q, device const bfloat* keys, device const uint* pages, threadgroup float* scores, uint kv_head,
    uint first_position, uint count, uint heads, uint simdgroup, uint lane) {
    const uint batch = 32 / SLOTS;  // positions
    float4 query[SLOTS][2];
    for (uint h = 0; h < SLOTS; h++) {
        device const float4* at = reinterpret_cast<device const float4*>(q + min(h, heads - 1) * HEAD_DIM + lane * 8);
        query[h][0] = at[0];
        query[h][1] = at[1];
    }
    for (uint first = simdgroup * batch; first < count; first += SIMDGROUPS * batch) {
        float partial[32];
        for (uint i = 0; i < batch; i++) {
            // Beyond the row's last position there may be anything: that one takes its place, and is ignored.
            const uint position = first_position + min(first + i, count - 1);
            device const bfloat* key = keys + tile_of_page(pages[position / PAGE_TOKENS], kv_head) +
                                       position % PAGE_TOKENS * HEAD_DIM;
            const uint4 words = reinterpret_cast<device const uint4*>(key)[lane];
            const float4 low = bf16_quad(words.xy), high = bf16_quad(words.zw);
            for (uint h = 0; h < SLOTS; h++) {
                partial[i * SLOTS + h] = dot(query[h][0], low) + dot(query[h][1], high);
            }
        }
        const float score = transposed_sum(partial, lane) * SCORE_SCALE;
        const uint offset = first + lane / SLOTS;
        scores[offset * GROUP_MAX + lane % SLOTS] = score;
    }
}

// q f32 [rows, heads * 256]; keys, values: the pool. Per row, head and block: sums f32 [256] of values weighted by
// e^(score - greatest), and stats f32 [2], the greatest score and the sum of weights.
//
// Grid [blocks, kv heads * parts, rows] of 256 threads.
kernel void attention_decode(
    device const float* q [[buffer(0)]],
    device const bfloat* keys [[buffer(1)]],
    device const bfloat* values [[buffer(2)]],
    device const uint* positions [[buffer(3)]],
    device const uint* row_spans [[buffer(4)]],
    device const Span* spans [[buffer(5)]],
    device const uint* pages [[buffer(6)]],
    device float* sums [[buffer(7)]],
    device float2* stats [[buffer(8)]],
    constant DecodeParams& p [[buffer(9)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 score_quads[TILE * GROUP_MAX / 4];  // [position, head], then weights
    threadgroup float factors[GROUP_MAX];                  // of the sums so far

    const uint block = group.x, row = group.z;
    const uint last_position = positions[row], tiles = tiles_of(last_position);
    const uint first_tile = block * block_tiles(tiles), end_tile = min(first_tile + block_tiles(tiles), tiles);
    if (first_tile >= tiles) return;
    const uint kv_head = group.y / group_parts();
    const uint first_head = group.y % group_parts() * part_heads();  // of those that share keys
    const uint heads = min(part_heads(), heads_of_group() - first_head);
    const uint head = kv_head * heads_of_group() + first_head;
    device const uint* row_pages = pages + spans[row_spans[row]].first_page;
    device const float* query = q + (ulong(row) * HEADS + head) * HEAD_DIM;
    threadgroup float* scores = reinterpret_cast<threadgroup float*>(score_quads);

    const uint dimension = simdgroup * 32 + lane % 8 * 4;
    float4 sum[GROUP_MAX];
    for (uint h = 0; h < GROUP_MAX; h++) sum[h] = float4(0.0f);
    // Simdgroup h has the softmax of head h.
    float greatest = LOWEST, total = 0.0f;

    for (uint tile = first_tile; tile < end_tile; tile++) {
        const uint first_position = tile * TILE, count = min(last_position - first_position + 1, uint(TILE));
        threadgroup_barrier(mem_flags::mem_threadgroup);  // the tile before is done with its weights
        if (part_heads() > 4) {
            scores_of_tile<8>(query, keys, row_pages, scores, kv_head, first_position, count, heads, simdgroup, lane);
        } else if (part_heads() > 2) {
            scores_of_tile<4>(query, keys, row_pages, scores, kv_head, first_position, count, heads, simdgroup, lane);
        } else {
            scores_of_tile<2>(query, keys, row_pages, scores, kv_head, first_position, count, heads, simdgroup, lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        if (simdgroup < heads) {
            const float before = greatest;
            float score[TILE / 32];
            for (uint i = 0; i < TILE / 32; i++) {
                const uint offset = 32 * i + lane;
                score[i] = offset < count ? scores[offset * GROUP_MAX + simdgroup] : LOWEST;
                greatest = max(greatest, score[i]);
            }
            // A score from the first tile on, so that e^(LOWEST - greatest) is 0.
            greatest = simd_max(greatest);
            float tile_total = 0.0f;
            for (uint i = 0; i < TILE / 32; i++) {
                const float weight = exact_exp(score[i] - greatest);
                scores[(32 * i + lane) * GROUP_MAX + simdgroup] = weight;
                tile_total += weight;
            }
            const float factor = exact_exp(before - greatest);
            total = fma(total, factor, simd_sum(tile_total));
            if (lane == 0) factors[simdgroup] = factor;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (uint h = 0; h < GROUP_MAX; h++) {
            if (h < heads) sum[h] *= factors[h];
        }
        for (uint offset = lane / 8; offset < count; offset += 4) {
            const uint position = first_position + offset;
            device const bfloat* value = values + tile_of_page(row_pages[position / PAGE_TOKENS], kv_head) +
                                         position % PAGE_TOKENS * HEAD_DIM + dimension;
            const float4 v = bf16_quad(*reinterpret_cast<device const uint2*>(value));
            // Heads that there are not have no weights either: what is summed for them is not stored.
            const float4 low = score_quads[offset * 2];
            sum[0] = fma(float4(low.x), v, sum[0]);
            sum[1] = fma(float4(low.y), v, sum[1]);
            sum[2] = fma(float4(low.z), v, sum[2]);
            sum[3] = fma(float4(low.w), v, sum[3]);
            if (part_heads() > 4) {
                const float4 high = score_quads[offset * 2 + 1];
                sum[4] = fma(float4(high.x), v, sum[4]);
                sum[5] = fma(float4(high.y), v, sum[5]);
                sum[6] = fma(float4(high.z), v, sum[6]);
                sum[7] = fma(float4(high.w), v, sum[7]);
            }
        }
    }

    const ulong first_item = (ulong(row) * HEADS + head) * p.blocks + block;
    if (simdgroup < heads && lane == 0) stats[first_item + simdgroup * p.blocks] = float2(greatest, total);
    for (uint h = 0; h < GROUP_MAX; h++) {
        if (h < heads) {
            float4 all = sum[h];
            all += float4(simd_shuffle_xor(all.x, 8), simd_shuffle_xor(all.y, 8), simd_shuffle_xor(all.z, 8), simd_shuffle_xor(all.w, 8));
            all += float4(simd_shuffle_xor(all.x, 16), simd_shuffle_xor(all.y, 16), simd_shuffle_xor(all.z, 16), simd_shuffle_xor(all.w, 16));
            if (lane < 8) {
                *reinterpret_cast<device float4*>(sums + (first_item + h * p.blocks) * HEAD_DIM + dimension) = all;
            }
        }
    }
}

// sums, stats: as above; q_gate f32 [rows, heads, 512], gates behind the queries; out f32 [rows, heads * 256].
//
// Grid [2 halves of the dimensions, heads, rows] of 256 threads: simdgroup s takes blocks s, s + 8, ..
kernel void attention_combine(
    device const float* sums [[buffer(0)]],
    device const float2* stats [[buffer(1)]],
    device const float* q_gate [[buffer(2)]],
    device const uint* positions [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant DecodeParams& p [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 partial[SIMDGROUPS * 32];
    threadgroup float greatest_of[SIMDGROUPS];
    threadgroup float total_of[SIMDGROUPS];

    const uint row = group.z;
    const uint tiles = tiles_of(positions[row]);
    const uint blocks = (tiles + block_tiles(tiles) - 1) / block_tiles(tiles);
    const ulong head = ulong(row) * HEADS + group.y;
    const uint dimension = group.x * COLUMNS + lane * 4;
    device const float2* head_stats = stats + head * p.blocks;
    device const float* head_sums = sums + head * p.blocks * HEAD_DIM + dimension;

    float greatest = LOWEST;
    for (uint b = thread_index; b < blocks; b += SIMDGROUPS * 32) greatest = max(greatest, head_stats[b].x);
    greatest = simd_max(greatest);
    if (lane == 0) greatest_of[simdgroup] = greatest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < SIMDGROUPS; i++) greatest = max(greatest, greatest_of[i]);

    float4 sum = float4(0.0f);
    float total = 0.0f;
    for (uint b = simdgroup; b < blocks; b += SIMDGROUPS) {
        const float2 block = head_stats[b];
        const float weight = exact_exp(block.x - greatest);
        total = fma(weight, block.y, total);
        sum = fma(float4(weight), *reinterpret_cast<device const float4*>(head_sums + ulong(b) * HEAD_DIM), sum);
    }
    partial[simdgroup * 32 + lane] = sum;
    if (lane == 0) total_of[simdgroup] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup != 0) return;
    for (uint i = 1; i < SIMDGROUPS; i++) {
        sum += partial[i * 32 + lane];
        total += total_of[i];
    }
    const float4 gate = *reinterpret_cast<device const float4*>(q_gate + head * (2 * HEAD_DIM) + HEAD_DIM + dimension);
    const float4 factor = float4(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
    *reinterpret_cast<device float4*>(out + head * HEAD_DIM + dimension) = sum / total * factor;
}
