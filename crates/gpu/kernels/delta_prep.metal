// What a prefill computes in front of the recurrence: convolution, SiLU, split, norms of q and k, gates; and the window
// that the span's next rows will need.
//
// Grid [heads / 4, rows / 8] of 128 threads, where heads are those of q, then of k, then of v. A head belongs to a
// simdgroup and four channels of it to a lane; the simdgroup takes 8 rows with the last tokens in registers.
#include <metal_stdlib>
using namespace metal;
#include "delta.h"
#include "math.h"
#include "shape.h"
#include "tables.h"

#define TILE_ROWS 8
#define SIMDGROUPS 4

struct DeltaPrepParams {
    uint rows;
};

// Four channels of the token `back` rows before row `index` of a span, from the batch or from the window.
inline float4 token_before(
    device const uint2* qkv, device const uint2* window, uint first_row, uint index, uint back, uint quad) {
    const uint quads = channels() / 4;
    if (back <= index) return bf16_quad(qkv[ulong(first_row + index - back) * quads + quad]);
    return bf16_quad(window[(WINDOW_ROWS + index - back) * quads + quad]);
}

inline uint2 rounded(float4 x) { return uint2(bf16_pair(x.x, x.y), bf16_pair(x.z, x.w)); }

// qkv bf16 [rows, channels]; b, a f32 [rows, value heads]; conv f32 [channels, 4]; a_log, dt_bias f32 [value heads];
// windows bf16 [slots, 3, channels]; q, k bf16 [rows, key heads * 128]; v bf16 [rows, value heads * 128]; beta,
// log_decay f32 [rows, value heads].
kernel void delta_prep(
    device const uint2* qkv [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device const float* a [[buffer(2)]],
    device const float4* conv [[buffer(3)]],
    device const float* a_log [[buffer(4)]],
    device const float* dt_bias [[buffer(5)]],
    device const uint* row_spans [[buffer(6)]],
    device const Span* spans [[buffer(7)]],
    device uint2* windows [[buffer(8)]],
    device uint2* q [[buffer(9)]],
    device uint2* k [[buffer(10)]],
    device uint2* v [[buffer(11)]],
    device float* beta [[buffer(12)]],
    device float* log_decay [[buffer(13)]],
    constant DeltaPrepParams& p [[buffer(14)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint head = group.x * SIMDGROUPS + simdgroup;
    if (head >= 2 * KEY_HEADS + VALUE_HEADS) return;
    const bool is_value = head >= 2 * KEY_HEADS;
    const uint value_head = head - 2 * KEY_HEADS;
    const uint quads = channels() / 4;
    const uint quad = head * (DELTA_DIM / 4) + lane;
    const float4 taps0 = conv[4 * quad], taps1 = conv[4 * quad + 1], taps2 = conv[4 * quad + 2], taps3 = conv[4 * quad + 3];
    const uint first = group.y * TILE_ROWS;
    const uint end = min(first + TILE_ROWS, p.rows);

    if (is_value && first + lane < end) {
        const uint at = (first + lane) * VALUE_HEADS + value_head;
        beta[at] = sigmoid(b[at]);
        log_decay[at] = log_decay_of(a[at], a_log[value_head], dt_bias[value_head]);
    }

    float4 u0 = float4(0.0f), u1 = float4(0.0f), u2 = float4(0.0f), u3 = float4(0.0f);
    for (uint row = first; row < end; row++) {
        const uint span = row_spans[row];
        const uint first_row = spans[span].first_row, index = row - first_row;
        if (row == first || index == 0) {
            device const uint2* window = windows + ulong(spans[span].slot_in) * WINDOW_ROWS * quads;
            u1 = token_before(qkv, window, first_row, index, 3, quad);
            u2 = token_before(qkv, window, first_row, index, 2, quad);
            u3 = token_before(qkv, window, first_row, index, 1, quad);
        }
        u0 = u1;
        u1 = u2;
        u2 = u3;
        u3 = bf16_quad(qkv[ulong(row) * quads + quad]);
        const float4 y = float4(
            conv_silu(taps0, u0.x, u1.x, u2.x, u3.x), conv_silu(taps1, u0.y, u1.y, u2.y, u3.y),
            conv_silu(taps2, u0.z, u1.z, u2.z, u3.z), conv_silu(taps3, u0.w, u1.w, u2.w, u3.w));
        if (is_value) {
            v[ulong(row) * VALUE_HEADS * 32 + value_head * 32 + lane] = rounded(y);
        } else {
            const float scale = l2_scale(simd_sum(y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w));
            if (head < KEY_HEADS) q[ulong(row) * KEY_HEADS * 32 + head * 32 + lane] = rounded(y * (scale * QUERY_SCALE));
            else k[ulong(row) * KEY_HEADS * 32 + (head - KEY_HEADS) * 32 + lane] = rounded(y * scale);
        }
        if (index + 1 == spans[span].rows) {
            // These values were bf16 before, so that rounding them again changes nothing.
            device uint2* window = windows + ulong(spans[span].slot_out) * WINDOW_ROWS * quads + quad;
            window[0] = rounded(u1);
            window[quads] = rounded(u2);
            window[2 * quads] = rounded(u3);
        }
    }
}
