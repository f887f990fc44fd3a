// Activations and reductions that several kernels share.
#pragma once

// Forms below never overflow, so they hold with fast maths, which takes infinities to be absent.

// e^x, at most a few units in the last place off whatever the maths mode is.
inline float exact_exp(float x) { return precise::exp(x); }

// 1 / (1 + e^-x)
inline float sigmoid(float x) {
    const float e = exact_exp(-fabs(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// x * sigmoid(x)
inline float silu(float x) { return x * sigmoid(x); }

// log(1 + e^x). MSL has no log1p, and log(1 + e) would lose a small e, which the decay of many thousand tokens adds up.
inline float softplus(float x) {
    const float e = exact_exp(-fabs(x));
    const float series = e * (1.0f - e * (0.5f - e * (0.33333333f - e * (0.25f - e * 0.2f))));
    return max(x, 0.0f) + (e < 0.0625f ? series : precise::log(1.0f + e));
}

// Sum of `value` over all threads of a threadgroup of SIMDGROUPS * 32, the same bits in each of them. `partial` has room
// for SIMDGROUPS values; it may be used again at once.
template <uint SIMDGROUPS>
inline float threadgroup_sum(float value, threadgroup float* partial, uint simdgroup, uint lane) {
    const float sum = simd_sum(value);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = partial[0];
    for (uint i = 1; i < SIMDGROUPS; i++) total += partial[i];
    return total;
}

// Two bf16 values of a 32-bit word: the first lies in its lower half.
inline float first_bf16(uint word) { return as_type<float>(word << 16); }
inline float second_bf16(uint word) { return as_type<float>(word & 0xffff0000u); }

// Two values, rounded, as such a word.
inline uint bf16_pair(float first, float second) {
    return uint(as_type<ushort>(bfloat(first))) | (uint(as_type<ushort>(bfloat(second))) << 16);
}

// Four bf16 values.
inline float4 bf16_quad(uint2 words) {
    return float4(first_bf16(words.x), second_bf16(words.x), first_bf16(words.y), second_bf16(words.y));
}
