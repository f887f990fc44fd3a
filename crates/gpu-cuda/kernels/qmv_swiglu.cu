// out = silu(gate norm(x)) * (up norm(x)) for up to eight rows: the twin of qmv.metal's qmv_swiglu. A tile is eight rows of
// each matrix.
#define ROWS ROWS_OF(ENTRY)
#define MOST_TILES 1
#define WEIGHTS_ARE_KNOWN true
#include "qmv.cuh"

struct Params {
    uint rows;
    uint columns;
    uint selected;
    float eps;
};

// Grid [tiles of 8 outputs, groups of rows].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ENTRY(
    const float4* x, const uint* selection, const float4* scale, const float4* z, const uint4* gate,
    const bf16* gate_scales, const bf16* gate_biases, const uint4* up, const bf16* up_scales, const bf16* up_biases,
    float* out, const Params p) {
    extern __shared__ uint4 shared[];
    const Input in = {reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(scale),
                      reinterpret_cast<const float*>(z), p.selected != 0 ? selection : nullptr, blockIdx.y * ROWS, p.rows, p.eps};
    const uint first_column = blockIdx.x * (TILE_ROWS / 2);
    const Products products = multiply(in, shared, [&](Weights& weights, uint first_group) {
        const uint column = min(first_column + threadIdx.x % 32 / 4, p.columns - 1);
        weights.low[0].load({reinterpret_cast<const uint*>(gate), gate_scales, gate_biases}, column, first_group);
        weights.high[0].load({reinterpret_cast<const uint*>(up), up_scales, up_biases}, column, first_group);
    });
    const uint m = threadIdx.x % 8, r = threadIdx.x / 8, column = first_column + m, row = in.first_row + r;
    if (r >= ROWS || row >= p.rows || column >= p.columns) return;
    out[size_t(row) * p.columns + column] = silu(products.of(0, m, r, p.eps)) * products.of(0, m + 8, r, p.eps);
}
LAYOUT_OF(ENTRY);
