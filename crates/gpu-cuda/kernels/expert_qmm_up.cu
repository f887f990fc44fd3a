// silu(gate x) * (up x) of pairs of a row and an expert, grouped by expert: the twin of expert_qmm.metal's expert_qmm_up.
#include "qmm.cuh"

// Grid [tiles of 64 columns, blocks of the block map].
extern "C" __global__ void __launch_bounds__(THREADS, 3) ENTRY(
    const uint4* x, const uint4* gate_packed, const bf16* gate_scales, const bf16* gate_biases, const uint4* up_packed,
    const bf16* up_scales, const bf16* up_biases, const uint* pairs, const uint4* blocks, const uint* block_count,
    bf16* out) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 shared[];
    if (blockIdx.y >= block_count[0]) return;
    const uint4 block = blocks[blockIdx.y];
    const uint expert = block.x, first = block.y, rows = block.z;
    const uint first_column = blockIdx.x * (TILE_COLUMNS / 2), warp_column = first_column + threadIdx.x / 32 * 16;
    const auto row = [=](uint, uint i) { return expert * EXPERT_HIDDEN + min(warp_column + i, EXPERT_HIDDEN - 1); };
    Operands<decltype(row)> from = {
        {}, {{gate_packed, gate_scales, gate_biases}, {up_packed, up_scales, up_biases}}, row};
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint r = pairs[first + min(threadIdx.x / X_CHUNKS + 16 * i, rows - 1)] / TOP_K;
        from.x[i] = x + size_t(r) * GROUPS * X_CHUNKS + threadIdx.x % X_CHUNKS;
    }
    Sums sums;
    multiply(sums, rows, from, shared);
    store_swiglu(out + size_t(first) * EXPERT_HIDDEN, EXPERT_HIDDEN, first_column, rows, sums);
}
LAYOUT_OF(ENTRY);
