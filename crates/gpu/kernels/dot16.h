// Dot products of 16 values with a piece of a quantised matrix row.
#pragma once
#include "quantized.h"
#include "shape.h"

// 16 consecutive inputs of a lane, and their sum, which the bias of a group multiplies.
struct Values16 {
    float4 v[4];
    float sum;
};

inline float sum16(thread const Values16& x) {
    const float4 s = (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]);
    return (s.x + s.y) + (s.z + s.w);
}

// The 16 values at `x`, which is 16-byte aligned.
inline Values16 load16(device const float* x) {
    Values16 values;
    for (uint j = 0; j < 4; j++) values.v[j] = reinterpret_cast<device const float4*>(x)[j];
    values.sum = sum16(values);
    return values;
}

inline float dot4(float4 q, float4 x, float sum) {
    return fma(q.w, x.w, fma(q.z, x.z, fma(q.y, x.y, fma(q.x, x.x, sum))));
}

inline float4 nibbles4(uint w) {
    return float4(float(w & 15u), float(w >> 4 & 15u), float(w >> 8 & 15u), float(w >> 12 & 15u));
}

inline float4 bytes4(uint w) {
    return float4(float(w & 255u), float(w >> 8 & 255u), float(w >> 16 & 255u), float(w >> 24));
}

// Dot product of `x` with the 16 values that lie `offset` values behind the start of a matrix row; all three arrays
// point to that row. `bits` is a constant of the pipeline.
inline float dot16(device const uint* packed, device const bfloat* scales, device const bfloat* biases, uint offset,
                   uint bits, thread const Values16& x) {
    float even = 0.0f, odd = 0.0f;
    if (bits == 4) {
        const uint2 w = *reinterpret_cast<device const uint2*>(packed + offset / 8);
        even = dot4(nibbles4(w.y), x.v[2], dot4(nibbles4(w.x), x.v[0], even));
        odd = dot4(nibbles4(w.y >> 16), x.v[3], dot4(nibbles4(w.x >> 16), x.v[1], odd));
    } else {
        const uint4 w = *reinterpret_cast<device const uint4*>(packed + offset / 4);
        even = dot4(bytes4(w.z), x.v[2], dot4(bytes4(w.x), x.v[0], even));
        odd = dot4(bytes4(w.w), x.v[3], dot4(bytes4(w.y), x.v[1], odd));
    }
    return fma(float(scales[offset / GROUP]), even + odd, float(biases[offset / GROUP]) * x.sum);
}

// Words of `values` values.
inline size_t words_of(size_t values, uint bits) { return values / (32 / bits); }
