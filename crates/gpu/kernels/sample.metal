// The draw of a token from the most likely ones. `calla_ops::sample` is the definition, with the same draws; there
// weights are f64, here pairs of f32.
#include <metal_stdlib>
using namespace metal;
#include "float_pair.h"
#include "sampler.h"

inline ulong mix(ulong z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
    return z ^ (z >> 31);
}

// exp(difference / temperature), for what is not above 0.
inline FloatPair weight_of(float difference, float temperature) {
    const float exponent = difference / temperature;
    // Nothing that can be told from 0 beside the largest weight, which is 1.
    if (!(exponent > -80.0f)) return float_pair(0.0f, 0.0f);
    const float rest = fma(-exponent, temperature, difference) / temperature;
    return pair_exp(ordered_sum(exponent, rest));
}

// Chooses a token of each row's candidates, which lie in order of their logits.
kernel void sample(
    device const float* logits [[buffer(0)]],
    device const uint* tokens [[buffer(1)]],
    device const Sampler* samplers [[buffer(2)]],
    device uint* out [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float differences[CANDIDATES];
    threadgroup uint ids[CANDIDATES];
    threadgroup float weights[CANDIDATES];
    threadgroup float weight_rests[CANDIDATES];
    threadgroup uint sorted[CANDIDATES];
    device const Sampler* sampler = samplers + row;
    logits += row * CANDIDATES;
    tokens += row * CANDIDATES;
    const float temperature = sampler->temperature;
    const float difference = logits[thread_index] - logits[0];
    const uint token = tokens[thread_index];
    differences[thread_index] = difference;
    ids[thread_index] = token;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // What lies equally far below the largest, rounded, is equally likely: then the lower token comes first.
    uint rank = 0;
    for (uint i = 0; i < CANDIDATES; i++) {
        const bool other_is_none = ids[i] == NO_TOKEN, is_none = token == NO_TOKEN;
        const bool before = differences[i] > difference || (differences[i] == difference && ids[i] < token);
        rank += (other_is_none == is_none ? (is_none ? i < thread_index : before) : is_none) ? 1u : 0u;
    }
    sorted[rank] = token;
    FloatPair weight = float_pair(0.0f, 0.0f);
    if (token != NO_TOKEN && temperature > 0.0f) weight = weight_of(difference, temperature);
    weights[rank] = weight.hi;
    weight_rests[rank] = weight.lo;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index > 0) return;

    uint chosen = sorted[0];
    if (temperature > 0.0f && chosen != NO_TOKEN) {
        uint count = min(sampler->top_k, uint(CANDIDATES));
        while (count > 1 && sorted[count - 1] == NO_TOKEN) count--;
        const FloatPair zero = float_pair(0.0f, 0.0f), min_p = float_pair(sampler->min_p, 0.0f);
        const float top_p = sampler->top_p;
        if (top_p < 1.0f) {
            FloatPair total = zero, sum = zero;
            for (uint i = 0; i < count; i++) total = pair_sum(total, float_pair(weights[i], weight_rests[i]));
            const FloatPair enough = pair_product(total, float_pair(top_p, 0.0f));
            for (uint i = 0; i < count; i++) {
                sum = pair_sum(sum, float_pair(weights[i], weight_rests[i]));
                if (!pair_less(sum, enough)) count = i + 1;
            }
        }
        // The largest weight is 1, and the others are in order.
        while (count > 1 && pair_less(float_pair(weights[count - 1], weight_rests[count - 1]), min_p)) count--;

        const ulong step = 0x9e3779b97f4a7c15ul;
        const ulong seed = ulong(sampler->seed_high) << 32 | ulong(sampler->seed_low);
        const ulong counter = ulong(sampler->counter_high) << 32 | ulong(sampler->counter_low);
        const ulong bits = mix(mix(seed + step) + counter * step) >> 11;
        // 53 bits behind the point: 24 that a float holds, and the others.
        const float high = float(uint(bits >> 29)) * 5.9604644775390625e-8f;
        const float low = float(uint(bits) & 0x1fffffffu) * 1.1102230246251565e-16f;
        FloatPair total = zero;
        for (uint i = 0; i < count; i++) total = pair_sum(total, float_pair(weights[i], weight_rests[i]));
        FloatPair rest = pair_product(exact_sum(high, low), total);
        chosen = sorted[count - 1];
        // Only rounding can leave a rest: then it is the last.
        for (uint i = 0; i < count; i++) {
            rest = pair_sum(rest, float_pair(-weights[i], -weight_rests[i]));
            if (rest.hi < 0.0f) {
                chosen = sorted[i];
                break;
            }
        }
    }
    out[row] = chosen;
}
