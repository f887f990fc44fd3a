// x[row] += sum over ranks of weight * (down of its expert) acts[row, rank]
//           + sigmoid(shared_gate[row]) * shared_down shared_acts[row]
// The twin of expert_qmv.metal's expert_qmv_down, with its division of the work. Only loads come earlier: those of the
// shared expert first, as they depend on nothing, then all of a rank's columns.
#include "layout.cuh"
#include "msl.h"
namespace metal {
#define IN_DIM EXPERT_HIDDEN
#include "metal/quantized.h"
#include "metal/math.h"

constexpr uint WARPS = 8, SPANS = (IN_DIM + SPAN - 1) / SPAN;

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

constexpr uint COLUMNS = 8;

// Grid [tiles of 8 outputs, rows].
extern "C" __global__ void __launch_bounds__(256, 2) ENTRY(
    const float4* acts, const uint* experts, const float* weights, const float4* shared_acts, const float* shared_gate,
    const uint4* down, const bfloat* down_scales, const bfloat* down_biases, const uint4* shared_down,
    const bfloat* shared_scales, const bfloat* shared_biases, float* x) {
    __shared__ float partial[(TOP_K + 1) * COLUMNS];
    const uint lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y, column = blockIdx.x * COLUMNS;
    start_next();
    Row<OTHER_BITS> shared;
    shared.load(reinterpret_cast<const uint*>(shared_down), shared_scales, shared_biases, column + warp, lane);
    wait_for_previous();
    for (uint rank = warp; rank < TOP_K; rank += WARPS) {
        const size_t pair = size_t(row) * TOP_K + rank;
        const uint first = experts[pair] * HIDDEN + column;
        Row<BITS> rows[COLUMNS];
#pragma unroll
        for (uint i = 0; i < COLUMNS; i++) {
            rows[i].load(reinterpret_cast<const uint*>(down), down_scales, down_biases, first + i, lane);
        }
        Values values;
        values.load(reinterpret_cast<const float*>(acts) + pair * EXPERT_HIDDEN, lane);
#pragma unroll
        for (uint i = 0; i < COLUMNS; i++) {
            const float sum = simd_sum(product(rows[i], values));
            if (lane == i) partial[rank * COLUMNS + i] = sum;
        }
    }
    Values values;
    values.load(reinterpret_cast<const float*>(shared_acts) + size_t(row) * SHARED_HIDDEN, lane);
    const float sum = simd_sum(product(shared, values));
    if (lane == 0) partial[TOP_K * COLUMNS + warp] = sum;
    __syncthreads();
    if (threadIdx.x < COLUMNS) {
        float total = 0.0f;
#pragma unroll
        for (uint rank = 0; rank < TOP_K; rank++) {
            total = fma(weights[row * TOP_K + rank], partial[rank * COLUMNS + threadIdx.x], total);
        }
        total = fma(sigmoid(shared_gate[row]), partial[TOP_K * COLUMNS + threadIdx.x], total);
        const size_t element = size_t(row) * HIDDEN + column + threadIdx.x;
        x[element] = x[element] + total;
    }
}
}  // namespace metal
LAYOUT_OF(metal::ENTRY);
