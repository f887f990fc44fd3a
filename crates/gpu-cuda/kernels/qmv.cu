// y = W norm(x) or y += W norm(x) for up to eight rows and one to four matrices side by side: the twin of qmv.metal's qmv.
#define ROWS ROWS_OF(ENTRY)
// More warps for one row, whose input costs little; more rows are brought to shared memory less often.
#define MOST_TILES (ROWS == 1 ? 1 : 2)
#define WEIGHTS_ARE_KNOWN true
#include "qmv.cuh"

struct Params {
    uint rows;
    uint columns[4];     // outputs of each matrix
    uint first_tile[4];  // of each matrix in the grid
    uint rounded[4];     // whether it is stored in bf16
    uint add;            // whether it is added to what is there
    uint selected;       // whether rows are selected
    float eps;
};

// Grid [tiles of 16 outputs, TILES to a block, groups of rows].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ENTRY(
    const float4* x, const uint* selection, const float4* scale, const float4* z, const uint4* packed0,
    const bf16* scales0, const bf16* biases0, float* out0, const uint4* packed1, const bf16* scales1, const bf16* biases1,
    float* out1, const uint4* packed2, const bf16* scales2, const bf16* biases2, float* out2, const uint4* packed3,
    const bf16* scales3, const bf16* biases3, float* out3, const Params p) {
    extern __shared__ uint4 shared[];
    const uint lane = threadIdx.x % 32;
    // Which of the matrices a tile is of.
    const auto which = [&](uint tile) {
        uint s = 0;
#pragma unroll
        for (uint i = 1; i < 4; i++) s = tile >= p.first_tile[i] ? i : s;
        return s;
    };
    const auto choose = [](uint s, auto a, auto b, auto c, auto d) { return s == 0 ? a : s == 1 ? b : s == 2 ? c : d; };
    const auto columns_of = [&](uint s) { return choose(s, p.columns[0], p.columns[1], p.columns[2], p.columns[3]); };
    const auto first_of = [&](uint s) { return choose(s, p.first_tile[0], p.first_tile[1], p.first_tile[2], p.first_tile[3]); };

    const Input in = {reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(scale),
                      reinterpret_cast<const float*>(z), p.selected != 0 ? selection : nullptr, blockIdx.y * ROWS, p.rows, p.eps};
    const Products products = multiply(in, shared, [&](Weights& weights, uint first_group) {
#pragma unroll
        for (uint t = 0; t < TILES; t++) {
            const uint tile = blockIdx.x * TILES + t, s = which(tile), columns = columns_of(s);
            const Matrix matrix = {reinterpret_cast<const uint*>(choose(s, packed0, packed1, packed2, packed3)),
                                   choose(s, scales0, scales1, scales2, scales3), choose(s, biases0, biases1, biases2, biases3)};
            // Outputs beyond the last repeat it.
            const uint column = (tile - first_of(s)) * TILE_ROWS + lane / 4;
            weights.low[t].load(matrix, min(column, columns - 1), first_group);
            weights.high[t].load(matrix, min(column + 8, columns - 1), first_group);
        }
    });
    for (uint i = threadIdx.x; i < TILES * TILE_ROWS * ROWS; i += THREADS) {
        const uint m = i % TILE_ROWS, t = i / TILE_ROWS % TILES, r = i / TILE_ROWS / TILES;
        const uint tile = blockIdx.x * TILES + t, s = which(tile), columns = columns_of(s);
        const uint column = (tile - first_of(s)) * TILE_ROWS + m, row = in.first_row + r;
        if (column >= columns || row >= p.rows) continue;
        const float sum = products.of(t, m, r, p.eps);
        float* const out = choose(s, out0, out1, out2, out3);
        const size_t to = size_t(row) * columns + column;
        if (choose(s, p.rounded[0], p.rounded[1], p.rounded[2], p.rounded[3]) != 0) {
            reinterpret_cast<bf16*>(out)[to] = float_bf16(sum);
        } else {
            out[to] = p.add != 0 ? out[to] + sum : sum;
        }
    }
}
LAYOUT_OF(ENTRY);
