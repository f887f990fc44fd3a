// What expert_qmv_down.cu and expert_qmv_grouped_down.cu share: products of matrix rows in registers with a row of
// activations, in the order of expert_qmv.metal.
#pragma once

#include "layout.cuh"
#include "msl.h"
namespace metal {
#define IN_DIM EXPERT_HIDDEN
#include "metal/quantized.h"
#include "metal/math.h"

constexpr uint WARPS = 8, SPANS = (IN_DIM + SPAN - 1) / SPAN;
constexpr uint COLUMNS = 8;  // matrix rows that a warp holds

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

// 16 consecutive inputs of a lane for each span, and their sums.
struct Values {
    float4 v[SPANS][4];
    float sums[SPANS];

    __forceinline__ void load(const float* x, uint lane) {
#pragma unroll
        for (uint s = 0; s < SPANS; s++) {
            const uint k = s * SPAN + lane * 16;
#pragma unroll
            for (uint j = 0; j < 4; j++) {
                v[s][j] = within(k, IN_DIM) ? reinterpret_cast<const float4*>(x + k)[j] : float4(0.0f);
            }
            const float4 all = (v[s][0] + v[s][1]) + (v[s][2] + v[s][3]);
            sums[s] = (all.x + all.y) + (all.z + all.w);
        }
    }
};

__forceinline__ float dot4(float4 q, float4 x, float sum) {
    return fma(q.w, x.w, fma(q.z, x.z, fma(q.y, x.y, fma(q.x, x.x, sum))));
}

template <uint BITS_OF> __forceinline__ float product(const Row<BITS_OF>& row, const Values& x) {
    float sum = 0.0f;
#pragma unroll
    for (uint s = 0; s < SPANS; s++) {
        float4 q[4];
        unpack_first8(row.packed(s), BITS_OF, q);
        unpack_second8(row.packed(s), BITS_OF, q + 2);
        const float even = dot4(q[2], x.v[s][2], dot4(q[0], x.v[s][0], 0.0f));
        const float odd = dot4(q[3], x.v[s][3], dot4(q[1], x.v[s][1], 0.0f));
        const float scale = __uint_as_float(uint(row.scales[s]) << 16), bias = __uint_as_float(uint(row.biases[s]) << 16);
        sum += fma(scale, even + odd, bias * x.sums[s]);
    }
    return sum;
}
}  // namespace metal
