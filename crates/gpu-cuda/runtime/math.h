// Functions of scalars and vectors. Fast variants are the precise ones: the compiler's fast maths is off.
#pragma once

namespace metal {
template <class R, class T> __forceinline__ R as_type(T value) {
    static_assert(sizeof(R) == sizeof(T), "as_type: sizes differ");
    R result;
    memcpy(&result, &value, sizeof result);
    return result;
}

#define MSL_UNARY(f, ...) \
    __forceinline__ float f(float x) { return __VA_ARGS__; } \
    template <int N> __forceinline__ vec<float, N> f(vec<float, N> x) { _Pragma("unroll") for (int i = 0; i < N; i++) x[i] = f(x[i]); return x; }
MSL_UNARY(exp, ::expf(x)) MSL_UNARY(exp2, ::exp2f(x)) MSL_UNARY(log, ::logf(x)) MSL_UNARY(log2, ::log2f(x))
// Not CUDA's rsqrt, which is up to 2 ulp off: two correctly rounded operations.
MSL_UNARY(sqrt, ::sqrtf(x)) MSL_UNARY(rsqrt, 1.0f / ::sqrtf(x)) MSL_UNARY(sin, ::sinf(x)) MSL_UNARY(cos, ::cosf(x))
MSL_UNARY(tanh, ::tanhf(x)) MSL_UNARY(floor, ::floorf(x)) MSL_UNARY(ceil, ::ceilf(x)) MSL_UNARY(trunc, ::truncf(x))
MSL_UNARY(round, ::roundf(x)) MSL_UNARY(rint, ::rintf(x)) MSL_UNARY(fabs, ::fabsf(x))
#undef MSL_UNARY

__forceinline__ float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
template <int N> __forceinline__ vec<float, N> fma(vec<float, N> a, vec<float, N> b, vec<float, N> c) {
#pragma unroll
    for (int i = 0; i < N; i++) a[i] = ::fmaf(a[i], b[i], c[i]);
    return a;
}
__forceinline__ bool isnan(float x) { return (__float_as_uint(x) & 0x7fffffffu) > 0x7f800000u; }
__forceinline__ bool isinf(float x) { return (__float_as_uint(x) & 0x7fffffffu) == 0x7f800000u; }
__forceinline__ bool isfinite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// The number, where the other is NaN, as Metal says.
template <class T> __forceinline__ T max(T a, T b) { return a > b ? a : b; }
template <class T> __forceinline__ T min(T a, T b) { return a < b ? a : b; }
template <> __forceinline__ float max(float a, float b) { return ::fmaxf(a, b); }
template <> __forceinline__ float min(float a, float b) { return ::fminf(a, b); }
template <class T, int N> __forceinline__ vec<T, N> max(vec<T, N> a, vec<T, N> b) {
#pragma unroll
    for (int i = 0; i < N; i++) a[i] = max(a[i], b[i]);
    return a;
}
template <class T, int N> __forceinline__ vec<T, N> min(vec<T, N> a, vec<T, N> b) {
#pragma unroll
    for (int i = 0; i < N; i++) a[i] = min(a[i], b[i]);
    return a;
}
template <class T> __forceinline__ T clamp(T value, T low, T high) { return min(max(value, low), high); }
template <class T> __forceinline__ T select(T a, T b, bool second) { return second ? b : a; }
template <class T, int N> __forceinline__ T dot(vec<T, N> a, vec<T, N> b) {
    T sum = a[0] * b[0];
#pragma unroll
    for (int i = 1; i < N; i++) sum = sum + a[i] * b[i];
    return sum;
}
__forceinline__ uint popcount(uint value) { return __popc(value); }
__forceinline__ uint clz(uint value) { return __clz(value); }
__forceinline__ uint ctz(uint value) { return value == 0 ? 32 : __ffs(value) - 1; }

#define MSL_VARIANTS \
    using metal::exp; using metal::exp2; using metal::log; using metal::log2; using metal::sqrt; using metal::rsqrt; \
    using metal::sin; using metal::cos; using metal::tanh; using metal::fma; using metal::max; using metal::min;
namespace precise { MSL_VARIANTS }
namespace fast { MSL_VARIANTS }
#undef MSL_VARIANTS
}  // namespace metal
