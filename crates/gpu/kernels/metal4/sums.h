// Sums of products as lanes hold them: which lane has which element is the implementation's, so elements are asked.
//
// A lane has `get_capacity()` places, of which some may hold no element. `get_multidimensional_index` gives an element's
// (column, row).
#pragma once

template <class Sums>
inline void clear(thread Sums& sums) {
#pragma unroll
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) sums[i] = 0.0f;
    }
}

// Multiplies row r by factors[r].
template <class Sums>
inline void scale_rows(thread Sums& sums, threadgroup const float* factors) {
#pragma unroll
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) sums[i] *= factors[sums.get_multidimensional_index(i)[1]];
    }
}

// Writes the elements times `factor`, rows `stride` apart. Barriers are the caller's.
template <class Sums>
inline void put(thread Sums& sums, threadgroup float* to, uint stride, float factor) {
#pragma unroll
    for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) {
            const auto at = sums.get_multidimensional_index(i);
            to[uint(at[1]) * stride + uint(at[0])] = sums[i] * factor;
        }
    }
}
