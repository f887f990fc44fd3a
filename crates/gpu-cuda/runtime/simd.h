// Simdgroups and barriers. All lanes of a simdgroup, all threads of a threadgroup at a barrier, get to these together:
// that is a rule of the kernels, which the host driver checks. So masks are full.
#pragma once

namespace metal {
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
// Either also orders what the threadgroup does in device memory.
__forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }
__forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }

namespace msl {
constexpr uint LANES = 0xffffffffu;
// The same bits in each lane, as the operation commutes.
template <class T, class F> __forceinline__ T reduce(T value, F combine) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value = combine(value, __shfl_xor_sync(LANES, value, distance));
    return value;
}
}  // namespace msl

template <class T> __forceinline__ T simd_shuffle(T value, ushort from) { return __shfl_sync(msl::LANES, value, from); }
template <class T> __forceinline__ T simd_shuffle_xor(T value, ushort mask) { return __shfl_xor_sync(msl::LANES, value, mask); }
template <class T> __forceinline__ T simd_shuffle_down(T value, ushort by) { return __shfl_down_sync(msl::LANES, value, by); }
template <class T> __forceinline__ T simd_shuffle_up(T value, ushort by) { return __shfl_up_sync(msl::LANES, value, by); }
template <class T> __forceinline__ T simd_broadcast(T value, ushort from) { return __shfl_sync(msl::LANES, value, from); }
template <class T> __forceinline__ T simd_broadcast_first(T value) { return __shfl_sync(msl::LANES, value, 0); }
template <class T> __forceinline__ T simd_sum(T value) { return msl::reduce(value, [](T a, T b) { return T(a + b); }); }
template <class T> __forceinline__ T simd_max(T value) { return msl::reduce(value, [](T a, T b) { return max(a, b); }); }
template <class T> __forceinline__ T simd_min(T value) { return msl::reduce(value, [](T a, T b) { return min(a, b); }); }
template <class T> __forceinline__ T simd_or(T value) { return msl::reduce(value, [](T a, T b) { return T(a | b); }); }
template <class T> __forceinline__ T simd_and(T value) { return msl::reduce(value, [](T a, T b) { return T(a & b); }); }
template <class T> __forceinline__ T simd_prefix_inclusive_sum(T value) {
#pragma unroll
    for (uint distance = 1; distance < 32; distance *= 2) {
        const T before = __shfl_up_sync(msl::LANES, value, distance);
        if (msl::lane() >= distance) value = T(before + value);
    }
    return value;
}
template <class T> __forceinline__ T simd_prefix_exclusive_sum(T value) {
    const T sum = __shfl_up_sync(msl::LANES, simd_prefix_inclusive_sum(value), 1);
    return msl::lane() == 0 ? T(0) : sum;
}
__forceinline__ bool simd_all(bool value) { return __all_sync(msl::LANES, value); }
__forceinline__ bool simd_any(bool value) { return __any_sync(msl::LANES, value); }
}  // namespace metal
