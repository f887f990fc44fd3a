// y = W norm(x) or y += W norm(x) for one row and one to four matrices side by side: the twin of qmv.metal's qmv_1.
#include "qmv.cuh"
namespace metal {

struct Params {
    uint rows;
    uint columns[4];     // outputs of each matrix
    uint first_tile[4];  // of each matrix in the grid
    uint rounded[4];     // whether it is stored in bf16
    uint add;            // whether it is added to what is there
    uint selected;       // whether the row is selected
    float eps;
};

// Grid [tiles of 16 outputs].
extern "C" __global__ void __launch_bounds__(256, BLOCKS) ENTRY(
    const float4* x, const uint* selection, const float4* scale, const float4* z, const uint4* packed0,
    const bfloat* scales0, const bfloat* biases0, float* out0, const uint4* packed1, const bfloat* scales1,
    const bfloat* biases1, float* out1, const uint4* packed2, const bfloat* scales2, const bfloat* biases2, float* out2,
    const uint4* packed3, const bfloat* scales3, const bfloat* biases3, float* out3, const Params p) {
    uint s = 0;
#pragma unroll
    for (uint i = 1; i < 4; i++) s = blockIdx.x >= p.first_tile[i] ? i : s;
    const uint4* packed = s == 0 ? packed0 : s == 1 ? packed1 : s == 2 ? packed2 : packed3;
    const bfloat* scales = s == 0 ? scales0 : s == 1 ? scales1 : s == 2 ? scales2 : scales3;
    const bfloat* biases = s == 0 ? biases0 : s == 1 ? biases1 : s == 2 ? biases2 : biases3;
    float* out = s == 0 ? out0 : s == 1 ? out1 : s == 2 ? out2 : out3;
    const uint columns = s == 0 ? p.columns[0] : s == 1 ? p.columns[1] : s == 2 ? p.columns[2] : p.columns[3];
    const uint first = s == 0 ? p.first_tile[0] : s == 1 ? p.first_tile[1] : s == 2 ? p.first_tile[2] : p.first_tile[3];
    const bool rounded = (s == 0 ? p.rounded[0] : s == 1 ? p.rounded[1] : s == 2 ? p.rounded[2] : p.rounded[3]) != 0;
    const uint lane = threadIdx.x % 32, column = ((blockIdx.x - first) * WARPS + threadIdx.x / 32) * OUTPUTS;
    // Outputs beyond the last repeat it.
    Row<BITS> a, b;
    a.load(reinterpret_cast<const uint*>(packed), scales, biases, min(column, columns - 1), lane);
    b.load(reinterpret_cast<const uint*>(packed), scales, biases, min(column + 1, columns - 1), lane);
    const size_t row = size_t(p.selected != 0 ? selection[0] : 0) * IN_DIM;
    const float* const values = reinterpret_cast<const float*>(x) + row;
    const float* const gate = reinterpret_cast<const float*>(z) + row;
    const float2 sums = multiply(Input{values, reinterpret_cast<const float*>(scale), gate, p.eps}, a, b);
    const uint own = column + lane;
    if (lane < OUTPUTS && own < columns) {
        const float sum = lane == 0 ? sums.x : sums.y;
        if (rounded) reinterpret_cast<bfloat*>(out)[own] = bfloat(sum);
        else out[own] = p.add != 0 ? out[own] + sum : sum;
    }
}
}  // namespace metal
LAYOUT_OF(metal::ENTRY);
