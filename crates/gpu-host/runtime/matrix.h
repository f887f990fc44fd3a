// simdgroup_matrix: 8x8 values that the lanes hold together.
//
// Lanes do not meet at a matrix operation: the first lane to reach it executes it for all, on values that lie beside
// the simdgroup, and the others check that they ask for the same. A matrix is known by its place on the lane's stack,
// which is the same for all lanes as they run the same code. Only thread_elements hands values to the lanes; the next
// operation on that matrix collects them again.
#pragma once
#pragma GCC system_header

namespace msl {
typedef float Row8 __attribute__((ext_vector_type(8), aligned(4)));

// Row and column of the first of a lane's two elements, as on Apple's GPUs.
inline uint matrix_row(uint lane) { return ((lane >> 4) << 2) + ((lane >> 1) & 3); }
inline uint matrix_column(uint lane) { return ((lane >> 3) & 1) * 4 + (lane & 1) * 2; }

// The first lane's work is kept out of the way of the 31 others.
#define MSL_INLINE inline __attribute__((always_inline))
template <class F> __attribute__((noinline)) void execute(F work) { work(); }

// Whether this lane is the first at its next operation, and so executes it.
MSL_INLINE bool is_first(Lane* me, size_t target, const void* pointer, uint line, const char* what) {
    Simdgroup* s = me->simdgroup;
    const uint mine = me->operations++;
    if (__builtin_expect(mine == s->done, 0)) {
        if (s->done - s->base == s->operations_capacity || s->snapshots_used == s->snapshots_capacity) msl_grow_log(s);
        s->operations[s->done++ - s->base] = {line, s->snapshots_used, target, pointer};
        return true;
    }
    const Operation& first = s->operations[mine - s->base];
    if (__builtin_expect(first.line != line || first.target != target || first.pointer != pointer, 0))
        msl_die("lanes of one simdgroup differ at %s in line %u: another lane has line %u, memory %p and not %p", what, line, first.line, first.pointer, pointer);
    return false;
}
// Values as they were at the operation that this lane has just passed; the first lane fills them.
MSL_INLINE Snapshot& snapshot(Lane* me) { return me->simdgroup->snapshots[me->simdgroup->operations[me->operations - 1 - me->simdgroup->base].snapshot]; }

inline void multiply_accumulate(float* d, const float* a, const float* b, const float* c) {
    Row8 rows[8], out[8];
    for (int k = 0; k < 8; k++) rows[k] = *(const Row8*)(b + 8 * k);
    for (int r = 0; r < 8; r++) {
        Row8 sum = *(const Row8*)(c + 8 * r);
        for (int k = 0; k < 8; k++) sum = __builtin_elementwise_fma((Row8)(a[8 * r + k]), rows[k], sum);
        out[r] = sum;
    }
    for (int r = 0; r < 8; r++) *(Row8*)(d + 8 * r) = out[r];
}
template <class T> inline void round_all(float* v) {
    if constexpr (!std::is_same_v<T, float>) for (int i = 0; i < 64; i++) v[i] = float(T(v[i]));
}
}  // namespace msl

namespace metal {
template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "a simdgroup_matrix is 8x8");
    enum State : ushort { EMPTY, WHOLE, SPREAD };  // no values; in `values()`; in the lanes' `elements`

    simdgroup_matrix() : state(EMPTY) {}
    explicit simdgroup_matrix(T diagonal, MSL_SITE) : state(EMPTY) {
        give(line, [=](float* v) { for (int i = 0; i < 64; i++) v[i] = i % 9 == 0 ? float(diagonal) : 0.0f; });
        (void)file;
    }
    simdgroup_matrix(const simdgroup_matrix& o) : state(EMPTY) { copy(o); }
    simdgroup_matrix& operator=(const simdgroup_matrix& o) { if (this != &o) copy(o); return *this; }

    vec<T, 2>& thread_elements(MSL_SITE) {
        if (state == WHOLE) {
            msl::Lane* me = msl::self();
            if (msl::is_first(me, place(me), nullptr, line, "thread_elements")) {
                me->simdgroup->snapshots_used++;
                __builtin_memcpy(msl::snapshot(me).values, values(me), 256);
            }
            const float* v = msl::snapshot(me).values + msl::matrix_row(me->lane) * 8 + msl::matrix_column(me->lane);
            elements = vec<T, 2>{T(v[0]), T(v[1])};
        } else if (state == EMPTY) {
            elements = vec<T, 2>{T(__builtin_nanf("")), T(__builtin_nanf(""))};
        }
        state = SPREAD;
        (void)file;
        return elements;
    }

    // ---- for the functions below
    MSL_INLINE size_t place(msl::Lane* me) const { return size_t(me->stack_top - reinterpret_cast<const char*>(this)); }
    MSL_INLINE float* values(msl::Lane* me) const { return me->simdgroup->matrices + place(me) / 16 * 64; }
    // Sees to it that `values()` holds what the lanes have.
    MSL_INLINE void collect(msl::Lane* me, const char* what, const char* file, uint line) const {
        if (__builtin_expect(state != WHOLE, 0)) collect_elements(me, what, file, line);
    }
    __attribute__((noinline)) void collect_elements(msl::Lane* me, const char* what, const char* file, uint line) const {
        if (state == EMPTY) msl::msl_die("%s in line %u uses a simdgroup_matrix that was given no values", what, line);
        typedef vec<T, 2> Pair;
        const Pair* all = msl::exchange<Pair>(me, elements, what, file, line);
        if (msl::is_first(me, place(me), all, line, what)) {
            float* v = values(me);
            for (uint lane = 0; lane < msl::LANES; lane++)
                for (uint i = 0; i < 2; i++) v[msl::matrix_row(lane) * 8 + msl::matrix_column(lane) + i] = float(all[lane][i]);
        }
        state = WHOLE;
    }
    // New values, whatever it had. Lanes that hold elements have to be there first: they may still read them.
    template <class F> MSL_INLINE void give(uint line, F fill, const void* pointer = nullptr, const char* what = "simdgroup_matrix") {
        msl::Lane* me = msl::self();
        float* v = values(me);
        if (msl::is_first(me, place(me), pointer, line, what)) msl::execute([=] { fill(v); });
        state = WHOLE;
    }
    MSL_INLINE void copy(const simdgroup_matrix& o) {
        if (o.state == WHOLE) {
            msl::Lane* me = msl::self();
            const float* from = o.values(me);
            give(0, [=](float* v) { __builtin_memcpy(v, from, 256); });
        } else {
            elements = o.elements;
            state = o.state;
        }
    }
    alignas(16) mutable vec<T, 2> elements;
    mutable State state;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R, int C> MSL_INLINE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v, MSL_SITE) {
    simdgroup_matrix<T, R, C> m;
    m.give(line, [=](float* values) { for (int i = 0; i < 64; i++) values[i] = float(v); });
    (void)file;
    return m;
}

#define MSL_MATRIX_MEMORY(SPACE) \
template <class T> MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const SPACE T* p, ulong stride = 8, ulong2 origin = ulong2{0, 0}, bool transpose = false, MSL_SITE) { \
    p += origin.y * stride + origin.x; \
    d.give(line, [=](float* v) { \
        if (transpose) { for (int r = 0; r < 8; r++) for (int c = 0; c < 8; c++) v[8 * c + r] = float(p[r * stride + c]); } \
        else { for (int r = 0; r < 8; r++) for (int c = 0; c < 8; c++) v[8 * r + c] = float(p[r * stride + c]); } \
    }, (const void*)p, "simdgroup_load"); \
    (void)file; \
} \
template <class T> MSL_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& d, SPACE T* p, ulong stride = 8, ulong2 origin = ulong2{0, 0}, bool transpose = false, MSL_SITE) { \
    msl::Lane* me = msl::self(); \
    d.collect(me, "simdgroup_store", file, line); \
    p += origin.y * stride + origin.x; \
    if (msl::is_first(me, d.place(me), (const void*)p, line, "simdgroup_store")) { \
        me->simdgroup->snapshots_used++; \
        __builtin_memcpy(msl::snapshot(me).values, d.values(me), 256); \
    } \
    /* Each lane stores its own, so that a barrier left out shows. */ \
    const float* v = msl::snapshot(me).values; \
    const uint r = msl::matrix_row(me->lane), c = msl::matrix_column(me->lane); \
    for (uint i = 0; i < 2; i++) p[transpose ? (c + i) * stride + r : r * stride + c + i] = T(v[8 * r + c + i]); \
}
MSL_MATRIX_MEMORY(threadgroup)
#ifndef MSL_NO_ADDRESS_SPACES
MSL_MATRIX_MEMORY(device)
#endif

template <class D, class A, class B, class E> MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<E, 8, 8>& c, MSL_SITE) {
    msl::Lane* me = msl::self();
    const char* what = "simdgroup_multiply_accumulate";
    a.collect(me, what, file, line);
    b.collect(me, what, file, line);
    c.collect(me, what, file, line);
    const float *va = a.values(me), *vb = b.values(me), *vc = c.values(me);
    d.give(line, [=](float* v) { msl::multiply_accumulate(v, va, vb, vc); msl::round_all<D>(v); }, nullptr, what);
}
template <class D, class A, class B> MSL_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b, MSL_SITE) {
    msl::Lane* me = msl::self();
    a.collect(me, "simdgroup_multiply", file, line);
    b.collect(me, "simdgroup_multiply", file, line);
    const float *va = a.values(me), *vb = b.values(me);
    d.give(line, [=](float* v) { const float zero[64] = {}; msl::multiply_accumulate(v, va, vb, zero); msl::round_all<D>(v); }, nullptr, "simdgroup_multiply");
}
}  // namespace metal
