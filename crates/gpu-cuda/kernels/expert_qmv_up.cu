// out[row, rank] = silu(gate y) * (up y), y = norm(x[row]), by the expert of rank `rank`: the twin of expert_qmv.metal's
// expert_qmv_up. A tile is eight rows of each matrix. A block can load weights only when it knows the expert, so the choice
// is made with reductions in one instruction.
#define IN_DIM HIDDEN
#define NORM 1
#define ROWS 1
#define MOST_TILES 2
#define WEIGHTS_ARE_KNOWN false
#include "qmv.cuh"

// As order.h asks for it.
template <typename T> inline T as_type(uint bits) { return __uint_as_float(bits); }
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
inline Choice choose(const float* logits, uint rounds, uint lane) {
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
        best = __reduce_max_sync(~0u, best);
        uint expert = 0xffffffffu;
#pragma unroll
        for (uint i = KEPT; i-- > 0;) {
            if (left[i] && keys[i] == best) expert = i * 32 + lane;
        }
        expert = __reduce_min_sync(~0u, expert);
#pragma unroll
        for (uint i = 0; i < KEPT; i++) {
            if (i * 32 + lane == expert) left[i] = false;
        }
        const float logit = key_value(best);
        if (round == 0) largest = logit;
        if (round == lane) {
            choice.own = expert;
            choice.weight = expf(logit - largest);
        }
        choice.expert = expert;
    }
    return choice;
}

// Grid [tiles of 8 values, TILES to a block, ranks, rows].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ENTRY(
    const float4* x, const float4* norm, const float* logits, const uint4* gate, const bf16* gate_scales,
    const bf16* gate_biases, const uint4* up, const bf16* up_scales, const bf16* up_biases, uint* experts, float* weights,
    float* out, const Params p) {
    extern __shared__ uint4 shared[];
    const uint lane = threadIdx.x % 32, rank = blockIdx.y, row = blockIdx.z, first_column = blockIdx.x * TILES * 8;
    const Input in = {reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(norm), nullptr, nullptr, row, gridDim.z, p.eps};
    const Products products = multiply(in, shared, [&](Weights& rows, uint first_group) {
        const Choice choice = choose(logits + size_t(row) * EXPERTS, rank + 1, lane);
        // One of the blocks that know all of the row's experts says so.
        if (blockIdx.x == 0 && rank == TOP_K - 1 && threadIdx.x < 32) {
            float sum = choice.weight;
#pragma unroll
            for (uint step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (lane < TOP_K) {
                experts[row * TOP_K + lane] = choice.own;
                weights[row * TOP_K + lane] = choice.weight / sum;
            }
        }
#pragma unroll
        for (uint t = 0; t < TILES; t++) {
            const size_t column = size_t(choice.expert) * EXPERT_HIDDEN + min(first_column + t * 8 + lane / 4, EXPERT_HIDDEN - 1);
            rows.low[t].load({reinterpret_cast<const uint*>(gate), gate_scales, gate_biases}, column, first_group);
            rows.high[t].load({reinterpret_cast<const uint*>(up), up_scales, up_biases}, column, first_group);
        }
    });
    const uint m = threadIdx.x % 8, t = threadIdx.x / 8, column = first_column + threadIdx.x;
    if (t >= TILES || column >= EXPERT_HIDDEN) return;
    const float value = silu(products.of(t, m, 0, p.eps)) * products.of(t, m + 8, 0, p.eps);
    out[(size_t(row) * TOP_K + rank) * EXPERT_HIDDEN + column] = value;
}
LAYOUT_OF(ENTRY);
