// Barriers and simdgroup functions: every lane gives its value, all meet, every lane reads what it needs.
#pragma once
#pragma GCC system_header

// Where the kernel calls from: lanes of one simdgroup have to meet at the same line.
#define MSL_SITE uint line = __builtin_LINE(), const char* file = __builtin_FILE()

namespace msl {
// Gives `v` to the simdgroup and returns all 32 values.
template <class T> inline const T* exchange(Lane* me, T v, const char* what, const char* file, uint line) {
    static_assert(sizeof(T) <= EXCHANGE_BYTES, "at most four floats are exchanged");
    Simdgroup* s = me->simdgroup;
    me->parity ^= 1;
    const uint parity = me->parity;
    T* all = reinterpret_cast<T*>(s->slot[parity]);
    all[me->lane] = v;
    s->ready[parity] = false;
    msl_stop(me, Stop::Collective, what, file, line);
    return all;
}
// What all lanes need is computed once, by the first that asks.
template <class R, class F> inline R once(Lane* me, F compute) {
    Simdgroup* s = me->simdgroup;
    R* result = reinterpret_cast<R*>(s->result[me->parity]);
    if (!s->ready[me->parity]) {
        s->ready[me->parity] = true;
        *result = compute();
    }
    return *result;
}
// Pairs with half the distance each time, as a butterfly of shuffles would.
template <class T, class F> inline T reduce(Lane* me, const T* all, F f) {
    return once<T>(me, [&] {
        T t[LANES];
        for (uint i = 0; i < LANES; i++) t[i] = all[i];
        for (uint half_ = LANES / 2; half_; half_ >>= 1)
            for (uint i = 0; i < half_; i++) t[i] = f(t[i], t[i + half_]);
        return t[0];
    });
}
}  // namespace msl

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags, MSL_SITE) { msl::msl_stop(msl::self(), msl::Stop::Barrier, "threadgroup_barrier", file, line); }
inline void simdgroup_barrier(mem_flags, MSL_SITE) { msl::msl_stop(msl::self(), msl::Stop::Collective, "simdgroup_barrier", file, line); }

#define MSL_EXCHANGE(name) msl::Lane* me = msl::self(); const T* all = msl::exchange<T>(me, v, name, file, line); const uint lane = me->lane; (void)lane
template <class T> inline T simd_shuffle(T v, ushort from, MSL_SITE) { MSL_EXCHANGE("simd_shuffle"); return all[from & 31]; }
template <class T> inline T simd_shuffle_xor(T v, ushort mask, MSL_SITE) { MSL_EXCHANGE("simd_shuffle_xor"); return all[(lane ^ mask) & 31]; }
template <class T> inline T simd_shuffle_down(T v, ushort by, MSL_SITE) { MSL_EXCHANGE("simd_shuffle_down"); return all[lane + by < 32 ? lane + by : lane]; }
template <class T> inline T simd_shuffle_up(T v, ushort by, MSL_SITE) { MSL_EXCHANGE("simd_shuffle_up"); return all[lane >= by ? lane - by : lane]; }
template <class T> inline T simd_shuffle_rotate_down(T v, ushort by, MSL_SITE) { MSL_EXCHANGE("simd_shuffle_rotate_down"); return all[(lane + by) & 31]; }
template <class T> inline T simd_shuffle_rotate_up(T v, ushort by, MSL_SITE) { MSL_EXCHANGE("simd_shuffle_rotate_up"); return all[(lane - by) & 31]; }
template <class T> inline T simd_broadcast(T v, ushort from, MSL_SITE) { MSL_EXCHANGE("simd_broadcast"); return all[from & 31]; }
template <class T> inline T simd_broadcast_first(T v, MSL_SITE) { MSL_EXCHANGE("simd_broadcast_first"); return all[0]; }
template <class T> inline T simd_sum(T v, MSL_SITE) { MSL_EXCHANGE("simd_sum"); return msl::reduce(me, all, [](T a, T b) { return T(a + b); }); }
template <class T> inline T simd_product(T v, MSL_SITE) { MSL_EXCHANGE("simd_product"); return msl::reduce(me, all, [](T a, T b) { return T(a * b); }); }
template <class T> inline T simd_max(T v, MSL_SITE) { MSL_EXCHANGE("simd_max"); return msl::reduce(me, all, [](T a, T b) { return metal::max(a, b); }); }
template <class T> inline T simd_min(T v, MSL_SITE) { MSL_EXCHANGE("simd_min"); return msl::reduce(me, all, [](T a, T b) { return metal::min(a, b); }); }
template <class T> inline T simd_and(T v, MSL_SITE) { MSL_EXCHANGE("simd_and"); return msl::reduce(me, all, [](T a, T b) { return T(a & b); }); }
template <class T> inline T simd_or(T v, MSL_SITE) { MSL_EXCHANGE("simd_or"); return msl::reduce(me, all, [](T a, T b) { return T(a | b); }); }
template <class T> inline T simd_xor(T v, MSL_SITE) { MSL_EXCHANGE("simd_xor"); return msl::reduce(me, all, [](T a, T b) { return T(a ^ b); }); }
template <class T> inline T simd_prefix_inclusive_sum(T v, MSL_SITE) { MSL_EXCHANGE("simd_prefix_inclusive_sum"); T s = T(0); for (uint i = 0; i <= lane; i++) s = T(s + all[i]); return s; }
template <class T> inline T simd_prefix_exclusive_sum(T v, MSL_SITE) { MSL_EXCHANGE("simd_prefix_exclusive_sum"); T s = T(0); for (uint i = 0; i < lane; i++) s = T(s + all[i]); return s; }

// The lanes for which something holds, lane 0 in the lowest bit.
struct simd_vote {
    typedef ulong vote_t;
    vote_t bits;
    explicit operator vote_t() const { return bits; }
    bool all() const { return bits == 0xffffffffu; }
    bool any() const { return bits != 0; }
};
inline simd_vote simd_ballot(bool b, MSL_SITE) {
    msl::Lane* me = msl::self();
    const uchar* all = msl::exchange<uchar>(me, b, "simd_ballot", file, line);
    return {msl::once<ulong>(me, [&] { ulong bits = 0; for (uint i = 0; i < msl::LANES; i++) bits |= ulong(all[i]) << i; return bits; })};
}
inline bool simd_all(bool b, MSL_SITE) { return simd_ballot(b, line, file).all(); }
inline bool simd_any(bool b, MSL_SITE) { return simd_ballot(b, line, file).any(); }
inline bool simd_is_first() { return msl::self()->lane == 0; }
}  // namespace metal
