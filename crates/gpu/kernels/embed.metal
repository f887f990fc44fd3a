// Token embedding: rows of a quantised table.
#include <metal_stdlib>
using namespace metal;
#include "quantized.h"

constant uint BITS [[function_constant(16)]];
constant uint IN_DIM [[function_constant(17)]];  // width of the table

struct EmbedParams { uint rows; };               // of the table

// out[row] = table[tokens[row]]. A thread takes 16 values.
kernel void embed(
    device const uint* tokens [[buffer(0)]],
    device const uint* packed [[buffer(1)]],
    device const bfloat* scales [[buffer(2)]],
    device const bfloat* biases [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant EmbedParams& p [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    const uint row = group.y, k = (group.x * 128 + thread_index) * 16;
    if (k >= IN_DIM) return;
    // A token that a step before could not choose (see sample.metal) is none of the table: its row does not matter.
    const size_t token = min(tokens[row], p.rows - 1);
    const size_t group_index = (token * IN_DIM + k) / GROUP;
    float4 w[4];
    dequantize16(load_packed16(packed + packed_words(token * IN_DIM, BITS), k, BITS), float(scales[group_index]),
                 float(biases[group_index]), BITS, w);
    for (uint i = 0; i < 4; i++) reinterpret_cast<device float4*>(out + size_t(row) * IN_DIM + k)[i] = w[i];
}
