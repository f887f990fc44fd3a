// Relaxed atomics in device and threadgroup memory.
#pragma once
#pragma GCC system_header

namespace metal {
enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T v; };
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;

// Threadgroups run on several threads, so these are real ones, made of a compare-and-exchange loop.
#define MSL_ATOMIC_UPDATE(SPACE, name, ...) \
    template <class T> inline T atomic_##name##_explicit(volatile SPACE atomic<T>* p, typename msl::same<T>::type v, memory_order) { \
        T* at = (T*)&p->v; \
        T old, fresh; \
        __atomic_load(at, &old, __ATOMIC_RELAXED); \
        do { T a = old; fresh = __VA_ARGS__; } while (!__atomic_compare_exchange(at, &old, &fresh, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
        return old; \
    }
#define MSL_ATOMICS(SPACE) \
    template <class T> inline T atomic_load_explicit(const volatile SPACE atomic<T>* p, memory_order) { T r; __atomic_load((T*)&p->v, &r, __ATOMIC_RELAXED); return r; } \
    template <class T> inline void atomic_store_explicit(volatile SPACE atomic<T>* p, typename msl::same<T>::type v, memory_order) { __atomic_store((T*)&p->v, &v, __ATOMIC_RELAXED); } \
    template <class T> inline bool atomic_compare_exchange_weak_explicit(volatile SPACE atomic<T>* p, T* expected, typename msl::same<T>::type v, memory_order, memory_order) { return __atomic_compare_exchange((T*)&p->v, expected, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); } \
    MSL_ATOMIC_UPDATE(SPACE, exchange, v) \
    MSL_ATOMIC_UPDATE(SPACE, fetch_add, T(a + v)) \
    MSL_ATOMIC_UPDATE(SPACE, fetch_sub, T(a - v)) \
    MSL_ATOMIC_UPDATE(SPACE, fetch_max, a > v ? a : v) \
    MSL_ATOMIC_UPDATE(SPACE, fetch_min, a < v ? a : v) \
    MSL_ATOMIC_UPDATE(SPACE, fetch_and, T(a & v)) \
    MSL_ATOMIC_UPDATE(SPACE, fetch_or, T(a | v)) \
    MSL_ATOMIC_UPDATE(SPACE, fetch_xor, T(a ^ v))
MSL_ATOMICS(threadgroup)
#ifndef MSL_NO_ADDRESS_SPACES
MSL_ATOMICS(device)
#endif
}  // namespace metal
