// silu(gate x) * (up x): the twin of qmm.metal's qmm_swiglu.
#include "qmm.cuh"

struct Params {
    uint rows;
    uint columns;
};

// Grid [tiles of rows, tiles of 64 columns].
extern "C" __global__ void __launch_bounds__(THREADS, 3) ENTRY(
    const uint4* x, const uint4* gate_packed, const bf16* gate_scales, const bf16* gate_biases, const uint4* up_packed,
    const bf16* up_scales, const bf16* up_biases, bf16* out, const Params p) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 shared[];
    const uint first_row = blockIdx.x * TILE_ROWS, rows = min(p.rows - first_row, TILE_ROWS);
    const uint first_column = blockIdx.y * (TILE_COLUMNS / 2), warp_column = first_column + threadIdx.x / 32 * 16;
    const auto row = [=](uint, uint i) { return min(warp_column + i, p.columns - 1); };
    Operands<decltype(row)> from = {
        {}, {{gate_packed, gate_scales, gate_biases}, {up_packed, up_scales, up_biases}}, row};
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint r = first_row + min(threadIdx.x / X_CHUNKS + 16 * i, rows - 1);
        from.x[i] = x + size_t(r) * GROUPS * X_CHUNKS + threadIdx.x % X_CHUNKS;
    }
    Sums sums;
    multiply(sums, rows, from, shared);
    store_swiglu(out + size_t(first_row) * p.columns, p.columns, first_column, rows, sums);
}
LAYOUT_OF(ENTRY);
