// out[row, rank] = silu(gate y) * (up y), y = norm(x[row]), by the expert of rank `rank`: the twin of expert_qmv.metal's
// expert_qmv_up. A warp computes one value, as in qmv.cuh. It can load weights only when it knows the expert, so the
// choice is made with reductions in one instruction.
#define IN_DIM HIDDEN
#define NORM 1
#include "qmv.cuh"
namespace metal {
#include "metal/order.h"

struct Params {
    float eps;
};

// What a lane knows after some rounds.
struct Choice {
    uint expert;   // of the last round
    uint own;      // of the round whose number is the lane's
    float weight;  // exp(logit - largest logit) of `own`
};

// Of equal logits the lower expert comes first.
__forceinline__ Choice choose(const float* logits, uint rounds, uint lane) {
    constexpr uint KEPT = (EXPERTS + 31) / 32;
    uint keys[KEPT];
    bool left[KEPT];
#pragma unroll
    for (uint i = 0; i < KEPT; i++) {
        left[i] = i * 32 + lane < EXPERTS;
        keys[i] = left[i] ? order_key(__float_as_uint(logits[i * 32 + lane])) : 0u;
    }
    Choice choice = {0, 0, 0.0f};
    float largest = 0.0f;
    for (uint round = 0; round < rounds; round++) {
        uint best = 0;
#pragma unroll
        for (uint i = 0; i < KEPT; i++) {
            if (left[i]) best = max(best, keys[i]);
        }
        best = __reduce_max_sync(msl::LANES, best);
        uint expert = 0xffffffffu;
#pragma unroll
        for (uint i = KEPT; i-- > 0;) {
            if (left[i] && keys[i] == best) expert = i * 32 + lane;
        }
        expert = __reduce_min_sync(msl::LANES, expert);
#pragma unroll
        for (uint i = 0; i < KEPT; i++) {
            if (i * 32 + lane == expert) left[i] = false;
        }
        const float logit = key_value(best);
        if (round == 0) largest = logit;
        if (round == lane) {
            choice.own = expert;
            choice.weight = exact_exp(logit - largest);
        }
        choice.expert = expert;
    }
    return choice;
}

// Grid [tiles of 8 values, ranks, rows].
extern "C" __global__ void __launch_bounds__(256, 4) ENTRY(
    const float4* x, const float4* norm, const float* logits, const uint4* gate, const bfloat* gate_scales,
    const bfloat* gate_biases, const uint4* up, const bfloat* up_scales, const bfloat* up_biases, uint* experts,
    float* weights, float* out, const Params p) {
    const uint lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.y, row = blockIdx.z;
    const Choice choice = choose(logits + size_t(row) * EXPERTS, rank + 1, lane);
    // One of the blocks that know all of the row's experts says so.
    if (blockIdx.x == 0 && rank == TOP_K - 1 && warp == 0) {
        const float sum = simd_sum(choice.weight);
        if (lane < TOP_K) {
            experts[row * TOP_K + lane] = choice.own;
            weights[row * TOP_K + lane] = choice.weight / sum;
        }
    }
    const uint column = blockIdx.x * WARPS + warp, own = min(column, EXPERT_HIDDEN - 1);
    Row<BITS> a;
    Row<OTHER_BITS> b;
    a.load(reinterpret_cast<const uint*>(gate), gate_scales, gate_biases, choice.expert * EXPERT_HIDDEN + own, lane);
    b.load(reinterpret_cast<const uint*>(up), up_scales, up_biases, choice.expert * EXPERT_HIDDEN + own, lane);
    const float* const values = reinterpret_cast<const float*>(x) + size_t(row) * HIDDEN;
    const float2 sums = multiply(Input{values, reinterpret_cast<const float*>(norm), nullptr, p.eps}, a, b);
    if (lane == 0 && column < EXPERT_HIDDEN) {
        out[(size_t(row) * TOP_K + rank) * EXPERT_HIDDEN + column] = silu(sums.x) * sums.y;
    }
}
}  // namespace metal
LAYOUT_OF(metal::ENTRY);
