// Scalar and vector types, address spaces, and how a kernel gets its arguments.
#pragma once
#pragma GCC system_header
#include <limits>
#include <type_traits>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

// The sanitizers leave accesses to other address spaces unchecked: that build defines MSL_NO_ADDRESS_SPACES.
#ifdef MSL_NO_ADDRESS_SPACES
#define MSL_SPACE(n)
#else
#define MSL_SPACE(n) __attribute__((address_space(n)))
#endif
#define device MSL_SPACE(1)
#define constant const MSL_SPACE(2)
#define threadgroup MSL_SPACE(3)
#define thread
#define kernel
#define MSL_UNUSED __attribute__((unused))
#define MSL_EXPORT __attribute__((visibility("default")))

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
}
#define MSL_VECTORS(T) typedef metal::vec<T, 2> T##2; typedef metal::vec<T, 3> T##3; typedef metal::vec<T, 4> T##4;
MSL_VECTORS(float) MSL_VECTORS(half) MSL_VECTORS(bfloat) MSL_VECTORS(int) MSL_VECTORS(uint) MSL_VECTORS(short)
MSL_VECTORS(ushort) MSL_VECTORS(char) MSL_VECTORS(uchar) MSL_VECTORS(long) MSL_VECTORS(ulong) MSL_VECTORS(bool)
typedef metal::vec<float, 2> packed_float2;
typedef metal::vec<float, 4> packed_float4;
typedef metal::vec<uint, 2> packed_uint2;
typedef metal::vec<uint, 4> packed_uint4;

// libgcc before 13 lacks these; the compiler calls them to round to bfloat.
extern "C" inline __attribute__((visibility("hidden"), used)) __bf16 __truncsfbf2(float f) {
    uint u;
    __builtin_memcpy(&u, &f, 4);
    const uint nan = (u & 0x7fffffffu) > 0x7f800000u;
    const ushort b = nan ? ushort((u >> 16) | 64) : ushort((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
    __bf16 r;
    __builtin_memcpy(&r, &b, 2);
    return r;
}
extern "C" inline __attribute__((visibility("hidden"), used)) __bf16 __truncdfbf2(double f) { return __truncsfbf2(float(f)); }

namespace msl {
template <class T> struct same { typedef T type; };  // blocks deduction
template <class T> struct shape { typedef T scalar; enum { n = 1 }; };
template <class T, int N> struct shape<T __attribute__((ext_vector_type(N)))> { typedef T scalar; enum { n = N }; };

// Makes a vector of one scalar, of another vector, or of parts.
template <class T, int N> struct make {
    template <class A> static metal::vec<T, N> from(A a) {
        if constexpr (shape<A>::n == 1) {
            return (metal::vec<T, N>)(T(a));
        } else {
            static_assert(shape<A>::n == N, "wrong number of components");
            metal::vec<T, N> v;
            for (int i = 0; i < N; i++) v[i] = T(a[i]);
            return v;
        }
    }
    template <class A, class B, class... R> static metal::vec<T, N> from(A a, B b, R... rest) {
        static_assert(shape<A>::n + shape<B>::n + (0 + ... + shape<R>::n) == N, "wrong number of components");
        metal::vec<T, N> v;
        int i = 0;
        put(v, i, a);
        put(v, i, b);
        (put(v, i, rest), ...);
        return v;
    }
    template <class A> static void put(metal::vec<T, N>& v, int& i, A a) {
        if constexpr (shape<A>::n == 1) v[i++] = T(a);
        else for (int k = 0; k < shape<A>::n; k++) v[i++] = T(a[k]);
    }
};

template <class T> inline T constant_value(uint bits) {
    if constexpr (std::is_same_v<T, bool>) return bits != 0;
    else { T v; static_assert(sizeof v == 4); __builtin_memcpy(&v, &bits, 4); return v; }
}

// ---- arguments
template <class T> struct argument { static T from(Position p) { return T(p.v[0]); } };
template <class T> struct argument<metal::vec<T, 2>> { static metal::vec<T, 2> from(Position p) { return {T(p.v[0]), T(p.v[1])}; } };
template <class T> struct argument<metal::vec<T, 3>> { static metal::vec<T, 3> from(Position p) { return {T(p.v[0]), T(p.v[1]), T(p.v[2])}; } };
inline Position position_in_grid(const Lane& t) {
    Position p;
    for (int d = 0; d < 3; d++) p.v[d] = t.group->position.v[d] * t.group->launch->threads.v[d] + t.position.v[d];
    return p;
}
inline Position threads_in_grid(const Lane& t) {
    Position p;
    for (int d = 0; d < 3; d++) p.v[d] = t.group->launch->grid.v[d] * t.group->launch->threads.v[d];
    return p;
}
inline uint simdgroups(const Lane& t) {
    const Position& n = t.group->launch->threads;
    return n.v[0] * n.v[1] * n.v[2] / LANES;
}
}  // namespace msl
#define MSL_POSITION(T, value) msl::argument<T>::from(value)
#define MSL_NUMBER(T, value) T(value)
#define MSL_POINTER(index, ...) ((__VA_ARGS__)t.group->launch->buffers[index])
#define MSL_REFERENCE(index, ...) (*(__VA_ARGS__*)t.group->launch->buffers[index])
#define MSL_BUFFER(memory, ...) msl::Buffer{msl::Memory::memory, unsigned(sizeof(__VA_ARGS__)), unsigned(alignof(__VA_ARGS__))}
// A threadgroup variable: `size` is [n], [n][m] or nothing, the rest is the type (which may be float4, a macro before a
// parenthesis).
#define MSL_THREADGROUP(name, size, ...) \
    static const char name##_site_ = 0; \
    threadgroup msl::same<__VA_ARGS__>::type(&name) size = *(threadgroup msl::same<__VA_ARGS__>::type(*) size)msl::msl_threadgroup_block(&name##_site_, sizeof(__VA_ARGS__ size), #name)

// float4(a, b, c, d): function-like, so the bare name stays a type.
#define float2(...) msl::make<float, 2>::from(__VA_ARGS__)
#define float3(...) msl::make<float, 3>::from(__VA_ARGS__)
#define float4(...) msl::make<float, 4>::from(__VA_ARGS__)
#define half2(...) msl::make<half, 2>::from(__VA_ARGS__)
#define half3(...) msl::make<half, 3>::from(__VA_ARGS__)
#define half4(...) msl::make<half, 4>::from(__VA_ARGS__)
#define bfloat2(...) msl::make<bfloat, 2>::from(__VA_ARGS__)
#define bfloat3(...) msl::make<bfloat, 3>::from(__VA_ARGS__)
#define bfloat4(...) msl::make<bfloat, 4>::from(__VA_ARGS__)
#define int2(...) msl::make<int, 2>::from(__VA_ARGS__)
#define int3(...) msl::make<int, 3>::from(__VA_ARGS__)
#define int4(...) msl::make<int, 4>::from(__VA_ARGS__)
#define uint2(...) msl::make<uint, 2>::from(__VA_ARGS__)
#define uint3(...) msl::make<uint, 3>::from(__VA_ARGS__)
#define uint4(...) msl::make<uint, 4>::from(__VA_ARGS__)
#define short2(...) msl::make<short, 2>::from(__VA_ARGS__)
#define short3(...) msl::make<short, 3>::from(__VA_ARGS__)
#define short4(...) msl::make<short, 4>::from(__VA_ARGS__)
#define ushort2(...) msl::make<ushort, 2>::from(__VA_ARGS__)
#define ushort3(...) msl::make<ushort, 3>::from(__VA_ARGS__)
#define ushort4(...) msl::make<ushort, 4>::from(__VA_ARGS__)
#define char2(...) msl::make<char, 2>::from(__VA_ARGS__)
#define char3(...) msl::make<char, 3>::from(__VA_ARGS__)
#define char4(...) msl::make<char, 4>::from(__VA_ARGS__)
#define uchar2(...) msl::make<uchar, 2>::from(__VA_ARGS__)
#define uchar3(...) msl::make<uchar, 3>::from(__VA_ARGS__)
#define uchar4(...) msl::make<uchar, 4>::from(__VA_ARGS__)
#define long2(...) msl::make<long, 2>::from(__VA_ARGS__)
#define long3(...) msl::make<long, 3>::from(__VA_ARGS__)
#define long4(...) msl::make<long, 4>::from(__VA_ARGS__)
#define ulong2(...) msl::make<ulong, 2>::from(__VA_ARGS__)
#define ulong3(...) msl::make<ulong, 3>::from(__VA_ARGS__)
#define ulong4(...) msl::make<ulong, 4>::from(__VA_ARGS__)
#define bool2(...) msl::make<bool, 2>::from(__VA_ARGS__)
#define bool3(...) msl::make<bool, 3>::from(__VA_ARGS__)
#define bool4(...) msl::make<bool, 4>::from(__VA_ARGS__)

namespace metal {
using std::bool_constant; using std::conditional; using std::conditional_t; using std::enable_if; using std::enable_if_t;
using std::false_type; using std::integral_constant; using std::is_same; using std::is_same_v; using std::numeric_limits;
using std::true_type;
}  // namespace metal
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-7f
#undef INFINITY
#define INFINITY __builtin_inff()
#undef NAN
#define NAN __builtin_nanf("")
#undef HUGE_VALF
#define HUGE_VALF __builtin_huge_valf()
#define UINT_MAX 0xffffffffu
