// y = W x for one to four matrices side by side: the twin of qmm.metal's qmm.
#include "qmm.cuh"

struct Params {
    uint rows;
    uint columns[4];       // of each product, 0 where there is none
    uint first_tile[4];    // of the Metal kernel's tiles
    uint rounded[4];       // whether an output is bf16, not f32
    uint add;              // whether results are added to the outputs
};

// Grid [tiles of rows, tiles of columns of all products].
extern "C" __global__ void __launch_bounds__(THREADS, 3) ENTRY(
    const uint4* x, const uint4* packed0, const bf16* scales0, const bf16* biases0, float* out0, const uint4* packed1,
    const bf16* scales1, const bf16* biases1, float* out1, const uint4* packed2, const bf16* scales2, const bf16* biases2,
    float* out2, const uint4* packed3, const bf16* scales3, const bf16* biases3, float* out3, const Params p) {
    start_next();
    wait_for_previous();
    extern __shared__ uint4 shared[];
    const uint4* const packed[4] = {packed0, packed1, packed2, packed3};
    const bf16* const scales[4] = {scales0, scales1, scales2, scales3};
    const bf16* const biases[4] = {biases0, biases1, biases2, biases3};
    float* const outs[4] = {out0, out1, out2, out3};
    uint tile = blockIdx.y;
    Matrix matrix = {};
    float* out = nullptr;
    uint columns = 0;
    bool rounded = false;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint tiles = (p.columns[i] + TILE_COLUMNS - 1) / TILE_COLUMNS;
        if (columns == 0 && tile < tiles) {
            matrix = {packed[i], scales[i], biases[i]};
            out = outs[i], columns = p.columns[i], rounded = p.rounded[i];
        } else if (columns == 0) {
            tile -= tiles;
        }
    }

    const uint first_row = blockIdx.x * TILE_ROWS, rows = min(p.rows - first_row, TILE_ROWS);
    const uint first_column = tile * TILE_COLUMNS + threadIdx.x / 32 * 32;
    const auto row = [=](uint m, uint i) { return min(first_column + 16 * m + i, columns - 1); };
    Operands<decltype(row)> from = {{}, {matrix, matrix}, row};
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        const uint r = first_row + min(threadIdx.x / X_CHUNKS + 16 * i, rows - 1);
        from.x[i] = x + size_t(r) * GROUPS * X_CHUNKS + threadIdx.x % X_CHUNKS;
    }
    Sums sums;
    multiply(sums, rows, from, shared);

    for_each(sums, rows, [&](uint m, uint i, uint r, float sum) {
        const uint column = first_column + 16 * m + i;
        if (column >= columns) return;
        const size_t to = size_t(first_row + r) * columns + column;
        if (rounded) reinterpret_cast<bf16*>(out)[to] = float_bf16(sum);
        else out[to] = p.add ? out[to] + sum : sum;
    });
}
LAYOUT_OF(ENTRY);
