// RMS norm of rows: x / sqrt(mean(x^2) + eps) * scale.
#include <metal_stdlib>
using namespace metal;
#include "math.h"

constant uint IN_DIM [[function_constant(17)]];  // a multiple of 4

#define SIMDGROUPS 8
#define CACHED 4  // quadruples of a thread that stay in registers: rows of up to 4096 are read once

struct NormParams { float eps; };

template <typename Out>
inline void store4(device Out* to, float4 value) {
    to[0] = Out(value.x);
    to[1] = Out(value.y);
    to[2] = Out(value.z);
    to[3] = Out(value.w);
}

template <typename Out>
kernel void rms_norm(
    device const float* x [[buffer(0)]],
    device const float* scale [[buffer(1)]],
    device Out* out [[buffer(2)]],
    constant NormParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partial[SIMDGROUPS];
    device const float4* in = reinterpret_cast<device const float4*>(x + size_t(row) * IN_DIM);
    device const float4* factors = reinterpret_cast<device const float4*>(scale);
    float4 cached[CACHED];
    float squares = 0.0f;
    for (uint i = 0; i < CACHED; i++) {
        const uint at = i * SIMDGROUPS * 32 + thread_index;
        cached[i] = at < IN_DIM / 4 ? in[at] : float4(0.0f);
        squares += dot(cached[i], cached[i]);
    }
    for (uint at = CACHED * SIMDGROUPS * 32 + thread_index; at < IN_DIM / 4; at += SIMDGROUPS * 32) {
        const float4 value = in[at];
        squares += dot(value, value);
    }
    squares = threadgroup_sum<SIMDGROUPS>(squares, partial, simdgroup, lane);
    const float factor = precise::rsqrt(squares / float(IN_DIM) + p.eps);
    device Out* to = out + size_t(row) * IN_DIM;
    for (uint i = 0; i < CACHED; i++) {
        const uint at = i * SIMDGROUPS * 32 + thread_index;
        if (at < IN_DIM / 4) store4(to + at * 4, cached[i] * factor * factors[at]);
    }
    for (uint at = CACHED * SIMDGROUPS * 32 + thread_index; at < IN_DIM / 4; at += SIMDGROUPS * 32) {
        store4(to + at * 4, in[at] * factor * factors[at]);
    }
}

template [[host_name("rms_norm_f32")]] [[kernel]] decltype(rms_norm<float>) rms_norm<float>;
template [[host_name("rms_norm_bf16")]] [[kernel]] decltype(rms_norm<bfloat>) rms_norm<bfloat>;
