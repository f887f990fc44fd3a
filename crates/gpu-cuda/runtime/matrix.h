// simdgroup_matrix: 8x8 values, two of each lane, laid out as on Apple's GPUs. A product is exchanges within the warp and
// chains of fma in the order of the index that is summed over: exact, and far from what tensor cores reach.
#pragma once

namespace metal {
template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "a simdgroup_matrix is 8x8");
    simdgroup_matrix() = default;
    __forceinline__ vec<T, 2>& thread_elements() { return elements; }
    vec<T, 2> elements;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

namespace msl {
// Row and column of the first of a lane's two elements.
__forceinline__ uint matrix_row(uint lane) { return ((lane >> 4) << 2) + ((lane >> 1) & 3); }
__forceinline__ uint matrix_column(uint lane) { return ((lane >> 3) & 1) * 4 + (lane & 1) * 2; }
// The lane that has an element; it is its first if the column is even.
__forceinline__ uint matrix_lane(uint row, uint column) {
    return ((row >> 2) << 4) + ((column >> 2) << 3) + ((row & 3) << 1) + ((column >> 1) & 1);
}
}  // namespace msl

template <class T, int R, int C> __forceinline__ simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, R, C> result;
    result.elements = vec<T, 2>(value);
    return result;
}
template <class T> __forceinline__ void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* from, ulong stride = 8) {
    from += msl::matrix_row(msl::lane()) * stride + msl::matrix_column(msl::lane());
    d.elements = vec<T, 2>(from[0], from[1]);
}
template <class T> __forceinline__ void simdgroup_store(const simdgroup_matrix<T, 8, 8>& d, T* to, ulong stride = 8) {
    to += msl::matrix_row(msl::lane()) * stride + msl::matrix_column(msl::lane());
    to[0] = d.elements.x;
    to[1] = d.elements.y;
}
__forceinline__ void simdgroup_multiply_accumulate(simdgroup_float8x8& d, const simdgroup_float8x8& a, const simdgroup_float8x8& b, const simdgroup_float8x8& c) {
    const uint row = msl::matrix_row(msl::lane()), column = msl::matrix_column(msl::lane());
    vec<float, 2> sum = c.elements;
#pragma unroll
    for (uint k = 0; k < 8; k++) {
        // Both halves of this are known as it compiles: every lane reads the same element of a lane of its row.
        const float left = __shfl_sync(msl::LANES, k % 2 == 0 ? a.elements.x : a.elements.y, msl::matrix_lane(row, k));
        const uint lane = msl::matrix_lane(k, column);
        sum.x = ::fmaf(left, __shfl_sync(msl::LANES, b.elements.x, lane), sum.x);
        sum.y = ::fmaf(left, __shfl_sync(msl::LANES, b.elements.y, lane), sum.y);
    }
    d.elements = sum;
}
__forceinline__ void simdgroup_multiply(simdgroup_float8x8& d, const simdgroup_float8x8& a, const simdgroup_float8x8& b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f));
}
}  // namespace metal
