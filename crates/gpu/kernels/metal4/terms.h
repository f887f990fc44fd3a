// Values of f32 as sums of bf16, the widest type that the tensor units multiply by bf16 at full rate.
//
// The first term has 8 bits of a value, the next 8 more: two leave an error of 2^-17, as small beside the sums' own as
// that of the MSL 3.1 kernels, and cost a second product. One term, which a driver may ask for (-DTERMS=1), rounds
// weights to bf16, as MLX does.
#pragma once
#include "math.h"

#ifndef TERMS
#define TERMS 2
#endif

// The next term of both values, as a word; they keep what is left.
inline uint take_term(thread float& first, thread float& second) {
    const uint word = bf16_pair(first, second);
    first -= first_bf16(word);
    second -= second_bf16(word);
    return word;
}
inline uint2 take_term(thread float4& values) {
    float a = values.x, b = values.y, c = values.z, d = values.w;
    const uint2 words = uint2(take_term(a, b), take_term(c, d));
    values = float4(a, b, c, d);
    return words;
}
