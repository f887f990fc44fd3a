// What both forms of Gated DeltaNet, step and chunks, compute in front of the recurrence.
#pragma once
#include "math.h"
#include "shape.h"

#define L2_NORM_EPS 1e-6f           // added to the sum of squares, not to their mean
#define QUERY_SCALE 0.08838834764831845f  // 1 / sqrt(DELTA_DIM)
#define WINDOW_ROWS (CONV_TAPS - 1)

// Channels of a row before the convolution: queries, keys, values.
inline uint key_width() { return KEY_HEADS * DELTA_DIM; }
inline uint channels() { return (2 * KEY_HEADS + VALUE_HEADS) * DELTA_DIM; }

// Key head of a value head: consecutive value heads share one.
inline uint key_head_of(uint value_head) { return value_head / (VALUE_HEADS / KEY_HEADS); }

// Causal convolution of one channel, then SiLU; `u3` is the newest token's.
inline float conv_silu(float4 taps, float u0, float u1, float u2, float u3) {
    return silu(fma(taps.w, u3, fma(taps.z, u2, fma(taps.y, u1, taps.x * u0))));
}

// Factor that makes a vector with this sum of squares one of unit length.
inline float l2_scale(float squares) { return precise::rsqrt(squares + L2_NORM_EPS); }

// Logarithm of the decay: -e^A_log * softplus(a + dt_bias).
inline float log_decay_of(float a, float a_log, float dt_bias) {
    return -exact_exp(a_log) * softplus(a + dt_bias);
}
