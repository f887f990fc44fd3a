// out = silu(gate norm(x)) * (up norm(x)) for one row: the twin of qmv.metal's qmv_swiglu_1.
#include "qmv.cuh"
namespace metal {

struct Params {
    uint rows;
    uint columns;
    uint selected;
    float eps;
};

// Grid [tiles of 8 outputs].
extern "C" __global__ void __launch_bounds__(256, BLOCKS) ENTRY(
    const float4* x, const uint* selection, const float4* scale, const float4* z, const uint4* gate,
    const bfloat* gate_scales, const bfloat* gate_biases, const uint4* up, const bfloat* up_scales,
    const bfloat* up_biases, float* out, const Params p) {
    const uint lane = threadIdx.x % 32, column = blockIdx.x * WARPS + threadIdx.x / 32;
    Row<BITS> a;
    Row<OTHER_BITS> b;
    a.load(reinterpret_cast<const uint*>(gate), gate_scales, gate_biases, min(column, p.columns - 1), lane);
    b.load(reinterpret_cast<const uint*>(up), up_scales, up_biases, min(column, p.columns - 1), lane);
    const size_t row = size_t(p.selected != 0 ? selection[0] : 0) * IN_DIM;
    const float* const values = reinterpret_cast<const float*>(x) + row;
    const float* const gates = reinterpret_cast<const float*>(z) + row;
    const float2 sums = multiply(Input{values, reinterpret_cast<const float*>(scale), gates, p.eps}, a, b);
    if (lane == 0 && column < p.columns) out[column] = silu(sums.x) * sums.y;
}
}  // namespace metal
LAYOUT_OF(metal::ENTRY);
