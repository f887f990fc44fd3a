// x += experts' outputs by their weights + gate * shared expert's output. A thread takes four columns of a row.
#include <metal_stdlib>
using namespace metal;
#include "math.h"
#include "shape.h"

kernel void combine(
    device float* x [[buffer(0)]],
    device const float* routed [[buffer(1)]],
    device const float* weights [[buffer(2)]],
    device const float* shared [[buffer(3)]],
    device const float* shared_gate [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]) {
    const uint row = at.y;
    if (at.x >= HIDDEN / 4) return;
    const size_t element = size_t(row) * HIDDEN + at.x * 4;
    // In the order of ranks, then the shared expert, then the residual: the order of expert_qmv_down.
    float4 sum = float4(0.0f);
    for (uint rank = 0; rank < TOP_K; rank++) {
        const size_t pair = size_t(row) * TOP_K + rank;
        const float weight = weights[pair];
        const float4 y = *reinterpret_cast<device const float4*>(routed + pair * HIDDEN + at.x * 4);
        sum = fma(float4(weight), y, sum);
    }
    const float gate = sigmoid(shared_gate[row]);
    sum = fma(float4(gate), *reinterpret_cast<device const float4*>(shared + element), sum);
    device float4* out = reinterpret_cast<device float4*>(x + element);
    *out = *out + sum;
}
