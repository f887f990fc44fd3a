// out[pair] = silu(gate y) * (up y), y = norm(x[row of pair]), by the pair's expert: the twin of expert_qmv_grouped.metal's
// expert_qmv_grouped_up. A tile is eight rows of each matrix, as in expert_qmv_up.cu, and so is what is summed. A block takes
// several tiles one after the other, and loads the next one's weights before it adds up and hands out the last one's products.
#define IN_DIM HIDDEN
#define NORM 1
#define ROWS 2
#define MOST_TILES 2
#define MOST_GROUPS 4
#define WEIGHTS_ARE_KNOWN false
#include "expert_pairs.cuh"
#include "qmv.cuh"

constexpr uint COLUMNS_OF_PASS = TILES * 8;

struct Params {
    uint pairs;
    float eps;
};

// Grid [some passes of COLUMNS_OF_PASS values each, experts].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ENTRY(
    const float4* x, const float4* norm, const uint* experts, const uint4* gate, const bf16* gate_scales,
    const bf16* gate_biases, const uint4* up, const bf16* up_scales, const bf16* up_biases, float* out, const Params p) {
    extern __shared__ uint4 shared[];
    __shared__ PairList list;
    const uint expert = blockIdx.y;
    const auto load = [&](Weights& weights, uint first_column) {
#pragma unroll
        for (uint t = 0; t < TILES; t++) {
            const uint column = min(first_column + t * 8 + threadIdx.x % 32 / 4, EXPERT_HIDDEN - 1);
            const size_t row = size_t(expert) * EXPERT_HIDDEN + column;
            weights.low[t].load({reinterpret_cast<const uint*>(gate), gate_scales, gate_biases}, row, own_groups());
            weights.high[t].load({reinterpret_cast<const uint*>(up), up_scales, up_biases}, row, own_groups());
        }
    };
    start_next();
    wait_for_previous();
    Multiplier multiplier(shared);
    for (uint first = 0; first < p.pairs; first += PAIR_THREADS) {
        const Pairs pairs = find_pairs(experts, first, p.pairs, expert, list);
        if (pairs.count == 0) continue;
        Input in = {reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(norm), nullptr, pairs.row, 0, pairs.count, p.eps};
        Weights weights;
        load(weights, blockIdx.x * COLUMNS_OF_PASS);
        for (uint column = blockIdx.x * COLUMNS_OF_PASS; column < EXPERT_HIDDEN; column += gridDim.x * COLUMNS_OF_PASS) {
            for (in.first_row = 0; in.first_row < pairs.count; in.first_row += ROWS) {
                multiplier.begin(in);
                __syncthreads();  // all threads are through with the sums before
                multiplier.multiply(in, weights);
                const uint next = column + gridDim.x * COLUMNS_OF_PASS;
                if (in.first_row + ROWS >= pairs.count && next < EXPERT_HIDDEN) load(weights, next);
                __syncthreads();
                const uint m = threadIdx.x % 8, t = threadIdx.x / 8 % TILES, r = threadIdx.x / 8 / TILES;
                const uint own = column + t * 8 + m;
                if (r >= ROWS || in.first_row + r >= pairs.count || own >= EXPERT_HIDDEN) continue;
                const Products products = multiplier.products();
                const float value = silu(products.of(t, m, r, p.eps)) * products.of(t, m + 8, r, p.eps);
                out[size_t(pairs.pair[in.first_row + r]) * EXPERT_HIDDEN + own] = value;
            }
        }
    }
}
LAYOUT_OF(ENTRY);
