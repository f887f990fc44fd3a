// What products of decoded rows with experts share, of each row by itself (expert_qmv.metal) and of the rows that an expert
// has together (expert_qmv_grouped.metal): both sum in the same order, so that a row's results are the same bits.
#pragma once
#include "dot16.h"
#include "math.h"
#include "shape.h"

constant uint BITS [[function_constant(16)]];        // of gate, or of the experts' down
constant uint OTHER_BITS [[function_constant(18)]];  // of up, or of the shared expert's down

#define UP_SIMDGROUPS 4
#define UP_COLUMNS 4    // outputs of a simdgroup
#define TILE 2048       // values of x in threadgroup memory at a time
#define DOWN_SIMDGROUPS 8
#define DOWN_COLUMNS 8  // outputs of a simdgroup

// Brings x[start ..] * norm, as far as it fits, to threadgroup memory, and gives the thread's part of the sum of
// squares of x. Value `16 lane + 4 j + c` of a span lies at `[j][lane][c]`: lanes will read neighbouring words.
inline float stage(device const float* x, device const float* norm, uint start, threadgroup float4* tile,
                   uint thread_index) {
    float squares = 0.0f;
    for (uint i = thread_index; i < TILE / 4 && start + i * 4 < HIDDEN; i += UP_SIMDGROUPS * 32) {
        const float4 value = *reinterpret_cast<device const float4*>(x + start + i * 4);
        const float4 scale = *reinterpret_cast<device const float4*>(norm + start + i * 4);
        squares += dot(value, value);
        tile[i / 128 * 128 + (i & 3) * 32 + (i / 4 & 31)] = value * scale;
    }
    return squares;
}
