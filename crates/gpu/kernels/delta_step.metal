// One decode step of Gated DeltaNet: convolution, SiLU, norms of q and k, gates, recurrence.
//
// Grid [4 column blocks, value heads, spans] of 128 threads. A threadgroup holds [128 keys, 32 value columns] of one head's
// state in registers and takes the span's rows one after the other. Lanes of a simdgroup are 4 keys x 8 columns of four, so
// that each load of the state is 4 lines of 128 bytes; simdgroup s has keys 32 s ..= 32 s + 31. Since
// (e^g S + k w^T)^T q = e^g S^T q + (k . q) w, one pass over the state gives both reads, and one reduction both sums.
//
// Every block of a head convolves all of its q and k again: 2 x 128 channels, against 16 KiB of state.
#include <metal_stdlib>
using namespace metal;
#include "delta.h"
#include "math.h"
#include "shape.h"
#include "tables.h"

#define THREADS 128
#define SIMDGROUPS 4
#define COLUMNS 32      // value columns of a threadgroup
#define LANE_KEYS 8     // keys of a lane

// The last four tokens of one channel, oldest first.
struct Taps {
    float4 weights;
    float u0, u1, u2, u3;
};

inline void start(thread Taps& t, uint channel, device const float4* conv, device const bfloat* window) {
    t.weights = conv[channel];
    t.u1 = float(window[channel]);
    t.u2 = float(window[channels() + channel]);
    t.u3 = float(window[2 * channels() + channel]);
    t.u0 = 0.0f;
}

inline float next(thread Taps& t, float u) {
    t.u0 = t.u1;
    t.u1 = t.u2;
    t.u2 = t.u3;
    t.u3 = u;
    return conv_silu(t.weights, t.u0, t.u1, t.u2, t.u3);
}

inline void keep(thread const Taps& t, uint channel, device bfloat* window) {
    window[channel] = bfloat(t.u1);
    window[channels() + channel] = bfloat(t.u2);
    window[2 * channels() + channel] = bfloat(t.u3);
}

// Sum over the four lanes that have the same columns.
inline float sum_over_keys(float value) {
    value += simd_shuffle_xor(value, 8);
    return value + simd_shuffle_xor(value, 16);
}

inline float4 sum_over_keys(float4 v) {
    return float4(sum_over_keys(v.x), sum_over_keys(v.y), sum_over_keys(v.z), sum_over_keys(v.w));
}

// qkv bf16 [rows, channels]; b, a f32 [rows, value heads]; conv f32 [channels, 4]; a_log, dt_bias f32 [value heads];
// states f32 [slots, value heads, 128, 128]; windows bf16 [slots, 3, channels]; out f32 [rows, value heads * 128].
kernel void delta_step(
    device const bfloat* qkv [[buffer(0)]],
    device const float* b [[buffer(1)]],
    device const float* a [[buffer(2)]],
    device const float4* conv [[buffer(3)]],
    device const float* a_log [[buffer(4)]],
    device const float* dt_bias [[buffer(5)]],
    device const Span* spans [[buffer(6)]],
    device const uint* checkpoints [[buffer(7)]],
    device float* states [[buffer(8)]],
    device bfloat* windows [[buffer(9)]],
    device float* out [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float queries[DELTA_DIM];
    threadgroup float keys[DELTA_DIM];
    threadgroup float values[COLUMNS];
    threadgroup float sums[3 * SIMDGROUPS];          // of q q, k k, q k
    // S^T k and S^T q of each simdgroup's keys. Of float4, for an array of float may lie at any multiple of 4 bytes.
    threadgroup float4 read[2 * SIMDGROUPS * COLUMNS / 4];

    const uint block = group.x, head = group.y, span = group.z;
    const uint first_row = spans[span].first_row, rows = spans[span].rows;
    const uint slot_in = spans[span].slot_in, slot_out = spans[span].slot_out;
    const uint first_checkpoint = spans[span].first_checkpoint;
    const bool keeps_checkpoints = spans[span].checkpoints != 0;

    // The state comes first: its loads are the long ones, and the convolution below goes on while they are under way.
    const uint first_key = simdgroup * 32 + lane / 8;  // its keys are 4 apart
    const uint column = block * COLUMNS + lane % 8 * 4;
    const uint head_offset = (head * DELTA_DIM + first_key) * DELTA_DIM + column;
    const ulong slot_length = ulong(VALUE_HEADS) * DELTA_DIM * DELTA_DIM;
    float4 state[LANE_KEYS];
    device const float* before = states + slot_in * slot_length + head_offset;
    for (uint i = 0; i < LANE_KEYS; i++) {
        state[i] = *reinterpret_cast<device const float4*>(before + i * 4 * DELTA_DIM);
    }

    // Thread t has channel t of the key head's q and k, and threads of simdgroup 0 have one of the block's values.
    const uint key_head = key_head_of(head);
    const uint q_channel = key_head * DELTA_DIM + thread_index;
    const uint k_channel = key_width() + q_channel;
    const uint v_channel = 2 * key_width() + head * DELTA_DIM + block * COLUMNS + lane;
    // Value heads share q and k: the first one's first block moves their window on.
    const bool keeps_keys = block == 0 && head == key_head * (VALUE_HEADS / KEY_HEADS);
    const ulong window_length = ulong(WINDOW_ROWS) * channels();
    Taps q_taps, k_taps, v_taps;
    start(q_taps, q_channel, conv, windows + slot_in * window_length);
    start(k_taps, k_channel, conv, windows + slot_in * window_length);
    start(v_taps, v_channel, conv, windows + slot_in * window_length);

    for (uint i = 0; i < rows; i++) {
        const uint row = first_row + i;
        device const bfloat* u = qkv + ulong(row) * channels();
        const float q = next(q_taps, float(u[q_channel]));
        const float k = next(k_taps, float(u[k_channel]));
        const float v = next(v_taps, float(u[v_channel]));
        const float decay = exact_exp(log_decay_of(a[row * VALUE_HEADS + head], a_log[head], dt_bias[head]));
        const float beta = sigmoid(b[row * VALUE_HEADS + head]);

        const float qq = simd_sum(q * q), kk = simd_sum(k * k), qk = simd_sum(q * k);
        threadgroup_barrier(mem_flags::mem_threadgroup);  // the row before is done with what follows
        queries[thread_index] = q;
        keys[thread_index] = k;
        if (simdgroup == 0) values[lane] = v;
        if (lane == 0) {
            sums[simdgroup] = qq;
            sums[SIMDGROUPS + simdgroup] = kk;
            sums[2 * SIMDGROUPS + simdgroup] = qk;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Reads of the old state, with q and k as they are before their norms.
        float4 k_read = float4(0.0f), q_read = float4(0.0f);
        for (uint j = 0; j < LANE_KEYS; j++) {
            k_read = fma(float4(keys[first_key + 4 * j]), state[j], k_read);
            q_read = fma(float4(queries[first_key + 4 * j]), state[j], q_read);
        }
        k_read = sum_over_keys(k_read);
        q_read = sum_over_keys(q_read);
        if (lane < 8) {
            read[simdgroup * 8 + lane] = k_read;
            read[(SIMDGROUPS + simdgroup) * 8 + lane] = q_read;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        float squares[3];
        for (uint s = 0; s < 3; s++) {
            squares[s] = (sums[4 * s] + sums[4 * s + 1]) + (sums[4 * s + 2] + sums[4 * s + 3]);
        }
        const float q_scale = l2_scale(squares[0]) * QUERY_SCALE, k_scale = l2_scale(squares[1]);
        const uint quad = lane % 8;
        k_read = (read[quad] + read[8 + quad]) + (read[16 + quad] + read[24 + quad]);
        q_read = (read[32 + quad] + read[40 + quad]) + (read[48 + quad] + read[56 + quad]);
        const float4 value = float4(values[4 * quad], values[4 * quad + 1], values[4 * quad + 2], values[4 * quad + 3]);
        const float4 written = beta * (value - decay * k_scale * k_read);
        for (uint j = 0; j < LANE_KEYS; j++) {
            state[j] = fma(float4(k_scale * keys[first_key + 4 * j]), written, decay * state[j]);
        }
        if (simdgroup == 0 && lane < 8) {
            const float4 o = decay * q_scale * q_read + squares[2] * k_scale * q_scale * written;
            *reinterpret_cast<device float4*>(out + ulong(row) * VALUE_HEADS * DELTA_DIM + head * DELTA_DIM + column) = o;
        }

        // State and window after the row: the span's own slot after the last one, a checkpoint after each other.
        const bool last = i + 1 == rows;
        if (last || keeps_checkpoints) {
            const uint slot = last ? slot_out : checkpoints[first_checkpoint + i];
            device float* after = states + slot * slot_length + head_offset;
            for (uint j = 0; j < LANE_KEYS; j++) {
                *reinterpret_cast<device float4*>(after + j * 4 * DELTA_DIM) = state[j];
            }
            device bfloat* window = windows + slot * window_length;
            if (keeps_keys) {
                keep(q_taps, q_channel, window);
                keep(k_taps, k_channel, window);
            }
            if (simdgroup == 0) keep(v_taps, v_channel, window);
        }
    }
}
