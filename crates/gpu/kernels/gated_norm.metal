// Gated RMS norm of DeltaNet outputs: each head of 128 normed, scaled, and gated by silu(z).
#include <metal_stdlib>
using namespace metal;
#include "math.h"
#include "family.h"

struct GatedNormParams {
    uint heads;  // of all rows together
    float eps;
};

// o, z, out bf16 [heads, 128] as 32 words of four values; scale f32 [128]. Grid [heads / 8] of 256 threads: a head
// belongs to a simdgroup, four values to a lane.
kernel void gated_norm(
    device const uint2* o [[buffer(0)]],
    device const uint2* z [[buffer(1)]],
    device const float4* scale [[buffer(2)]],
    device uint2* out [[buffer(3)]],
    constant GatedNormParams& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint head = group * 8 + simdgroup;
    if (head >= p.heads) return;
    const ulong at = ulong(head) * 32 + lane;
    const float4 x = bf16_quad(o[at]);
    const float4 gate = bf16_quad(z[at]);
    const float4 weight = scale[lane];
    const float squares = simd_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w);
    const float factor = precise::rsqrt(squares / float(DELTA_DIM) + p.eps);
    out[at] = uint2(
        bf16_pair(x.x * factor * weight.x * silu(gate.x), x.y * factor * weight.y * silu(gate.y)),
        bf16_pair(x.z * factor * weight.z * silu(gate.z), x.w * factor * weight.w * silu(gate.w)));
}
