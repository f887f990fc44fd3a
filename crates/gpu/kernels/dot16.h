// Dot products of 16 values with a piece of a quantised matrix row.
#pragma once
#include "quantized.h"

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

// Dot product of `x` with the 16 values that lie `offset` values behind the start of a matrix row; all three arrays
// point to that row. `bits` is a constant of the pipeline.
inline float dot16(device const uint* packed, device const bfloat* scales, device const bfloat* biases, uint offset,
                   uint bits, thread const Values16& x) {
    const uint4 words = load_packed16(packed, offset, bits);
    float4 q[4];
    unpack_first8(words, bits, q);
    unpack_second8(words, bits, q + 2);
    const float even = dot4(q[2], x.v[2], dot4(q[0], x.v[0], 0.0f));
    const float odd = dot4(q[3], x.v[3], dot4(q[1], x.v[1], 0.0f));
    return fma(float(scales[offset / GROUP]), even + odd, float(biases[offset / GROUP]) * x.sum);
}
