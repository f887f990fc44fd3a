// out[pair] = (down of its expert) acts[pair], shared_out[row] = shared_down shared_acts[row]: the twin of
// expert_qmv_grouped.metal's expert_qmv_grouped_down. A warp holds some columns while it takes the pairs, two at a time, and
// loads the next columns meanwhile.
#include "expert_pairs.cuh"
#include "expert_qmv_down.cuh"
namespace metal {

constexpr uint COLUMNS_OF_PASS = WARPS * COLUMNS;

// A warp's columns of `out` = acts * matrix for some rows, of which `row(n)` is the n-th: where it lies in both.
template <uint BITS_OF, typename At>
__forceinline__ void multiply(const uint* packed, const bfloat* scales, const bfloat* biases, uint first_row, const float* acts,
                              uint width, uint count, const At& row, float* out) {
    const uint lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto load = [&](Row<BITS_OF> (&rows)[COLUMNS], uint column) {
#pragma unroll
        for (uint i = 0; i < COLUMNS; i++) {
            rows[i].load(packed, scales, biases, first_row + column + warp * COLUMNS + i, lane);
        }
    };
    Row<BITS_OF> rows[COLUMNS];
    uint column = blockIdx.x * COLUMNS_OF_PASS;
    load(rows, column);
    while (true) {
        const uint next_column = column + gridDim.x * COLUMNS_OF_PASS;
        Row<BITS_OF> next[COLUMNS];
        if (next_column < HIDDEN) load(next, next_column);
        for (uint n = 0; n < count; n += 2) {
            // Of an odd number the last is taken twice.
            const size_t at[2] = {row(n), row(min(n + 1, count - 1))};
            Values values[2];
            values[0].load(acts + at[0] * width, lane);
            values[1].load(acts + at[1] * width, lane);
            float own[2] = {};
#pragma unroll
            for (uint i = 0; i < COLUMNS; i++) {
                const float first = simd_sum(product(rows[i], values[0])), second = simd_sum(product(rows[i], values[1]));
                if (lane == i) own[0] = first, own[1] = second;
            }
            if (lane < COLUMNS) {
                const uint to = column + warp * COLUMNS + lane;
                out[at[0] * HIDDEN + to] = own[0];
                if (n + 1 < count) out[at[1] * HIDDEN + to] = own[1];
            }
        }
        if (next_column >= HIDDEN) return;
        column = next_column;
#pragma unroll
        for (uint i = 0; i < COLUMNS; i++) rows[i] = next[i];
    }
}

struct Params {
    uint pairs;
};

// Grid [some passes of COLUMNS_OF_PASS outputs each, the shared expert and then the others].
extern "C" __global__ void __launch_bounds__(256, 2) ENTRY(
    const float4* acts, const uint* experts, const float4* shared_acts, const uint4* down, const bfloat* down_scales,
    const bfloat* down_biases, const uint4* shared_down, const bfloat* shared_scales, const bfloat* shared_biases, float* out,
    float* shared_out, const Params p) {
    __shared__ PairList list;
    start_next();
    wait_for_previous();
    if (blockIdx.y == 0) {
        multiply<OTHER_BITS>(reinterpret_cast<const uint*>(shared_down), shared_scales, shared_biases, 0,
                             reinterpret_cast<const float*>(shared_acts), SHARED_HIDDEN, p.pairs / TOP_K,
                             [](uint n) { return n; }, shared_out);
        return;
    }
    const uint expert = blockIdx.y - 1;
    for (uint first = 0; first < p.pairs; first += PAIR_THREADS) {
        const Pairs pairs = find_pairs(experts, first, p.pairs, expert, list);
        if (pairs.count == 0) continue;
        multiply<BITS>(reinterpret_cast<const uint*>(down), down_scales, down_biases, expert * HIDDEN,
                       reinterpret_cast<const float*>(acts), EXPERT_HIDDEN, pairs.count, [&](uint n) { return pairs.pair[n]; }, out);
    }
}
}  // namespace metal
LAYOUT_OF(metal::ENTRY);
