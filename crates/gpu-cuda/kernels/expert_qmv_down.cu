// x[row] += sum over ranks of weight * (down of its expert) acts[row, rank]
//           + sigmoid(shared_gate[row]) * shared_down shared_acts[row]
// The twin of expert_qmv.metal's expert_qmv_down, with its division of the work. Only loads come earlier: those of the
// shared expert first, as they depend on nothing, then all of a rank's columns.
#include "expert_qmv_down.cuh"
namespace metal {

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
