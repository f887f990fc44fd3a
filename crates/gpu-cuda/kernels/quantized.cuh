// Matrices of 4- or 8-bit integers in groups of 64 along the input, as quantized.h of the Metal kernels has them: integers
// to bf16, which holds them exactly once half their range is taken off.
#pragma once

#include "mma.cuh"

constexpr uint GROUP = 64;  // weights that share a scale and a bias

typedef unsigned short bf16;  // its bits

inline bf16 float_bf16(float value) { return bf16(bf16_pair(value, 0.0f)); }

// A lane's 16 weights of a group, as pairs of values whose places differ by 4.
template <uint B> inline void unpack16(const uint (&words)[B / 2], uint (&pairs)[8]) {
    if constexpr (B == 4) {
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            // An integer is the end of the mantissa of 128. Less 136: times 1, as sums of pairs came later than products.
            const uint bits = words[i / 4] >> 4 * (i % 4) & 0x000f000fu | 0x43004300u;
            asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pairs[i]) : "r"(bits), "r"(0x3f803f80u), "r"(0xc308c308u));
        }
    } else {
#pragma unroll
        for (uint i = 0; i < 8; i++) {
            // An integer is the end of the mantissa of 2^23.
            const auto value = [&](uint word) {
                return __uint_as_float(__byte_perm(words[word], 0x4b000000u, 0x7440u + i % 4)) - 8388736.0f;
            };
            pairs[i] = bf16_pair(value(i / 4 * 2), value(i / 4 * 2 + 1));
        }
    }
}
