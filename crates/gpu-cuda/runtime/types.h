// Scalar and vector types, where a thread is, and what a kernel declares.
#pragma once

namespace metal {
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// The upper half of a float. It has no arithmetic: kernels compute in float.
struct bfloat {
    ushort bits;
    bfloat() = default;
    __forceinline__ explicit bfloat(float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
    __forceinline__ explicit operator float() const { return __uint_as_float(uint(bits) << 16); }
};

namespace msl {
template <class T> struct same { typedef T type; };  // blocks deduction
template <int... I> struct order {};

// What a vector is in memory: one of three takes the room of four, as in Metal.
template <class T, int N> struct components;
template <class T> struct alignas(2 * sizeof(T)) components<T, 2> { union { struct { T x, y; }; T all[2]; }; };
template <class T> struct alignas(4 * sizeof(T)) components<T, 3> { union { struct { T x, y, z; }; T all[4]; }; };
template <class T> struct alignas(4 * sizeof(T)) components<T, 4> { union { struct { T x, y, z, w; }; T all[4]; }; };
}  // namespace msl

template <class T, int N> struct vec : msl::components<T, N> {
    vec() = default;
    __forceinline__ explicit vec(T value) {
#pragma unroll
        for (int i = 0; i < N; i++) this->all[i] = value;
    }
    template <class U> __forceinline__ explicit vec(const vec<U, N>& other) {
#pragma unroll
        for (int i = 0; i < N; i++) this->all[i] = T(other.all[i]);
    }
    // Of parts: scalars, and vectors of this type.
    template <class A, class B, class... Rest> __forceinline__ vec(A first, B second, Rest... rest) {
        static_assert(count((A*)0) + count((B*)0) + (0 + ... + count((Rest*)0)) == N, "wrong number of components");
        int i = 0;
        put(i, first);
        put(i, second);
        (put(i, rest), ...);
    }
    __forceinline__ T& operator[](int i) { return this->all[i]; }
    __forceinline__ const T& operator[](int i) const { return this->all[i]; }
    // `v.xy`, which is no place to write to.
    template <int... I> __forceinline__ const vec<T, sizeof...(I)> msl_swizzle(msl::order<I...>) const {
        return vec<T, sizeof...(I)>(this->all[I]...);
    }

private:
    template <class A> static constexpr int count(A*) { return 1; }
    template <int M> static constexpr int count(vec<T, M>*) { return M; }
    template <class A> __forceinline__ void put(int& i, A value) { this->all[i++] = T(value); }
    template <int M> __forceinline__ void put(int& i, vec<T, M> value) {
#pragma unroll
        for (int k = 0; k < M; k++) this->all[i++] = value.all[k];
    }
};

#define MSL_OPERATOR(op) \
    template <class T, int N> __forceinline__ vec<T, N> operator op(vec<T, N> a, vec<T, N> b) { \
        _Pragma("unroll") for (int i = 0; i < N; i++) a.all[i] = a.all[i] op b.all[i]; \
        return a; \
    } \
    template <class T, int N> __forceinline__ vec<T, N> operator op(vec<T, N> a, typename msl::same<T>::type b) { return a op vec<T, N>(b); } \
    template <class T, int N> __forceinline__ vec<T, N> operator op(typename msl::same<T>::type a, vec<T, N> b) { return vec<T, N>(a) op b; } \
    template <class T, int N, class B> __forceinline__ vec<T, N>& operator op##=(vec<T, N>& a, B b) { return a = a op b; }
MSL_OPERATOR(+) MSL_OPERATOR(-) MSL_OPERATOR(*) MSL_OPERATOR(/) MSL_OPERATOR(%) MSL_OPERATOR(&) MSL_OPERATOR(|)
MSL_OPERATOR(^) MSL_OPERATOR(<<) MSL_OPERATOR(>>)
#undef MSL_OPERATOR
template <class T, int N> __forceinline__ vec<T, N> operator-(vec<T, N> a) {
#pragma unroll
    for (int i = 0; i < N; i++) a.all[i] = -a.all[i];
    return a;
}

#define MSL_VECTORS(T) typedef vec<T, 2> T##2; typedef vec<T, 3> T##3; typedef vec<T, 4> T##4;
MSL_VECTORS(float) MSL_VECTORS(bfloat) MSL_VECTORS(int) MSL_VECTORS(uint) MSL_VECTORS(short) MSL_VECTORS(ushort)
MSL_VECTORS(char) MSL_VECTORS(uchar) MSL_VECTORS(long) MSL_VECTORS(ulong) MSL_VECTORS(bool)
#undef MSL_VECTORS

namespace msl {
// `vec<T, N>(...)`, as the translator writes it.
template <class T, int N> struct make {
    template <class... A> static __forceinline__ vec<T, N> from(A... parts) { return vec<T, N>(parts...); }
};

__forceinline__ uint3 thread_position() { return uint3(threadIdx.x, threadIdx.y, threadIdx.z); }
__forceinline__ uint3 threads() { return uint3(blockDim.x, blockDim.y, blockDim.z); }
__forceinline__ uint3 group_position() { return uint3(blockIdx.x, blockIdx.y, blockIdx.z); }
__forceinline__ uint3 groups() { return uint3(gridDim.x, gridDim.y, gridDim.z); }
__forceinline__ uint3 position_in_grid() { return group_position() * threads() + thread_position(); }
__forceinline__ uint3 threads_in_grid() { return groups() * threads(); }
__forceinline__ uint thread_index() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
__forceinline__ uint lane() { return thread_index() % 32; }
__forceinline__ uint simdgroups() { return blockDim.x * blockDim.y * blockDim.z / 32; }

// A position as a kernel asks for it: as many dimensions, of its type.
template <class T> struct argument { static __forceinline__ T from(uint3 at) { return T(at.x); } };
template <class T> struct argument<vec<T, 2>> { static __forceinline__ vec<T, 2> from(uint3 at) { return vec<T, 2>(T(at.x), T(at.y)); } };
template <class T> struct argument<vec<T, 3>> { static __forceinline__ vec<T, 3> from(uint3 at) { return vec<T, 3>(at); } };
}  // namespace msl
}  // namespace metal

// A threadgroup variable: `size` is [n], [n][m] or nothing, the rest is the type.
#define MSL_THREADGROUP(name, size, ...) __shared__ __VA_ARGS__ name size
// Most threads of a threadgroup, where the kernel says so: else what no kernel exceeds.
#define MSL_BOUNDS(most) __launch_bounds__((most) == 0 ? 256 : (most))
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
#define HUGE_VALF INFINITY
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-7f
#define UINT_MAX 0xffffffffu
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
