// Matrices of 4- or 8-bit integers in groups of 64 along the input: w = scale * q + bias. Rows are packed in words of
// 32 bits, the first value in the lowest; scales and biases are bf16, one of each for a group. `bits` is
// a constant of the pipeline but where two matrices of different bits share a tile (qmm.h).
#pragma once

#define GROUP 64    // weights that share a scale and a bias

// Words of so many values (a multiple of 8).
inline size_t packed_words(size_t values, uint bits) { return values / (32 / bits); }

// 16 values from value `k` (a multiple of 16) of a row, in one load of 8 or 16 bytes. With 4 bits only the first two
// words are used.
inline uint4 load_packed16(device const uint* row, uint k, uint bits) {
    if (bits == 4) {
        const uint2 words = *reinterpret_cast<device const uint2*>(row + k / 8);
        return uint4(words.x, words.y, 0u, 0u);
    }
    return *reinterpret_cast<device const uint4*>(row + k / 4);
}

// Values of a row that a simdgroup takes at once, 16 a lane.
#define SPAN 512

// Whether value `k` is one of `width`: no question, and no branch, where spans fill the width.
inline bool within(uint k, uint width) { return width % SPAN == 0 || k < width; }

// The integer of `field`, some bits of a word that lie `shift` above the lowest, as a float: it becomes the end of
// the mantissa of 2^(23 - shift), which is taken off again. Two cheap operations, where a conversion runs at a quarter
// of the rate on many GPUs.
inline float field0(uint field) { return as_type<float>(field | 0x4b000000u) - 8388608.0f; }
inline float field4(uint field) { return as_type<float>(field | 0x49000000u) - 524288.0f; }
inline float field8(uint field) { return as_type<float>(field | 0x47000000u) - 32768.0f; }
inline float field12(uint field) { return as_type<float>(field | 0x45000000u) - 2048.0f; }

// The lowest four of eight 4-bit integers.
inline float4 low_nibbles(uint word) {
    return float4(field0(word & 0xfu), field4(word & 0xf0u), field8(word & 0xf00u), field12(word & 0xf000u));
}

// Four 8-bit integers.
inline float4 all_bytes(uint word) {
    const uint high = word >> 16;
    return float4(field0(word & 0xffu), field8(word & 0xff00u), field0(high & 0xffu), field8(high & 0xff00u));
}

// The first or the second eight of the integers that `load_packed16` gave.
inline void unpack_first8(uint4 packed, uint bits, thread float4* q) {
    q[0] = bits == 4 ? low_nibbles(packed.x) : all_bytes(packed.x);
    q[1] = bits == 4 ? low_nibbles(packed.x >> 16) : all_bytes(packed.y);
}
inline void unpack_second8(uint4 packed, uint bits, thread float4* q) {
    q[0] = bits == 4 ? low_nibbles(packed.y) : all_bytes(packed.z);
    q[1] = bits == 4 ? low_nibbles(packed.y >> 16) : all_bytes(packed.w);
}

// The 16 weights of the integers that `load_packed16` gave.
inline void dequantize16(uint4 packed, float scale, float bias, uint bits, thread float4* w) {
    unpack_first8(packed, bits, w);
    unpack_second8(packed, bits, w + 2);
    for (uint i = 0; i < 4; i++) w[i] = fma(w[i], float4(scale), float4(bias));
}
