// The experts of each row, and their weights: softmax over the largest TOP_K logits. One simdgroup takes a row.
#include <metal_stdlib>
using namespace metal;
#include "route.h"

struct Params { uint rows; };

kernel void top_k(
    device const float* logits [[buffer(0)]],
    device uint* experts [[buffer(1)]],
    device float* weights [[buffer(2)]],
    constant Params& p [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint row = group * simdgroups + simdgroup;
    if (row >= p.rows) return;
    const Choice choice = choose_experts(logits + size_t(row) * EXPERTS, TOP_K, lane);
    write_routing(choice, experts + row * TOP_K, weights + row * TOP_K, lane);
}
