// Functions of scalars and vectors. The fast variants are the precise ones: Apple's rounding is not modelled.
#pragma once
#pragma GCC system_header

namespace metal {
template <class R, class T> inline R as_type(T v) {
    static_assert(sizeof(R) == sizeof(T), "as_type: sizes differ");
    R r;
    __builtin_memcpy(&r, &v, sizeof r);
    return r;
}

// Each function for float, half, bfloat and their vectors.
#define MSL_EACH(T, f, ...) \
    template <int N> inline vec<T, N> f(vec<T, N> x) { for (int i = 0; i < N; i++) x[i] = f(T(x[i])); return x; }
#define MSL_UNARY(f, ...) \
    inline float f(float x) { return __VA_ARGS__; } \
    inline half f(half v) { return half(f(float(v))); } \
    inline bfloat f(bfloat v) { return bfloat(f(float(v))); } \
    MSL_EACH(float, f) MSL_EACH(half, f) MSL_EACH(bfloat, f)
MSL_UNARY(exp, __builtin_expf(x)) MSL_UNARY(exp2, __builtin_exp2f(x)) MSL_UNARY(exp10, __builtin_powf(10.0f, x))
MSL_UNARY(log, __builtin_logf(x)) MSL_UNARY(log2, __builtin_log2f(x)) MSL_UNARY(log10, __builtin_log10f(x))
MSL_UNARY(sqrt, __builtin_sqrtf(x)) MSL_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x)) MSL_UNARY(sin, __builtin_sinf(x))
MSL_UNARY(cos, __builtin_cosf(x)) MSL_UNARY(tan, __builtin_tanf(x)) MSL_UNARY(asin, __builtin_asinf(x))
MSL_UNARY(acos, __builtin_acosf(x)) MSL_UNARY(atan, __builtin_atanf(x)) MSL_UNARY(sinh, __builtin_sinhf(x))
MSL_UNARY(cosh, __builtin_coshf(x)) MSL_UNARY(tanh, __builtin_tanhf(x)) MSL_UNARY(floor, __builtin_floorf(x))
MSL_UNARY(ceil, __builtin_ceilf(x)) MSL_UNARY(trunc, __builtin_truncf(x)) MSL_UNARY(round, __builtin_roundf(x))
MSL_UNARY(rint, __builtin_rintf(x)) MSL_UNARY(fabs, __builtin_fabsf(x)) MSL_UNARY(fract, x - __builtin_floorf(x))
MSL_UNARY(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f)) MSL_UNARY(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x * 0.0f)

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline half fma(half a, half b, half c) { return half(__builtin_fma(double(a), double(b), double(c))); }
template <class T, int N> inline vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) { for (int i = 0; i < N; i++) a[i] = fma(T(a[i]), T(b[i]), T(c[i])); return a; }
inline float pow(float a, float b) { return __builtin_powf(a, b); }
inline float powr(float a, float b) { return __builtin_powf(a, b); }
inline float fmod(float a, float b) { return __builtin_fmodf(a, b); }
inline float atan2(float a, float b) { return __builtin_atan2f(a, b); }
inline float copysign(float a, float b) { return __builtin_copysignf(a, b); }
inline float ldexp(float a, int e) { return __builtin_ldexpf(a, e); }
inline float divide(float a, float b) { return a / b; }

#define MSL_PREDICATE(f, b) \
    inline bool f(float x) { return b(x); } inline bool f(half x) { return b(float(x)); } inline bool f(bfloat x) { return b(float(x)); }
MSL_PREDICATE(isnan, __builtin_isnan) MSL_PREDICATE(isinf, __builtin_isinf) MSL_PREDICATE(isfinite, __builtin_isfinite)
MSL_PREDICATE(signbit, __builtin_signbit)

// The number, where the other is NaN, as Metal says of max and fmax.
template <class T> inline T max(T a, T b) {
    if constexpr (msl::shape<T>::n > 1) { for (int i = 0; i < msl::shape<T>::n; i++) a[i] = max(typename msl::shape<T>::scalar(a[i]), typename msl::shape<T>::scalar(b[i])); return a; }
    else if constexpr (std::is_same_v<T, float>) return __builtin_fmaxf(a, b);
    else if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat>) return T(__builtin_fmaxf(float(a), float(b)));
    else return a > b ? a : b;
}
template <class T> inline T min(T a, T b) {
    if constexpr (msl::shape<T>::n > 1) { for (int i = 0; i < msl::shape<T>::n; i++) a[i] = min(typename msl::shape<T>::scalar(a[i]), typename msl::shape<T>::scalar(b[i])); return a; }
    else if constexpr (std::is_same_v<T, float>) return __builtin_fminf(a, b);
    else if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat>) return T(__builtin_fminf(float(a), float(b)));
    else return a < b ? a : b;
}
template <class T> inline T fmax(T a, T b) { return max(a, b); }
template <class T> inline T fmin(T a, T b) { return min(a, b); }
template <class T> inline T max3(T a, T b, T c) { return max(a, max(b, c)); }
template <class T> inline T min3(T a, T b, T c) { return min(a, min(b, c)); }
template <class T> inline T clamp(T v, T lo, T hi) { return min(max(v, lo), hi); }
template <class T> inline T abs(T a) {
    if constexpr (msl::shape<T>::n > 1) { for (int i = 0; i < msl::shape<T>::n; i++) a[i] = a[i] < 0 ? -a[i] : a[i]; return a; }
    else if constexpr (std::is_same_v<T, float>) return __builtin_fabsf(a);
    else return a < T(0) ? T(-a) : a;
}
template <class T> inline T mix(T a, T b, T t) { return a + (b - a) * t; }
template <class T> inline T select(T a, T b, bool c) { return c ? b : a; }
template <class T, class M, int N> inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<M, N> c) { for (int i = 0; i < N; i++) a[i] = c[i] ? b[i] : a[i]; return a; }
template <class M, int N> inline bool any(vec<M, N> v) { for (int i = 0; i < N; i++) if (v[i]) return true; return false; }
template <class M, int N> inline bool all(vec<M, N> v) { for (int i = 0; i < N; i++) if (!v[i]) return false; return true; }
template <class T, int N> inline T dot(vec<T, N> a, vec<T, N> b) { T s = T(a[0] * b[0]); for (int i = 1; i < N; i++) s = T(s + T(a[i] * b[i])); return s; }
template <int N> inline float length(vec<float, N> v) { return __builtin_sqrtf(dot(v, v)); }

inline uint popcount(uint v) { return uint(__builtin_popcount(v)); }
inline ulong popcount(ulong v) { return ulong(__builtin_popcountl(v)); }
inline uint clz(uint v) { return v ? uint(__builtin_clz(v)) : 32; }
inline ulong clz(ulong v) { return v ? ulong(__builtin_clzl(v)) : 64; }
inline uint ctz(uint v) { return v ? uint(__builtin_ctz(v)) : 32; }
inline ulong ctz(ulong v) { return v ? ulong(__builtin_ctzl(v)) : 64; }
inline uint reverse_bits(uint v) { return __builtin_bitreverse32(v); }
inline uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
inline ulong mulhi(ulong a, ulong b) { return ulong((static_cast<unsigned __int128>(a) * b) >> 64); }
inline uint rotate(uint v, uint n) { return __builtin_rotateleft32(v, n); }
template <class T> inline T extract_bits(T v, uint offset, uint bits) {
    return bits == 0 ? T(0) : T(T(v << (sizeof(T) * 8 - offset - bits)) >> (sizeof(T) * 8 - bits));
}
inline float4 unpack_unorm4x8_to_float(uint v) { float4 r; for (int i = 0; i < 4; i++) r[i] = float((v >> (8 * i)) & 255) / 255.0f; return r; }

#define MSL_VARIANTS using metal::exp; using metal::exp2; using metal::exp10; using metal::log; using metal::log2; \
    using metal::log10; using metal::sqrt; using metal::rsqrt; using metal::sin; using metal::cos; using metal::tan; \
    using metal::tanh; using metal::pow; using metal::powr; using metal::fma; using metal::divide; using metal::fmin; \
    using metal::fmax; using metal::max; using metal::min; using metal::atan2; using metal::sinh; using metal::cosh;
namespace precise { MSL_VARIANTS }
namespace fast { MSL_VARIANTS }
}  // namespace metal
