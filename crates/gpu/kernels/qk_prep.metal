// Norm and rotary embedding of queries and keys; keys and values go to their pages.
//
// Grid [groups of 4 heads, rows] of 128 threads: each simdgroup takes one head of 256, queries first, then keys, then
// values. A lane has pairs of neighbours, 64 apart, so that each load is contiguous and the rotated dimensions 0 .. 64
// are the first pair of all lanes: lane l holds 2 l and 2 l + 1, whose partners, 32 further on, lane l ^ 16 holds.
#include <metal_stdlib>
using namespace metal;
#include "math.h"
#include "pages.h"
#include "shape.h"
#include "tables.h"

#define SIMDGROUPS 4
#define PAIRS (HEAD_DIM / 64)
#define FREQUENCIES (ROTARY_DIM / 2)
#define FINE 512  // positions of the fine table

struct QkPrepParams { float eps; };

inline float2 load_pair(device const float* at) { return *reinterpret_cast<device const float2*>(at); }
inline float2 load_pair(device const bfloat* at) {
    const uint word = *reinterpret_cast<device const uint*>(at);
    return float2(first_bf16(word), second_bf16(word));
}
inline void store_pair(device float* at, float2 pair) { *reinterpret_cast<device float2*>(at) = pair; }
inline void store_pair(device bfloat* at, float2 pair) {
    *reinterpret_cast<device uint*>(at) = bf16_pair(pair.x, pair.y);
}

// q_gate [rows, heads, 512], k and v [rows, kv heads * 256]; norms f32 [256]; coarse and fine f32 [.., cosines and sines of
// 32 frequencies]; keys, values: the pool. q [rows, heads * 256].
template <typename T>
kernel void qk_prep(
    device const T* q_gate [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const float* q_norm [[buffer(3)]],
    device const float* k_norm [[buffer(4)]],
    device const float* coarse [[buffer(5)]],
    device const float* fine [[buffer(6)]],
    device const uint* positions [[buffer(7)]],
    device const uint* row_spans [[buffer(8)]],
    device const Span* spans [[buffer(9)]],
    device const uint* pages [[buffer(10)]],
    device bfloat* keys [[buffer(11)]],
    device bfloat* values [[buffer(12)]],
    device T* q [[buffer(13)]],
    constant QkPrepParams& p [[buffer(14)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint head = group.x * SIMDGROUPS + simdgroup, row = group.y;
    if (head >= HEADS + 2 * KV_HEADS) return;
    const bool is_query = head < HEADS, is_value = head >= HEADS + KV_HEADS;
    const uint kv_head = is_query ? 0 : (head - HEADS) % KV_HEADS;
    const uint position = positions[row];

    float2 x[PAIRS];
    for (uint i = 0; i < PAIRS; i++) {
        const uint at = 64 * i + 2 * lane;
        if (is_query) {
            x[i] = load_pair(q_gate + (ulong(row) * HEADS + head) * (2 * HEAD_DIM) + at);
        } else if (is_value) {
            x[i] = load_pair(v + (ulong(row) * KV_HEADS + kv_head) * HEAD_DIM + at);
        } else {
            x[i] = load_pair(k + (ulong(row) * KV_HEADS + kv_head) * HEAD_DIM + at);
        }
    }

    if (!is_value) {
        float squares = 0.0f;
        for (uint i = 0; i < PAIRS; i++) squares += dot(x[i], x[i]);
        const float factor = precise::rsqrt(simd_sum(squares) / float(HEAD_DIM) + p.eps);
        device const float* norm = is_query ? q_norm : k_norm;
        for (uint i = 0; i < PAIRS; i++) x[i] = x[i] * factor * load_pair(norm + 64 * i + 2 * lane);

        // The angle of position 512 a + b is the sum of both tables' angles.
        device const float* far = coarse + position / FINE * ROTARY_DIM + 2 * lane % FREQUENCIES;
        device const float* near = fine + position % FINE * ROTARY_DIM + 2 * lane % FREQUENCIES;
        const float2 far_cos = load_pair(far), far_sin = load_pair(far + FREQUENCIES);
        const float2 near_cos = load_pair(near), near_sin = load_pair(near + FREQUENCIES);
        const float2 cosine = far_cos * near_cos - far_sin * near_sin;
        const float2 sine = far_sin * near_cos + far_cos * near_sin;
        const float2 partner = float2(simd_shuffle_xor(x[0].x, 16), simd_shuffle_xor(x[0].y, 16));
        x[0] = x[0] * cosine + (lane < 16 ? -partner : partner) * sine;
    }

    if (is_query) {
        for (uint i = 0; i < PAIRS; i++) {
            store_pair(q + (ulong(row) * HEADS + head) * HEAD_DIM + 64 * i + 2 * lane, x[i]);
        }
    } else {
        const uint page = pages[spans[row_spans[row]].first_page + position / PAGE_TOKENS];
        const ulong at = tile_of_page(page, kv_head) + position % PAGE_TOKENS * HEAD_DIM + 2 * lane;
        for (uint i = 0; i < PAIRS; i++) {
            if (is_value) store_pair(values + at + 64 * i, x[i]);
            else store_pair(keys + at + 64 * i, x[i]);
        }
    }
}

template [[host_name("qk_prep_f32")]] [[kernel]] decltype(qk_prep<float>) qk_prep<float>;
template [[host_name("qk_prep_bf16")]] [[kernel]] decltype(qk_prep<bfloat>) qk_prep<bfloat>;
