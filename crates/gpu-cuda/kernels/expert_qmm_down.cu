// down of the activations of pairs of a row and an expert, grouped by expert: the twin of expert_qmm.metal's
// expert_qmm_down.
#include "qmm.cuh"

// Grid [tiles of columns, blocks of the block map].
extern "C" __global__ void __launch_bounds__(THREADS, 3) ENTRY(
    const uint4* acts, const uint4* packed, const bf16* scales, const bf16* biases, const uint* pairs, const uint4* blocks,
    const uint* block_count, float* out) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 shared[];
    if (blockIdx.y >= block_count[0]) return;
    const uint4 block = blocks[blockIdx.y];
    const uint expert = block.x, first = block.y, rows = block.z;
    const uint first_column = blockIdx.x * TILE_COLUMNS + threadIdx.x / 32 * 32;
    const auto row = [=](uint m, uint i) { return expert * HIDDEN + min(first_column + 16 * m + i, HIDDEN - 1); };
    const Matrix matrix = {packed, scales, biases};
    Operands<decltype(row)> from = {{}, {matrix, matrix}, row};
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint r = first + min(threadIdx.x / X_CHUNKS + 16 * i, rows - 1);
        from.x[i] = acts + size_t(r) * GROUPS * X_CHUNKS + threadIdx.x % X_CHUNKS;
    }
    Sums sums;
    multiply(sums, rows, from, shared);

    for_each(sums, rows, [&](uint m, uint i, uint r, float sum) {
        const uint column = first_column + 16 * m + i;
        if (column < HIDDEN) out[size_t(pairs[first + r]) * HIDDEN + column] = sum;
    });
}
LAYOUT_OF(ENTRY);
