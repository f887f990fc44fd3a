// Products of one row with 4- and 8-bit matrices. A warp computes two outputs and loads all of their matrix rows before
// the input is even known: so many bytes are under way, and that is what keeps this chip's memory busy. What is summed in
// which order is as in qmv.metal, so that a row's results are the same bits whatever the number of rows.
#pragma once
#include "layout.cuh"
#include "msl.h"
namespace metal {
#include "metal/quantized.h"
#include "metal/math.h"
#include "metal/family.h"

constexpr uint WARPS = 8, OUTPUTS = 2, SPANS = (IN_DIM + SPAN - 1) / SPAN;
constexpr uint BLOCKS = SPANS > 4 ? 2 : 3;  // that share a multiprocessor's registers
constexpr uint NORM_RMS = 1, NORM_GATED = 2;

struct Input {
    const float* x;
    const float* scale;
    const float* z;
    float eps;
};

// 16 values a lane of each span of a matrix row.
template <uint BITS_OF> struct Row {
    uint words[SPANS][BITS_OF / 2];
    ushort scales[SPANS], biases[SPANS];

    __forceinline__ void load(const uint* packed, const bfloat* all_scales, const bfloat* all_biases, uint row, uint lane) {
        const size_t first = size_t(row) * IN_DIM;
        packed += packed_words(first, BITS_OF);
        all_scales += first / GROUP, all_biases += first / GROUP;
#pragma unroll
        for (uint s = 0; s < SPANS; s++) {
            const uint k = s * SPAN + lane * 16;
            const bool there = within(k, IN_DIM);
            if (BITS_OF == 4) {
                const uint2 loaded = there ? *reinterpret_cast<const uint2*>(packed + k / 8) : uint2(0u);
                words[s][0] = loaded.x, words[s][1] = loaded.y;
            } else {
                const uint4 loaded = there ? *reinterpret_cast<const uint4*>(packed + k / 4) : uint4(0u);
                words[s][0] = loaded.x, words[s][1] = loaded.y, words[s][BITS_OF / 2 - 2] = loaded.z, words[s][BITS_OF / 2 - 1] = loaded.w;
            }
            scales[s] = there ? all_scales[k / GROUP].bits : 0;
            biases[s] = there ? all_biases[k / GROUP].bits : 0;
        }
    }

    __forceinline__ uint4 packed(uint s) const {
        if (BITS_OF == 4) return uint4(words[s][0], words[s][1], 0u, 0u);
        return uint4(words[s][0], words[s][1], words[s][BITS_OF / 2 - 2], words[s][BITS_OF / 2 - 1]);
    }
};

__forceinline__ float dot8(const float4* q, float4 x0, float4 x1) {
    float sum = q[0].x * x0.x;
    sum = fma(q[0].y, x0.y, sum);
    sum = fma(q[0].z, x0.z, sum);
    sum = fma(q[0].w, x0.w, sum);
    sum = fma(q[1].x, x1.x, sum);
    sum = fma(q[1].y, x1.y, sum);
    sum = fma(q[1].z, x1.z, sum);
    return fma(q[1].w, x1.w, sum);
}

// Adds a span's products with the input, of which `x` is the lane's first quadruple.
template <uint BITS_OF> __forceinline__ float add_span(const Row<BITS_OF>& row, uint s, const float4* x, float sum) {
    const uint4 packed = row.packed(s);
    const float scale = __uint_as_float(uint(row.scales[s]) << 16), bias = __uint_as_float(uint(row.biases[s]) << 16);
#pragma unroll
    for (uint half = 0; half < 2; half++) {
        float4 q[2];
        if (half == 0) unpack_first8(packed, BITS_OF, q);
        else unpack_second8(packed, BITS_OF, q);
        const float4 x0 = x[half * 64], x1 = x[half * 64 + 32];
        const float4 pairs = x0 + x1;
        const float all = (pairs.x + pairs.y) + (pairs.z + pairs.w);
        sum = fma(bias, all, fma(scale, dot8(q, x0, x1), sum));
    }
    return sum;
}

// Both outputs of the warp, in all of its lanes.
template <uint BITS_A, uint BITS_B>
__forceinline__ float2 multiply(const Input& in, const Row<BITS_A>& a, const Row<BITS_B>& b) {
    __shared__ float4 tile[SPANS * SPAN / 4];
    __shared__ float dots[SPANS][128];
    __shared__ float partial[4];
    const uint at = threadIdx.x % 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (uint s = threadIdx.x / 128; s < SPANS; s += WARPS * 32 / 128) {
        const uint k = s * SPAN + at * 4;
        const bool there = within(k, IN_DIM);
        float4 value = float4(0.0f);
        if (there) value = *reinterpret_cast<const float4*>(in.x + k);
        if (NORM == NORM_RMS) {
            dots[s][at] = dot(value, value);
            if (there) value = value * *reinterpret_cast<const float4*>(in.scale + k);
        }
        if (NORM == NORM_GATED) {
            // A warp has the 128 values of a head.
            const float mean = simd_sum(dot(value, value)) / float(DELTA_DIM);
            const float4 scale = *reinterpret_cast<const float4*>(in.scale + k % DELTA_DIM);
            value = value * precise::rsqrt(mean + in.eps) * scale;
            if (there) {
                const float4 z = *reinterpret_cast<const float4*>(in.z + k);
                value = value * float4(silu(z.x), silu(z.y), silu(z.z), silu(z.w));
            }
        }
        tile[s * (SPAN / 4) + (at & 3) * 32 + at / 4] = value;
    }
    __syncthreads();
    if (NORM == NORM_RMS && warp < 4) {
        float squares = 0.0f;
#pragma unroll
        for (uint s = 0; s < SPANS; s++) squares += dots[s][at];
        squares = simd_sum(squares);
        if (lane == 0) partial[warp] = squares;
    }
    float sum_a = 0.0f, sum_b = 0.0f;
#pragma unroll
    for (uint s = 0; s < SPANS; s++) {
        const float4* x = tile + s * (SPAN / 4) + lane;
        sum_a = add_span(a, s, x, sum_a);
        sum_b = add_span(b, s, x, sum_b);
    }
    float factor = 1.0f;
    if (NORM == NORM_RMS) {
        __syncthreads();
        factor = precise::rsqrt(((partial[0] + partial[1]) + (partial[2] + partial[3])) / float(IN_DIM) + in.eps);
    }
    return float2(simd_sum(sum_a) * factor, simd_sum(sum_b) * factor);
}
}  // namespace metal
